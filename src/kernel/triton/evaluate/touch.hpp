// What accesses touch, as the evaluation notes it.
#pragma once

#include <array>
#include <cstdint>

#include "kernel/triton/evaluate/value.hpp"
#include "kernel/triton/footprints/footprint.hpp"

namespace syncopate::kernel::triton {

inline constexpr std::size_t kMostAxes = 4;

/// Of a tile along one axis of the tile space; on a line of programs, `step` more for each.
struct Coordinate {
    std::int64_t at = -1;  ///< negative: not known
    std::int64_t step = 0;
};
using Coordinates = std::array<Coordinate, kMostAxes>;

/// What one access touches: boxes of one parameter, a range of Findings::boxes, never empty; or, while a line
/// of programs is evaluated, one that is not the same in all of them.
struct Touch {
    std::int32_t param = -1;
    bool write = false;
    bool exact = true;    ///< every element of the boxes is surely touched
    bool solid = true;    ///< … if what the kernel does there is done at all
    bool shadow = false;  ///< touched, but a stated footprint stands for it
    bool moves = false;   ///< of a line's programs each has its own: `begin` is the number of a MovingAccess
    bool adds = false;    ///< by an atomic, which reads and writes
    bool leaves = false;  ///< surely also elements outside of the tensor, which no box holds
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::int32_t along = -1;  ///< the axis of the tensor along which the boxes are moved; -1: they stand
    std::int64_t by = 0;      ///< … by so many elements
    std::int32_t walk = -1;   ///< index in Findings::walks; -1: it belongs to no one round of a tile's loop
    std::int32_t doubt =
        0;  ///< of how many branches on data, and the like, it depends on that it is done at all
};

struct PendingAdvance {
    std::int32_t param = -1;
    Advance advance;
};

}  // namespace syncopate::kernel::triton
