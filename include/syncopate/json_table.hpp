// Tables of members, which a reader and a writer of JSON both walk: a key stands in one place, and what is
// written can be read. A table is a class template over JsonReader or JsonWriter, with a function for each
// type:
//
//     bool value(JsonAt at, JsonOf<Wait> auto& wait) {
//         return this->row(at, "[signal, lag]", this->integer(wait.signal, 0, 99), this->integer(wait.lag, 0,
//         1));
//     }
//     bool value(JsonAt at, JsonOf<Step> auto& step) {
//         return this->object(at, required("waits", this->list(step.waits, of_waits)),
//                             optional("relay", step.relay != 0, this->integer(step.relay, 0, 9)));
//     }
//
// `integer`, `list` and the like return walks: functions of a JsonAt that read the value there, or append it
// to the text. Each returns false once an error is recorded (json_decoder.hpp); a writer always returns true.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "syncopate/json_decoder.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"

namespace syncopate {

/// T when it is read, const T when it is written.
template <typename T, typename Type>
concept JsonOf = std::same_as<std::remove_const_t<T>, Type>;

/// A member of an object. `written`: an optional one that is false is left out.
template <typename Walk>
struct JsonMember {
    std::string_view key;
    bool required;
    bool written;
    Walk walk;
    bool listed = true;  ///< messages name it among the keys that there are
};
template <typename Walk>
JsonMember<Walk> required(std::string_view key, Walk walk) {
    return {key, true, true, std::move(walk)};
}
template <typename Walk>
JsonMember<Walk> optional(std::string_view key, bool written, Walk walk) {
    return {key, false, written, std::move(walk)};
}

/// What was there once: read and never written, and no message names it.
template <typename Walk>
JsonMember<Walk> unlisted(std::string_view key, Walk walk) {
    return {key, false, false, std::move(walk), false};
}

/// For tables that are only read.
template <typename Walk>
JsonMember<Walk> optional(std::string_view key, Walk walk) {
    return optional(key, true, std::move(walk));
}

class JsonReader : public JsonDecoder {
public:
    static constexpr bool kReads = true;
    using JsonDecoder::JsonDecoder;

protected:
    template <typename... Walks>
    bool object(JsonAt at, const JsonMember<Walks>&... members) {
        constexpr std::size_t kCount = sizeof...(members);
        const std::array<JsonField, kCount> known{
            JsonField{members.key, members.required, members.listed}...};
        std::array<Index, kCount> found;
        if (!fields(at.node, *at.path, known, found)) return false;
        const Index* next = found.data();
        const auto read = [&](const auto& member) {
            const Index node = *next++;
            const JsonPath path{at.path, member.key};
            return !has(node) || member.walk({node, &path});
        };
        return (read(members) && ...);
    }

    /// An array of exactly these; `expected`, such as "[begin, end]", is for messages.
    template <typename... Walks>
    bool row(JsonAt at, std::string_view expected, const Walks&... walks) {
        if (document_.type(at.node) != Type::array || document_.size(at.node) != sizeof...(walks))
            return fail(at, "is " + document_.describe(at.node) + "; expected " + std::string(expected));
        JsonPath path{at.path, {}, 0};
        Index node = document_.first(at.node);
        const auto read = [&](const auto& walk) {
            const bool good = walk(JsonAt{node, &path});
            node = document_.next(node);
            ++path.index;
            return good;
        };
        return (read(walks) && ...);
    }

    /// An array of any number of elements; walk(at, element) reads each.
    template <typename Elements, typename Walk>
    auto list(Elements& elements, Walk walk) {
        return [this, &elements, walk](JsonAt at) {
            if (!is(at.node, *at.path, Type::array, "a list")) return false;
            elements.reserve(document_.size(at.node));
            return each(at.node, *at.path, [&](Index node, const JsonPath& path) {
                return walk(JsonAt{node, &path}, elements.emplace_back());
            });
        };
    }
    template <typename Elements, typename Walk>
    auto lines(Elements& elements, Walk walk) {
        return list(elements, std::move(walk));
    }
    /// The same of at most `limit` elements, which walk(at) keeps; `expected`, such as "a list of names", is for
    /// messages.
    template <typename Walk>
    auto elements(std::string_view expected, std::int32_t limit, Walk walk) {
        return [this, expected, limit, walk](JsonAt at) {
            return JsonDecoder::list(at.node, *at.path, expected, limit) &&
                   each(at.node, *at.path,
                        [&](Index node, const JsonPath& path) { return walk(JsonAt{node, &path}); });
        };
    }
    /// At most `limit` integers in [low, high].
    template <typename Int>
    auto integers(std::string_view expected, std::int32_t limit, std::int64_t low, std::int64_t high,
                  std::vector<Int>& out) {
        return elements(expected, limit, [this, low, high, &out](JsonAt at) {
            return integer(out.emplace_back(), low, high)(at);
        });
    }
    /// The name of what is read, in the version that this one reads.
    auto schema(std::string_view name) {
        return [this, name](JsonAt at) {
            std::string_view given;
            if (!string(at.node, *at.path, given)) return false;
            return given == name || fail(at, "is \"" + escaped(given) + "\"; this version reads \"" +
                                                 std::string(name) + "\"");
        };
    }
    using JsonDecoder::number;
    auto number(double& value, double low, double high) {
        return [this, &value, low, high](JsonAt at) {
            return JsonDecoder::number(at.node, *at.path, low, high, value);
        };
    }
    /// Calls add(key, where its value is) for each member of an object.
    template <typename Add>
    bool entries(JsonAt at, Add add) {
        if (!is(at.node, *at.path, Type::object, "an object")) return false;
        return members(at.node, *at.path, [&](Index, Index node, const JsonPath& path) {
            return add(path.key, JsonAt{node, &path});
        });
    }
    /// Where the key of a member is, for messages.
    static JsonAt key_of(JsonAt member) { return {member.node - 1, member.path}; }
    template <typename T, typename Walk>
    auto map(std::map<std::string, T>& entries_by_key, Walk walk) {
        return [this, &entries_by_key, walk](JsonAt at) {
            return entries(at, [&](std::string_view key, JsonAt value) {
                const auto [entry, added] = entries_by_key.try_emplace(std::string(key));
                return added ? walk(value, entry->second) : fail(value, "is there a second time");
            });
        };
    }

