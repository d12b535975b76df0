// How messages show names that come from a file: safe to print, and with the name that was probably meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace syncopate {

/// `text`, safe to print: the bytes of what a terminal would act on or not show (utf8.hpp) as \xNN; cut
/// before the character that goes beyond `limit` bytes. Names in any script stay as they are.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t limit = 60);

/// Levenshtein's distance: single-character insertions, deletions and substitutions.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// "; did you mean "after"?" if one of `known` is close to `name`, else "".
template <typename Names>
[[nodiscard]] std::string did_you_mean(std::string_view name, const Names& known) {
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

}  // namespace syncopate
