#include "syncopate/json_document.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"

namespace syncopate {
namespace {

/// An input iterator that tells how far the parser has read: nlohmann's SAX events carry no position
/// themselves.
class CountingIterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
    reference operator*() const { return *at_; }
    CountingIterator& operator++() {
        *reached_ = ++at_;
        return *this;
    }
    CountingIterator operator++(int) {
        CountingIterator before = *this;
        ++*this;
        return before;
    }
    bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
    bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

private:
    const char* at_;
    const char** reached_;
};

Location position(std::string_view text, std::size_t offset, const std::string& file_name) {
    const std::string_view before = text.substr(0, std::min(offset, text.size()));
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 == 0: the first line
    Location location;
    location.file = file_name;
    location.line = 1 + static_cast<std::int32_t>(std::count(before.begin(), before.end(), '\n'));
    location.column = 1 + static_cast<std::int32_t>(before.size() - line_start);
    return location;
}

/// nlohmann's "[json.exception…] parse error at line L, column C: REASON; last read: '…'; expected …",
/// without what the location says better and without the raw bytes of the input.
std::string reason_of(std::string_view what) {
    if (const auto column = what.find(", column "); column != what.npos) {
        if (const auto colon = what.find(": ", column); colon != what.npos) what.remove_prefix(colon + 2);
    } else if (const auto bracket = what.find("] "); bracket != what.npos) {
        what.remove_prefix(bracket + 2);
    }
    if (what.starts_with("syntax error while parsing "))
        what.remove_prefix(sizeof("syntax error while ") - 1);
    const auto last_read = what.find("; last read: ");
    if (last_read == what.npos) return escaped(what, 200);
    const auto expected = what.rfind("'; expected ");
    const bool has_expected = expected != what.npos && expected > last_read;
    return escaped(what.substr(0, last_read), 200) +
           (has_expected ? escaped(what.substr(expected + 1), 200) : std::string());
}

}  // namespace

/// Receives nlohmann's SAX events and appends nodes. Returning false stops the parser.
class JsonDocumentBuilder {
public:
    using Type = JsonDocument::Type;
    using Index = JsonDocument::Index;

    JsonDocumentBuilder(std::string_view text, const std::string& file_name)
        : text_(text), file_name_(file_name), reached_(text.data()) {}

    Result<JsonDocument> build() {
        if (text_.size() > std::numeric_limits<std::uint32_t>::max())
            return Error{"larger than 4 GiB", {file_name_}};
        if (text_.find_first_not_of(" \t\r\n") == text_.npos) {
            return Error{"empty: expected a JSON object", position(text_, 0, file_name_)};
        }
        const char* const begin = text_.data();
        const bool complete = nlohmann::json::sax_parse(
            CountingIterator(begin, &reached_), CountingIterator(begin + text_.size(), &reached_), this);
        if (!complete) return *error_;
        // The parser takes it for the end of the text.
        if (const std::size_t nul = text_.find('\0'); nul != text_.npos)
            return Error{"not JSON: it holds a NUL byte", position(text_, nul, file_name_)};
        return std::move(document_);
    }

    bool null() { return append(Type::null, 0); }
    bool boolean(bool value) { return append(Type::boolean, value ? 1 : 0); }
    bool number_integer(std::int64_t value) { return append(Type::integer, value); }
    bool number_unsigned(std::uint64_t value) {
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
            return append(Type::other_number, store(std::to_string(value)));
        }
        return append(Type::integer, static_cast<std::int64_t>(value));
    }
    bool number_float(double, const std::string& digits) { return append(Type::other_number, store(digits)); }
    bool string(std::string& value) { return append(Type::string, store(value)); }
    bool key(std::string& value) { return string(value); }
    bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON text
    bool start_object(std::size_t) { return open(Type::object); }
    bool start_array(std::size_t) { return open(Type::array); }
    bool end_object() {
        document_.nodes_[open_.back()].payload /= 2;  // keys were counted as well
        return close();
    }
    bool end_array() { return close(); }

    bool parse_error(std::size_t offset, const std::string&, const nlohmann::json::exception& error) {
        error_ = Error{"not JSON: " + reason_of(error.what()),
                       position(text_, offset == 0 ? 0 : offset - 1, file_name_)};
        return false;
    }

