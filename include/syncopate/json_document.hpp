// A JSON text as a flat array of nodes that remember where they came from, so that a plan of a million ops
// decodes in little memory and an error in it can name its line. The lexing and the grammar are
// nlohmann-json's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate {

/// An immutable JSON document. Nodes lie in document order; node 0 is the root. Strings live in one arena.
class JsonDocument {
public:
    enum class Type : std::uint8_t {
        null,
        boolean,
        integer,
        other_number,
        string,
        array,
        object,
    };  // other_number: a fraction, an exponent, or an integer beyond 64 bits; kept as its text
    using Index = std::uint32_t;
    static constexpr Index kNone = ~Index{0};
    static constexpr std::size_t kMaxDepth = 32;

    /// Parses all of `text` (UTF-8, at most 4 GiB - 1). Fails with line and column in `file_name`.
    static Result<JsonDocument> parse(std::string_view text, const std::string& file_name);

    [[nodiscard]] Type type(Index node) const { return nodes_[node].type; }
    [[nodiscard]] std::int64_t integer(Index node) const { return nodes_[node].payload; }
    [[nodiscard]] bool boolean(Index node) const { return nodes_[node].payload != 0; }
    /// Of a string, its value; of an other_number, its digits. Valid as long as the document.
    [[nodiscard]] std::string_view text(Index node) const;

    /// The children of an array are first(a), next(…), … while != end(a); those of an object alternate
    /// between a string node (the key) and its value.
    [[nodiscard]] Index first(Index container) const { return container + 1; }
    [[nodiscard]] Index end(Index container) const { return nodes_[container].next; }
    [[nodiscard]] Index next(Index node) const { return nodes_[node].next; }
    /// Elements of an array, or members of an object.
    [[nodiscard]] std::size_t size(Index container) const {
        return static_cast<std::size_t>(nodes_[container].payload);
    }

    /// Bytes of the text up to the end of the node's first token. Rises with the node's number; a cheap
    /// place.
    [[nodiscard]] std::size_t end_offset(Index node) const { return nodes_[node].end_offset; }

    /// The value as JSON, without blanks.
    [[nodiscard]] std::string compact(Index node) const;
    /// "an object", "the string \"x\"", "the number 1.5": for messages of what was found.
    [[nodiscard]] std::string describe(Index node) const;
    /// Line and column (from 1) of the node's first character, in the text it was parsed from.
    [[nodiscard]] Location locate(Index node, std::string_view text, const std::string& file_name) const;

private:
    friend class JsonDocumentBuilder;

    struct Node {
        Type type = Type::null;
        std::uint32_t end_offset = 0;  ///< bytes of text read when the node's first token was complete
        Index next = 0;                ///< the node after this one and all that is in it
        /// Integer, boolean, count of children, or place << 32 | size in the arena.
        std::int64_t payload = 0;
    };
    std::vector<Node> nodes_;
    std::string arena_;
};

}  // namespace syncopate
