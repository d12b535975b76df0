#include "syncopate/bundle/container.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "syncopate/digest.hpp"
#include "syncopate/names.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

constexpr std::string_view kMagic = "SYBUNDLE";
constexpr std::uint64_t kHeadBytes = 32;   // before the table of sections
constexpr std::uint64_t kEntryBytes = 32;  // of a section, without its name
constexpr std::uint64_t kAlignment = 16;

void append(std::string& bytes, std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

void fill_up(std::string& bytes, std::uint64_t alignment) {
    bytes.resize(static_cast<std::size_t>(round_up(bytes.size(), alignment)), '\0');
}

std::uint64_t bytes_of_head(const Sections& sections) {
    std::uint64_t bytes = kHeadBytes + 8;
    for (const auto& [name, content] : sections)
        bytes += kEntryBytes + round_up(name.size(), std::uint64_t{8});
    return round_up(bytes, kAlignment);
}

/// Reads one container. Every place is checked against the file's bytes before it is looked at.
class Unpacker {
public:
    Unpacker(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

    Result<Sections> unpack() {
        SYNCOPATE_TRY(read_head());
        for (const Entry& entry : entries_) {
            SYNCOPATE_TRY(read_section(entry));
        }
        const std::string_view rest = bytes_.substr(static_cast<std::size_t>(at_));
        if (!rest.empty()) return wrong("the end", "has bytes that belong to no section");
        return std::move(sections_);
    }

private:
    struct Entry {
        std::string name;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
        std::uint64_t digest = 0;
    };

    [[nodiscard]] Error wrong(const std::string& section, const std::string& what) const {
        return Error{fmt::format("{} {}: the file is damaged; copy or compile it again", section, what),
                     {.file = file_}};
    }

    [[nodiscard]] std::uint64_t number(std::uint64_t offset, std::size_t size) const {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < size; ++i)
            value |= static_cast<std::uint64_t>(
                         static_cast<unsigned char>(bytes_[static_cast<std::size_t>(offset) + i]))
                     << (8 * i);
        return value;
    }

    Status read_head() {
        if (bytes_.substr(0, std::min(bytes_.size(), kMagic.size())) !=
            kMagic.substr(0, std::min(bytes_.size(), kMagic.size())))
            return Error{
                "this is no bundle: it does not begin with SYBUNDLE; `syncopate compile -o FILE` writes one",
                {.file = file_}};
        if (bytes_.size() < kHeadBytes)
            return wrong("the head", fmt::format("is cut off after {} bytes", bytes_.size()));
        if (const std::uint64_t version = number(8, 4); version != kVersion)
            return Error{
                fmt::format("this bundle is of version {}, and version {} is read here: compile it again, or "
                            "take the syncopate that wrote it",
                            version, kVersion),
                {.file = file_}};
        const std::uint64_t count = number(12, 4);
        const std::uint64_t whole = number(16, 8);
        const std::uint64_t head = number(24, 8);
        if (count > kMostSections || head < kHeadBytes + 8 || head % kAlignment != 0 || head > whole)
            return wrong("the head", "has sizes that make no sense");
        if (head > bytes_.size())
            return wrong("the head", fmt::format("is cut off after {} of {} bytes", bytes_.size(), head));
        const std::string_view first = bytes_.substr(0, static_cast<std::size_t>(head) - 8);
        if (hash(first) != number(head - 8, 8)) return wrong("the head", "has another digest than it says");
        SYNCOPATE_TRY(read_entries(count, head - 8));
        at_ = head;
        if (whole > bytes_.size()) return cut_off(whole);
        return Done{};
    }

    Status read_entries(std::uint64_t count, std::uint64_t end) {
        std::uint64_t at = kHeadBytes;
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::string which = fmt::format("section {} of the head", i);
            if (end - at < kEntryBytes) return wrong(which, "does not fit into it");
            Entry entry{.offset = number(at, 8), .bytes = number(at + 8, 8), .digest = number(at + 16, 8)};
            const std::uint64_t length = number(at + 24, 4);
            at += kEntryBytes;
            if (length == 0 || length > kMostNameBytes || end - at < round_up(length, std::uint64_t{8}))
                return wrong(which, "has a name that does not fit into it");
            entry.name = bytes_.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(length));
            if (number(at - 4, 4) != 0 || !is_zero(at + length, at + round_up(length, std::uint64_t{8})))
                return wrong(which, "is not filled up with zeros");
            if (!entries_.empty() && entry.name <= entries_.back().name)
                return wrong(which, fmt::format("is {}, which does not come after the one before it",
                                                escaped(entry.name)));
            at += round_up(length, std::uint64_t{8});
            entries_.push_back(std::move(entry));
        }
        if (round_up(at + 8, kAlignment) != end + 8 || !is_zero(at, end))
            return wrong("the head", "is longer than its sections");
        return Done{};
    }

    [[nodiscard]] bool is_zero(std::uint64_t begin, std::uint64_t end) const {
        const std::string_view bytes =
            bytes_.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        return std::ranges::all_of(bytes, [](char byte) { return byte == '\0'; });
    }

    /// The file ends early: which section is the first one that is not whole.
    [[nodiscard]] Error cut_off(std::uint64_t whole) const {
        const auto missing = [&](const Entry& entry) {
            return entry.offset > bytes_.size() || entry.bytes > bytes_.size() - entry.offset;
        };
        const auto first = std::ranges::find_if(entries_, missing);
        const std::string name = first == entries_.end() ? "the end" : "section " + escaped(first->name);
        return wrong(name, fmt::format("is cut off: the file has {} of {} bytes", bytes_.size(), whole));
    }

    Status read_section(const Entry& entry) {
        const std::string name = "section " + escaped(entry.name);
        if (entry.offset != at_ || entry.bytes > bytes_.size() - at_)
            return wrong(name, "does not lie where it should");
        const std::string_view content =
            bytes_.substr(static_cast<std::size_t>(at_), static_cast<std::size_t>(entry.bytes));
        if (hash(content) != entry.digest) return wrong(name, "has another digest than the head says");
        const std::uint64_t end = at_ + entry.bytes;
        at_ = round_up(end, kAlignment);
        if (at_ > bytes_.size() || !is_zero(end, at_)) return wrong(name, "is not filled up with zeros");
        sections_.emplace_hint(sections_.end(), entry.name, content);
        return Done{};
    }

    std::string_view bytes_;
    const std::string& file_;
    std::vector<Entry> entries_;
    Sections sections_;
    std::uint64_t at_ = 0;  ///< where the next section begins
};

}  // namespace