private:
    bool append(Type type, std::int64_t payload) {
        auto& nodes = document_.nodes_;
        if (nodes.size() >= JsonDocument::kNone - 1) return stop("more than 2^32 values");
        if (!open_.empty()) ++nodes[open_.back()].payload;
        const auto offset = static_cast<std::uint32_t>(reached_ - text_.data());
        nodes.push_back({type, offset, static_cast<Index>(nodes.size() + 1), payload});
        return true;
    }

    bool open(Type type) {
        if (open_.size() >= JsonDocument::kMaxDepth) {
            return stop(fmt::format("nested more than {} deep", JsonDocument::kMaxDepth));
        }
        if (!append(type, 0)) return false;
        open_.push_back(static_cast<Index>(document_.nodes_.size() - 1));
        return true;
    }

    bool close() {
        document_.nodes_[open_.back()].next = static_cast<Index>(document_.nodes_.size());
        open_.pop_back();
        return true;
    }

    /// Appends to the arena. The text is at most 4 GiB and no string grows by parsing, so 32 bits hold place
    /// and size.
    std::int64_t store(std::string_view value) {
        const auto place = static_cast<std::int64_t>(document_.arena_.size());
        document_.arena_.append(value);
        return (place << 32) | static_cast<std::int64_t>(value.size());
    }

    bool stop(std::string message) {
        const auto read = static_cast<std::size_t>(reached_ - text_.data());
        error_ = Error{std::move(message), position(text_, read == 0 ? 0 : read - 1, file_name_)};
        return false;
    }

    std::string_view text_;
    const std::string& file_name_;
    const char* reached_;
    JsonDocument document_;
    std::vector<Index> open_;
    std::optional<Error> error_;
};

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string& file_name) {
    return JsonDocumentBuilder(text, file_name).build();
}

std::string_view JsonDocument::text(Index node) const {
    const auto payload = static_cast<std::uint64_t>(nodes_[node].payload);
    return std::string_view(arena_).substr(payload >> 32, payload & 0xffffffffU);
}

std::string JsonDocument::compact(Index node) const {
    switch (type(node)) {
        case Type::null: return "null";
        case Type::boolean: return boolean(node) ? "true" : "false";
        case Type::integer: return std::to_string(integer(node));
        case Type::other_number: return std::string(text(node));
        case Type::string: return json_quoted(std::string(text(node)));
        case Type::array:
        case Type::object: break;
    }
    const bool is_object = type(node) == Type::object;
    std::string made(1, is_object ? '{' : '[');
    bool is_key = is_object;
    for (Index child = first(node); child != end(node); child = next(child), is_key = is_object && !is_key) {
        if (child != first(node)) made += is_object && !is_key ? ':' : ',';
        made += compact(child);
    }
    return made + (is_object ? '}' : ']');
}

std::string JsonDocument::describe(Index node) const {
    switch (type(node)) {
        case Type::null: return "null";
        case Type::boolean: return boolean(node) ? "true" : "false";
        case Type::integer: return fmt::format("the number {}", integer(node));
        case Type::other_number: return "the number " + escaped(text(node));
        case Type::string: return "the string \"" + escaped(text(node)) + "\"";
        case Type::array: return size(node) == 0 ? "an empty list" : fmt::format("a list of {}", size(node));
        case Type::object: return size(node) == 0 ? "an empty object" : "an object";
    }
    return "nothing";
}

Location JsonDocument::locate(Index node, std::string_view text, const std::string& file_name) const {
    const std::size_t end = nodes_[node].end_offset;
    // The token's last character, or for a number the one after it.
    std::size_t start = end == 0 ? 0 : end - 1;
    switch (type(node)) {
        case Type::string: {
            // Back to the opening quote: inside a string every quote has an odd number of backslashes before
            // it.
            const auto escaped = [&](std::size_t quote) {
                std::size_t slash = quote;
                while (slash > 0 && text[slash - 1] == '\\') --slash;
                return (quote - slash) % 2 == 1;
            };
            do {
                --start;
            } while (start > 0 && (text[start] != '"' || escaped(start)));
            break;
        }
        case Type::integer:
        case Type::other_number: {
            const auto is_digit = [](char c) {
                return std::string_view("+-.0123456789eE").find(c) != std::string_view::npos;
            };
            if (!is_digit(text[start]) && start > 0) --start;
            while (start > 0 && is_digit(text[start - 1])) --start;
            break;
        }
        case Type::null:
        case Type::boolean:
            while (start > 0 && text[start - 1] >= 'a' && text[start - 1] <= 'z') --start;
            break;
        case Type::array:
        case Type::object: break;
    }
    return position(text, start, file_name);
}

}  // namespace syncopate
