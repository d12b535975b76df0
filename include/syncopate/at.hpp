// Ranks, ops, chunks, steps and axes are numbered by signed integers, and kinds by enums; this is such a number as the
// index of a vector.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace syncopate {

/// `number` must not be negative.
template <typename Number>
    requires std::integral<Number> || std::is_enum_v<Number>
[[nodiscard]] constexpr std::size_t at(Number number) {
    const auto index = static_cast<std::size_t>(number);
    assert(index <= std::numeric_limits<std::size_t>::max() / 2);
    return index;
}

}  // namespace syncopate
