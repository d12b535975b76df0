// Python that the grammar does not know, left out where no kernel needs it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/kernel/triton/syntax/source_range.hpp"

namespace syncopate::kernel::triton {

struct Repaired {
    std::string text;                   ///< as long as the source, line by line
    std::vector<SourceRange> left_out;  ///< statements that stand as `0` there, in the order of the source
    std::vector<SourceRange> whole;     ///< those among them that have statements inside
};

/// Replaces the smallest statements that do not parse, each by `0`. Statements are told apart by their indentation, so
/// what is wrong with one does not reach the next. `parses`: whether a text is free of syntax errors.
[[nodiscard]] Repaired repaired(std::string_view source, const std::function<bool(std::string_view)>& parses);

}  // namespace syncopate::kernel::triton
