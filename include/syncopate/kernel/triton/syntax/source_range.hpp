// Places in a source text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

/// A half-open byte range of the source, with the 1-based line and column, in bytes, of its first byte.
struct SourceRange {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::int32_t line = 0;
    std::int32_t column = 0;
};

/// An error about a range of a source: its line, its column in characters, and an excerpt.
[[nodiscard]] Error error_at(std::string_view source, const std::string& file, const SourceRange& range,
                             std::string message);

}  // namespace syncopate::kernel::triton
