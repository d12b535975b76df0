// How a message shows the place in a text that it is about: the line, and under it a caret with the rest of
// the range underlined.
//
//      total = tl.load(x_ptr + index)
//                      ^~~~~~~~~~~~~
//
// Texts come from users, so every function takes any bytes: what a terminal would not show as it stands
// (control characters, bytes that are no UTF-8, marks that reorder text) becomes `?`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace syncopate {

/// The line that byte `begin` of `text` is on and, on a second line, a caret under it; bytes up to `end` on
/// the same line are underlined. Tabs of the line are repeated before the caret, and characters that fill two
/// columns or none are counted so, so the caret stands under its place in any terminal. A line of more than
/// 160 columns is shown around the caret, with `…` where it is cut. No trailing newline.
[[nodiscard]] std::string excerpt(std::string_view text, std::size_t begin, std::size_t end);

/// The 1-based column of byte `offset` in its line: characters, a tab being one, as editors count them.
[[nodiscard]] std::int32_t column_of(std::string_view text, std::size_t offset);

/// `text` on one line and at most `most` characters long, with `…` in place of what is cut.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most = 80);

}  // namespace syncopate
