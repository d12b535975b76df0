// A value of a JSON document and where in it that is; what is not as expected is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "fuse/json_names.hpp"

namespace syncopate::fuse {

/// What is thrown to leave the reader; never crosses the face of this layer.
struct JsonFault {
    std::string message;
};

/// A value and where it is, for messages.
class JsonReader {
public:
    JsonReader(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

    [[noreturn]] void fail(const std::string& what) const { throw JsonFault{path_ + ": " + what}; }

    /// The members of an object: all of `required`, some of `optional`, no other.
    void expect_keys(std::initializer_list<std::string_view> required,
                     std::initializer_list<std::string_view> optional = {}) const {
        if (!json_->is_object()) fail("expected an object");
        for (const auto& item : json_->items()) {
            const auto known = [&](std::string_view key) { return item.key() == key; };
            if (std::none_of(required.begin(), required.end(), known) &&
                std::none_of(optional.begin(), optional.end(), known)) {
                fail("unknown key \"" + item.key() + "\"");
            }
        }
        for (const std::string_view key : required) {
            if (!json_->contains(std::string(key))) fail("missing key \"" + std::string(key) + "\"");
        }
    }
    [[nodiscard]] bool has(const std::string& key) const { return json_->contains(key); }
    [[nodiscard]] JsonReader at(const std::string& key) const {
        return {(*json_)[key], path_.empty() ? key : path_ + "." + key};
    }
    [[nodiscard]] JsonReader at(std::size_t index) const {
        return {(*json_)[index], path_ + "[" + std::to_string(index) + "]"};
    }
    [[nodiscard]] std::size_t length(std::optional<std::size_t> exactly = {}) const {
        if (!json_->is_array()) fail("expected an array");
        if (exactly && json_->size() != *exactly) fail("expected " + std::to_string(*exactly) + " entries");
        return json_->size();
    }
    [[nodiscard]] std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const {
        if (!json_->is_number_integer()) fail("expected an integer");
        const auto value = json_->get<std::int64_t>();
        const bool wraps = json_->is_number_unsigned() && value < 0;
        if (wraps || value < low || value > high) {
            fail("expected an integer from " + std::to_string(low) + " to " + std::to_string(high));
        }
        return value;
    }
    [[nodiscard]] std::int32_t int32(std::int32_t low,
                                     std::int32_t high = std::numeric_limits<std::int32_t>::max()) const {
        return static_cast<std::int32_t>(integer(low, high));
    }
    [[nodiscard]] std::int32_t index_below(std::size_t end) const {
        return static_cast<std::int32_t>(integer(0, static_cast<std::int64_t>(end) - 1));
    }
    [[nodiscard]] std::string text() const {
        if (!json_->is_string()) fail("expected a string");
        return json_->get<std::string>();
    }
    [[nodiscard]] bool boolean() const {
        if (!json_->is_boolean()) fail("expected true or false");
        return json_->get<bool>();
    }
    [[nodiscard]] const Json& json() const { return *json_; }

private:
    const Json* json_;
    std::string path_;
};

}  // namespace syncopate::fuse
