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

/// How many insertions, deletions and substitutions of single characters, and exchanges of two neighbours, lead from
/// one to the other (optimal string alignment).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// Whether two names differ in case alone.
[[nodiscard]] bool same_but_for_case(std::string_view a, std::string_view b);

/// "; did you mean "after"?" if one of `known` is close to `name`, else "". One that differs in case alone is closest;
/// then come few wrong characters; then a name of which `name` is the first word, as w is of w_ptr.
template <typename Names>
[[nodiscard]] std::string did_you_mean(std::string_view name, const Names& known) {
    constexpr std::size_t kLongestName = 64;
    if (name.size() > kLongestName) return {};
    std::string_view best;
    std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
    std::string_view longer;
    for (const std::string_view candidate : known) {
        if (candidate.size() > kLongestName) continue;
        const bool begins = candidate.starts_with(name) && candidate.substr(name.size()).starts_with('_');
        if (begins && !name.empty() && longer.empty()) longer = candidate;
        const bool same = same_but_for_case(name, candidate);
        const std::size_t distance = same ? 0 : edit_distance(name, candidate);
        if (!same && distance >= std::max(name.size(), candidate.size())) continue;  // nothing in common
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    if (best.empty()) best = longer;
    return best.empty() ? std::string() : "; did you mean \"" + std::string(best) + "\"?";
}

}  // namespace syncopate
