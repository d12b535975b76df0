#include "syncopate/names.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/utf8.hpp"

namespace syncopate {

std::string escaped(std::string_view text, std::size_t limit) {
    std::string safe;
    for (std::size_t at = 0; at < text.size();) {
        const Character c = character_at(text, at);
        if (at + c.bytes.size() > limit) return safe + "…";
        at += c.bytes.size();
        if (!is_hidden(c)) {
            safe += c.bytes;
            continue;
        }
        for (const char byte : c.bytes)
            fmt::format_to(std::back_inserter(safe), "\\x{:02x}", static_cast<unsigned char>(byte));
    }
    return safe;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            row[j + 1] = std::min({last[j] + (a[i] == b[j] ? 0 : 1), last[j + 1] + 1, row[j] + 1});
            const bool exchanged = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
            if (exchanged) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
        }
        before = std::exchange(last, row);
    }
    return last.back();
}

bool same_but_for_case(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace syncopate
