// The words of a line. Not by std::istringstream (whole_number.hpp says why).
#pragma once

#include <algorithm>
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

}  // namespace syncopate::runtime
