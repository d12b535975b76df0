// How deep a JSON text is nested: a bound to ask for before a parser, or what walks its result, recurses as
// deep.
#pragma once

#include <cstddef>
#include <string_view>

namespace syncopate {

/// Far deeper than any file of ours.
inline constexpr std::size_t kMaxJsonNesting = 64;

/// The most brackets and braces open at once, outside strings. Any text will do; of one that is not JSON the
/// answer means nothing, but is an upper bound on how deep a parser gets. O(length).
[[nodiscard]] std::size_t json_nesting(std::string_view text);

}  // namespace syncopate
