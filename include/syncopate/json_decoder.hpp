// What any strict decoder of a JsonDocument needs: known keys, types, ranges, and errors that say where.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "syncopate/json_document.hpp"

namespace syncopate {

/// Where a decoder is: a list through the stack frames, turned into text only for an error.
struct JsonPath {
    const JsonPath* parent = nullptr;
    std::string_view key{};
    std::int64_t index = -1;

    /// "ranks[2].ops[5].src"
    [[nodiscard]] std::string to_string() const;
};

/// Where a value is.
struct JsonAt {
    JsonDocument::Index node = 0;
    const JsonPath* path = nullptr;
};

struct JsonField {
    std::string_view key;
    bool required;
    bool listed = true;  ///< messages name it among the keys that there are
};

/// "a, b, c"
[[nodiscard]] std::string join_words(std::span<const std::string_view> words);

/// The names of an enumeration's first `Count` enumerators, by name_of.
template <typename Enum, std::size_t Count>
[[nodiscard]] std::span<const std::string_view> names_of() {
    static const auto kNames = [] {
        std::array<std::string_view, Count> all;
        for (std::size_t i = 0; i < Count; ++i) all[i] = name_of(static_cast<Enum>(i));
        return all;
    }();
    return kNames;
}

/// The base of a decoder. Each method returns false once an error is recorded, and the caller then stops: the
/// first error is the one kept.
class JsonDecoder {
public:
    using Index = JsonDocument::Index;
    using Type = JsonDocument::Type;

    /// The arguments must outlive the decoder; `text` is what `document` was parsed from.
    /// `subject` names the whole document in messages.
    JsonDecoder(const JsonDocument& document, std::string_view text, const std::string& file_name,
                std::string_view subject = "the plan")
        : document_(document), text_(text), file_name_(file_name), subject_(subject) {}

    [[nodiscard]] const Error& error() const { return *error_; }  ///< after a method returned false

protected:
    static bool has(Index node) { return node != JsonDocument::kNone; }

    /// Finds the values of the known keys of an object: values[i] belongs to known[i], kNone if it is not
    /// there.
    bool fields(Index node, const JsonPath& path, std::span<const JsonField> known, std::span<Index> values);
    bool is(Index node, const JsonPath& path, Type type, std::string_view expected);
    bool list(Index node, const JsonPath& path, std::string_view expected, std::int32_t limit);
    bool string(Index node, const JsonPath& path, std::string_view& out);
    bool boolean(Index node, const JsonPath& path, bool& out);
    /// A string that is one of `names`, of a `what`; `index`: which.
    bool one_of(Index node, const JsonPath& path, std::string_view what,
                std::span<const std::string_view> names, std::size_t& index);
    /// A number of any kind in [lowest, highest].
    bool number(Index node, const JsonPath& path, double lowest, double highest, double& out);

    template <typename Int>
    bool integer(Index node, const JsonPath& path, std::int64_t lowest, std::int64_t highest, Int& out) {
        std::int64_t value = 0;
        if (!integer_in(node, path, lowest, highest, value)) return false;
        out = static_cast<Int>(value);
        return true;
    }

    /// Calls decode(element, its path) for each element of an array.
    template <typename Decode>
    bool each(Index array, const JsonPath& path, Decode decode) {
        std::int64_t index = 0;
        for (Index node = document_.first(array); node != document_.end(array); node = document_.next(node)) {
            if (!decode(node, JsonPath{&path, {}, index++})) return false;
        }
        return true;
    }

    /// Calls decode(key, value, its path) for each member of an object; a key may come twice.
    template <typename Decode>
    bool members(Index object, const JsonPath& path, Decode decode) {
        for (Index key = document_.first(object); key != document_.end(object);) {
            const Index value = document_.next(key);
            if (!decode(key, value, JsonPath{&path, document_.text(key)})) return false;
            key = document_.next(value);
        }
        return true;
    }

    /// Records "PATH PROBLEM" at the node's place; returns false.
    bool fail(Index node, const JsonPath& path, const std::string& problem);
    /// Records what a decoder of a part has recorded.
    bool fail(Error error) {
        error_ = std::move(error);
        return false;
    }

    const JsonDocument& document_;
    std::string_view text_;
    const std::string& file_name_;
    Location context_;  ///< the rank and op being decoded, for errors

private:
    bool integer_in(Index node, const JsonPath& path, std::int64_t lowest, std::int64_t highest,
                    std::int64_t& out);

    std::string_view subject_;
    std::optional<Error> error_;
};

}  // namespace syncopate
