// Deal: which program of a persistent kernel runs which tile, where loops differ in length and tiles begin in a stated order.
//
// Program p of P runs slots p, p + P, …. With the longest tiles first, program 0 would get the longest of every
// round and program P - 1 the shortest, and where K and V come in parts, the longest tiles of every part:
//
//      program 0 | 48  40  32  24 |          dealt:    48  33  40  25
//      program 7 | 41  33  25  17 |                    41  40  25  32
//
// So a tile goes, in that order, to the program that will be free first, or in each round the longest to the program
// that has least to do, and then single tiles are exchanged within a round; the better one is kept. Each program runs its
// tiles in the order stated: no one that waits comes before one that makes, and a tile begins no more than some two of the longest
// tiles later than those behind it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncopate::fuse {

/// By slot, which of the tiles runs there. `times`: how long each takes, in the order in which they are to begin.
[[nodiscard]] std::vector<std::size_t> deal_tiles(std::span<const double> times, std::size_t programs);

}  // namespace syncopate::fuse
