// A whole number from text. Not by std::istringstream: seen on a machine whose Python modules bring another C++
// library along, extracting a number from a stream gave 0 and left the number where it was.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace syncopate {

/// The number that all of `text` spells in decimal; nullopt for anything else, and for what T does not hold.
template <std::integral T>
[[nodiscard]] std::optional<T> whole_number(std::string_view text) {
    T number{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

}  // namespace syncopate
