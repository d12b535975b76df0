// What of a kernel is taken as a tile.
#pragma once

#include <cstdint>

namespace syncopate::kernel {

enum class Tiles : std::uint8_t {
    loops,  ///< a round of a loop over tiles, where there is one; else what a program does
    /// The same, also of a loop within one over groups, in which each program takes its tiles of the group: these run in the
    /// kernel's own order, and in no other one.
    walks,
    programs,  ///< what a program does
};

}  // namespace syncopate::kernel
