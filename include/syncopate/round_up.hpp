// Sizes in whole units of something.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace syncopate {

/// `value`, or the next larger multiple of `unit`.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/// How many units of `unit`, which is positive, hold `value`; of a negative one what is next to it above.
template <std::integral T>
[[nodiscard]] constexpr T ceil_div(T value, std::type_identity_t<T> unit) {
    return value / unit + (value % unit > 0 ? 1 : 0);
}

}  // namespace syncopate
