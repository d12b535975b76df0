#include "syncopate/names.hpp"

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
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

}  // namespace syncopate