std::string pack(const Sections& sections) {
    const std::uint64_t head = bytes_of_head(sections);
    std::uint64_t whole = head;
    for (const auto& [name, content] : sections) whole += round_up(std::uint64_t{content.size()}, kAlignment);
    std::string bytes;
    bytes.reserve(static_cast<std::size_t>(whole));
    bytes += kMagic;
    append(bytes, kVersion, 4);
    append(bytes, sections.size(), 4);
    append(bytes, whole, 8);
    append(bytes, head, 8);
    std::uint64_t offset = head;
    for (const auto& [name, content] : sections) {
        append(bytes, offset, 8);
        append(bytes, content.size(), 8);
        append(bytes, hash(content), 8);
        append(bytes, name.size(), 8);
        bytes += name;
        fill_up(bytes, 8);
        offset += round_up(std::uint64_t{content.size()}, kAlignment);
    }
    bytes.resize(static_cast<std::size_t>(head) - 8, '\0');
    append(bytes, hash(bytes), 8);
    for (const auto& [name, content] : sections) {
        bytes += content;
        fill_up(bytes, kAlignment);
    }
    return bytes;
}

Result<Sections> unpack(std::string_view bytes, const std::string& file) {
    return Unpacker(bytes, file).unpack();
}

}  // namespace syncopate::bundle
