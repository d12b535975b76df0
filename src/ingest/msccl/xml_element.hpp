// Strict reading of XML attributes, with errors that name the line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <pugixml.hpp>

#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// A parsed document that knows the line of each of its elements.
class XmlDocument {
public:
    static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;

    /// Parses `text` (UTF-8). Fails with the line of what is not XML, and above kMaxBytes.
    static Result<XmlDocument> parse(std::string_view text, const std::string& file_name);

    [[nodiscard]] pugi::xml_node root() const { return document_.root(); }
    [[nodiscard]] std::int32_t line_of(pugi::xml_node node) const;

private:
    [[nodiscard]] std::int32_t line_at(std::ptrdiff_t offset) const;

    pugi::xml_document document_;
    std::vector<std::size_t> line_starts_;
};

/// The base of a reader. Each method returns false once an error is recorded; the first one is kept.
class XmlReader {
public:
    XmlReader(const XmlDocument& document, const std::string& file_name)
        : document_(document), file_name_(file_name) {}

    [[nodiscard]] const Error& error() const { return *error_; }  ///< after a method returned false

protected:
    /// Records "PLACE: PROBLEM" at the node's line, with `place` as set by the reader; returns false.
    bool fail(pugi::xml_node node, const std::string& problem);

    /// No attribute twice. What is not in `known` gives one warning for each name.
    bool attributes(pugi::xml_node node, std::span<const std::string_view> known);
    /// An attribute that must be there; for an optional one test node.attribute(name) first.
    bool text(pugi::xml_node node, const char* name, std::string& out);
    bool integer(pugi::xml_node node, const char* name, std::int64_t lowest, std::int64_t highest,
                 std::int64_t& out);
    template <typename Int>
    bool integer(pugi::xml_node node, const char* name, std::int64_t lowest, std::int64_t highest, Int& out) {
        std::int64_t value = 0;
        if (!integer(node, name, lowest, highest, value)) return false;
        out = static_cast<Int>(value);
        return true;
    }
    /// Only elements called one of `known`, comments and nothing else inside.
    bool children(pugi::xml_node node, std::span<const std::string_view> known);

    const XmlDocument& document_;
    std::string place_;                  ///< such as "rank 0 tb 3 step 2"; may be empty
    std::vector<std::string> warnings_;  ///< so far

private:
    const std::string& file_name_;
    std::optional<Error> error_;
};

}  // namespace syncopate::ingest
