#include "ingest/msccl/xml_element.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/names.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::ingest {

namespace {

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    return first == text.npos ? std::string_view() : text.substr(first);
}

}  // namespace

Result<XmlDocument> XmlDocument::parse(std::string_view text, const std::string& file_name) {
    if (text.size() > kMaxBytes)
        return Error{fmt::format("larger than {} MiB", kMaxBytes >> 20), {file_name}};
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    XmlDocument document;
    document.line_starts_.push_back(0);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\n') document.line_starts_.push_back(i + 1);
    }
    const pugi::xml_parse_result parsed =
        document.document_.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!parsed) {
        std::string what = parsed.description();
        if (!what.empty())
            what.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(what.front())));
        return Error{"not XML: " + what, {file_name, document.line_at(parsed.offset)}};
    }
    return document;
}

std::int32_t XmlDocument::line_at(std::ptrdiff_t offset) const {
    if (offset < 0) return 0;
    const auto next =
        std::upper_bound(line_starts_.begin(), line_starts_.end(), static_cast<std::size_t>(offset));
    return static_cast<std::int32_t>(next - line_starts_.begin());
}

std::int32_t XmlDocument::line_of(pugi::xml_node node) const { return line_at(node.offset_debug()); }

bool XmlReader::fail(pugi::xml_node node, const std::string& problem) {
    error_ = Error{place_.empty() ? problem : place_ + ": " + problem, {file_name_, document_.line_of(node)}};
    return false;
}

bool XmlReader::attributes(pugi::xml_node node, std::span<const std::string_view> known) {
    std::uint64_t seen = 0;
    for (const pugi::xml_attribute attribute : node.attributes()) {
        const std::string_view name = attribute.name();
        const auto found = std::find(known.begin(), known.end(), name);
        if (found == known.end()) {
            std::string warning = fmt::format("the attribute \"{}\" of <{}> is not known and left out",
                                              escaped(name), node.name());
            constexpr std::size_t kMaxWarnings = 32;
            if (warnings_.size() < kMaxWarnings &&
                std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end())
                warnings_.push_back(std::move(warning));
            continue;
        }
        const std::uint64_t bit = std::uint64_t{1} << (found - known.begin());
        if ((seen & bit) != 0)
            return fail(node, fmt::format("<{}> has the attribute \"{}\" twice", node.name(), name));
        seen |= bit;
    }
    return true;
}

bool XmlReader::text(pugi::xml_node node, const char* name, std::string& out) {
    const pugi::xml_attribute attribute = node.attribute(name);
    if (!attribute) return fail(node, fmt::format("<{}> lacks the attribute \"{}\"", node.name(), name));
    out = attribute.value();
    return true;
}

bool XmlReader::integer(pugi::xml_node node, const char* name, std::int64_t lowest, std::int64_t highest,
                        std::int64_t& out) {
    std::string value;
    if (!text(node, name, value)) return false;
    const std::optional<std::int64_t> number = whole_number<std::int64_t>(value);
    if (!number) return fail(node, fmt::format("{}=\"{}\" is no integer", name, escaped(value)));
    out = *number;
    return (out >= lowest && out <= highest) ||
           fail(node, fmt::format("{}=\"{}\" is not in {} to {}", name, out, lowest, highest));
}

bool XmlReader::children(pugi::xml_node node, std::span<const std::string_view> known) {
    for (const pugi::xml_node child : node.children()) {
        if (child.type() == pugi::node_element &&
            std::find(known.begin(), known.end(), std::string_view(child.name())) != known.end())
            continue;
        const std::string what = child.type() == pugi::node_element
                                     ? "the element <" + escaped(child.name()) + ">"
                                     : "text \"" + escaped(trimmed(child.value())) + "\"";
        const std::string inside =
            node.type() == pugi::node_document ? "the file" : fmt::format("<{}>", node.name());
        std::string expected;
        for (const std::string_view name : known)
            expected += (expected.empty() ? "<" : ", <") + std::string(name) + ">";
        return fail(child, fmt::format("{} has {}; expected {}", inside, what,
                                       expected.empty() ? std::string("nothing") : expected));
    }
    return true;
}

}  // namespace syncopate::ingest
