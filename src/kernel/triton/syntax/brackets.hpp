// Brackets that do not match: where a syntax error began, when the parser only notices statements later.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "syncopate/kernel/triton/syntax/source_range.hpp"

namespace syncopate::kernel::triton {

struct BracketError {
    SourceRange where;    ///< the bracket
    std::string message;  ///< without "syntax error"
};

/// The first bracket of Python source that closes what is not open, else the last one that is never closed.
/// Brackets in strings and comments do not count.
std::optional<BracketError> mismatched_bracket(std::string_view source);

/// The end of the string literal whose quote is at `begin`; the end of the line where a one-line string is not closed.
[[nodiscard]] std::size_t end_of_string(std::string_view source, std::size_t begin);

}  // namespace syncopate::kernel::triton
