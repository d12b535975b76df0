// What an analysis may cost before it gives up. What a launch needs is far below; hostile kernels are not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "syncopate/kernel/model/tiles.hpp"

namespace syncopate::kernel::triton {

struct Effort {
    std::int64_t steps = 40'000'000;        ///< expressions and statements evaluated, and as many more …
    std::int64_t steps_a_program = 4096;    ///< … for each program of a launch,
    std::int64_t most_steps = 320'000'000;  ///< up to so many
    std::int64_t programs = std::int64_t{1} << 20;  ///< of a launch
    std::size_t boxes = 16'000'000;                 ///< touched by all programs together
    std::size_t memory = std::size_t{512} << 20;    ///< bytes of values at a time
    /// Without, every program is evaluated alone, and none many at once (Line): a measure of what lines are
    /// worth, and of whether they change anything.
    bool lines = true;
    Tiles tiles = Tiles::loops;
};

}  // namespace syncopate::kernel::triton