    template <std::integral Int>
    auto integer(Int& value, std::int64_t low = std::numeric_limits<Int>::min(),
                 std::int64_t high = std::numeric_limits<Int>::max()) {
        return [this, &value, low, high](JsonAt at) {
            return JsonDecoder::integer(at.node, *at.path, low, high, value);
        };
    }
    auto flag(bool& value) {
        return [this, &value](JsonAt at) { return boolean(at.node, *at.path, value); };
    }
    auto text(std::string& value) {
        return [this, &value](JsonAt at) {
            std::string_view read;
            if (!string(at.node, *at.path, read)) return false;
            value = read;
            return true;
        };
    }
    /// One of `names`, which are those of a `what`, by the number of its enumerator. The names must outlive
    /// the walk.
    template <typename Enum>
    auto name(Enum& value, std::string_view what, std::span<const std::string_view> names) {
        return [this, &value, what, names](JsonAt at) {
            std::size_t index = 0;
            if (!one_of(at.node, *at.path, what, names, index)) return false;
            value = static_cast<Enum>(index);
            return true;
        };
    }

    using JsonDecoder::fail;
    bool fail(JsonAt at, const std::string& problem) { return fail(at.node, *at.path, problem); }
};

class JsonWriter {
public:
    static constexpr bool kReads = false;

    [[nodiscard]] std::string take() { return std::move(out_); }
    /// With a blank behind each comma and colon from here on, for people.
    void spaced() { comma_ = ", ", colon_ = ": "; }

protected:
    template <typename... Walks>
    bool object(JsonAt at, const JsonMember<Walks>&... members) {
        std::string_view before = "{";
        const auto write = [&](const auto& member) {
            if (!member.written) return true;
            out_ += before;
            before = comma_;
            put_quoted(member.key);
            out_ += colon_;
            return member.walk(at);
        };
        const bool written = (write(members) && ...);
        out_ += before == "{" ? "{}" : "}";
        return written;
    }

    template <typename... Walks>
    bool row(JsonAt at, std::string_view /*expected*/, const Walks&... walks) {
        char before = '[';
        const auto write = [&](const auto& walk) {
            out_ += before;
            before = ',';
            return walk(at);
        };
        const bool written = (write(walks) && ...);
        out_ += ']';
        return written;
    }

    template <typename Elements, typename Walk>
    auto list(const Elements& elements, Walk walk) {
        return [this, &elements, walk](JsonAt at) {
            return write_all(elements, "", [&](const auto& element) { return walk(at, element); });
        };
    }
    /// A list with each element on a line of its own.
    template <typename Elements, typename Walk>
    auto lines(const Elements& elements, Walk walk) {
        return [this, &elements, walk](JsonAt at) {
            return write_all(elements, "\n", [&](const auto& element) { return walk(at, element); });
        };
    }
    template <typename T, typename Walk>
    auto map(const std::map<std::string, T>& entries_by_key, Walk walk) {
        return [this, &entries_by_key, walk](JsonAt at) {
            return write_all(
                entries_by_key, "",
                [&](const auto& entry) {
                    out_ += json_quoted(entry.first) + ":";
                    return walk(at, entry.second);
                },
                "{}");
        };
    }

    template <std::integral Int>
    auto integer(const Int& value, std::int64_t /*low*/ = 0, std::int64_t /*high*/ = 0) {
        return [this, &value](JsonAt) { return put(std::to_string(value)); };
    }
    auto number(const double& value, double /*low*/, double /*high*/) {
        return [this, &value](JsonAt) { return put(json_number(value)); };
    }
    auto schema(std::string_view name) {
        return [this, name](JsonAt) { return put_quoted(name); };
    }
    auto flag(const bool& value) {
        return [this, &value](JsonAt) { return put(value ? "true" : "false"); };
    }
    auto text(const std::string& value) {
        return [this, &value](JsonAt) { return put(json_quoted(value)); };
    }
    template <typename Enum>
    auto name(const Enum& value, std::string_view /*what*/, std::span<const std::string_view> names) {
        return [this, &value, names](JsonAt) { return put_quoted(names[static_cast<std::size_t>(value)]); };
    }

    bool put(std::string_view words) {
        out_ += words;
        return true;
    }
    /// A word that needs no escapes.
    bool put_quoted(std::string_view word) {
        out_ += '"';
        out_ += word;
        return put("\"");
    }
    /// All elements in brackets, with commas between them and `before` in front of each.
    template <typename Elements, typename Write>
    bool write_all(const Elements& elements, std::string_view before, Write write,
                   std::string_view brackets = "[]") {
        out_ += brackets.front();
        bool first = true;
        for (const auto& element : elements) {
            if (!first) out_ += comma_;
            first = false;
            out_ += before;
            if (!write(element)) return false;
        }
        out_ += brackets.back();
        return true;
    }

private:
    std::string out_;
    std::string_view comma_ = ",", colon_ = ":";
};

}  // namespace syncopate
