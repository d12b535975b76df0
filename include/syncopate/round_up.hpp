// Sizes in whole units of something.
#pragma once

#include <cstdint>

namespace syncopate {

/// `value`, or the next larger multiple of `unit`.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace syncopate
