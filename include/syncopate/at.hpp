// Ranks, ops, chunks and steps are numbered by std::int32_t; this is such a number as the index of a vector.
#pragma once

#include <cstddef>
#include <cstdint>

namespace syncopate {

[[nodiscard]] constexpr std::size_t at(std::int32_t number) { return static_cast<std::size_t>(number); }

}  // namespace syncopate
