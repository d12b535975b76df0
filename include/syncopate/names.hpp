// For messages about unknown names: the name that was probably meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncopate::plan {

/// Levenshtein's distance: single-character insertions, deletions and substitutions.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
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

/// "; did you mean "after"?" if one of `known` is close to `name`, else "".
template <typename Names>
std::string did_you_mean(std::string_view name, const Names& known) {
    constexpr std::size_t kLongestName = 64;
    if (name.size() > kLongestName) return {};
    std::string_view best;
    std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
    for (const std::string_view candidate : known) {
        if (candidate.size() > kLongestName) continue;
        const std::size_t distance = edit_distance(name, candidate);
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best.empty() ? std::string() : "; did you mean \"" + std::string(best) + "\"?";
}

}  // namespace syncopate::plan
