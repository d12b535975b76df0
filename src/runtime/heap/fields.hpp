// The words of a line, and the numbers among them. Not by std::istringstream: seen on a machine whose Python
// modules bring another C++ library along, extracting a number from a stream gave 0 and left the number where
// it was.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <vector>

namespace syncopate::runtime {

/// The runs of characters between blanks (spaces, tabs, line ends); views into `text`.
inline std::vector<std::string_view> fields_of(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    std::vector<std::string_view> fields;
    for (std::size_t at = text.find_first_not_of(kBlanks); at != std::string_view::npos;) {
        const std::size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
        fields.push_back(text.substr(at, end - at));
        at = text.find_first_not_of(kBlanks, end);
    }
    return fields;
}

/// The number that all of `text` spells in decimal; nullopt for anything else.
template <std::integral T>
std::optional<T> number_from(std::string_view text) {
    T number{};
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

}  // namespace syncopate::runtime
