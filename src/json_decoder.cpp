#include "syncopate/json_decoder.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate {

std::string JsonPath::to_string() const {
    std::string text = parent == nullptr ? std::string() : parent->to_string();
    if (index >= 0) return text + fmt::format("[{}]", index);
    if (key.empty()) return text;
    return text.empty() ? escaped(key) : text + "." + escaped(key);
}

std::string join_words(std::span<const std::string_view> words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : ", ") + std::string(words[i]);
    return text;
}

bool JsonDecoder::fields(Index node, const JsonPath& path, std::span<const JsonField> known,
                         std::span<Index> values) {
    if (document_.type(node) != Type::object) {
        return fail(node, path, "is " + document_.describe(node) + "; expected an object");
    }
    std::fill(values.begin(), values.end(), JsonDocument::kNone);
    const bool known_and_once = members(node, path, [&](Index key, Index value, const JsonPath& inner) {
        const std::string_view name = inner.key;
        std::size_t slot = 0;
        while (slot < known.size() && known[slot].key != name) ++slot;
        if (slot == known.size()) {
            std::vector<std::string_view> keys;
            for (const JsonField& field : known)
                if (field.listed) keys.push_back(field.key);
            const std::string hint = did_you_mean(name, keys);
            return fail(key, path,
                        "has an unknown key \"" + escaped(name) + "\"" +
                            (hint.empty() ? "; the keys here are " + join_words(keys) : hint));
        }
        if (has(values[slot])) return fail(key, path, "has the key \"" + escaped(name) + "\" twice");
        values[slot] = value;
        return true;
    });
    if (!known_and_once) return false;
    std::string missing;
    for (std::size_t slot = 0; slot < known.size(); ++slot) {
        if (known[slot].required && !has(values[slot])) {
            missing += fmt::format("{}\"{}\"", missing.empty() ? "" : ", ", known[slot].key);
        }
    }
    if (missing.empty()) return true;
    return fail(node, path,
                document_.size(node) == 0 ? "is an empty object; it needs " + missing : "lacks " + missing);
}

bool JsonDecoder::is(Index node, const JsonPath& path, Type type, std::string_view expected) {
    return document_.type(node) == type ||
           fail(node, path, fmt::format("is {}; expected {}", document_.describe(node), expected));
}

bool JsonDecoder::list(Index node, const JsonPath& path, std::string_view expected, std::int32_t limit) {
    if (!is(node, path, Type::array, expected)) return false;
    return document_.size(node) <= static_cast<std::size_t>(limit) ||
           fail(node, path,
                fmt::format("has {} entries; at most {} are allowed", document_.size(node), limit));
}

bool JsonDecoder::integer_in(Index node, const JsonPath& path, std::int64_t lowest, std::int64_t highest,
                             std::int64_t& out) {
    if (document_.type(node) != Type::integer) {
        return fail(node, path, "is " + document_.describe(node) + "; expected an integer that fits 64 bits");
    }
    const std::int64_t value = document_.integer(node);
    if (value < lowest || value > highest) {
        return fail(node, path, fmt::format("is {}; expected {} to {}", value, lowest, highest));
    }
    out = value;
    return true;
}

bool JsonDecoder::string(Index node, const JsonPath& path, std::string_view& out) {
    if (!is(node, path, Type::string, "a string")) return false;
    out = document_.text(node);
    return true;
}

bool JsonDecoder::boolean(Index node, const JsonPath& path, bool& out) {
    if (!is(node, path, Type::boolean, "true or false")) return false;
    out = document_.boolean(node);
    return true;
}

bool JsonDecoder::one_of(Index node, const JsonPath& path, std::string_view what,
                         std::span<const std::string_view> names, std::size_t& index) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    index = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
    return index < names.size() || fail(node, path,
                                        fmt::format("is \"{}\", not a known {}; expected one of {}",
                                                    escaped(name), what, join_words(names)));
}

bool JsonDecoder::number(Index node, const JsonPath& path, double lowest, double highest, double& out) {
    double value = 0;
    if (document_.type(node) == Type::integer) {
        value = static_cast<double>(document_.integer(node));
    } else if (document_.type(node) == Type::other_number) {
        const std::string_view digits = document_.text(node);
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    } else {
        return fail(node, path, "is " + document_.describe(node) + "; expected a number");
    }
    if (!(value >= lowest && value <= highest)) {
        return fail(node, path, fmt::format("is {:g}; expected {:g} to {:g}", value, lowest, highest));
    }
    out = value;
    return true;
}

bool JsonDecoder::fail(Index node, const JsonPath& path, const std::string& problem) {
    const std::string where = path.to_string();
    error_ = Error{(where.empty() ? std::string(subject_) : where) + " " + problem,
                   document_.locate(node, text_, file_name_)};
    error_->location.rank = context_.rank;
    error_->location.op = context_.op;
    return false;
}

}  // namespace syncopate
