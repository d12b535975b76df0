// Tile sums: a tile that itself adds what the other ranks sent for it.
//
// A sum (lower.hpp) reads each contribution and the own one, and writes the total. The own one is in the
// registers of the program that stores the tile; so that program adds the others, where they have come, and
// stores the total at once. Nothing is left to do after the kernel:
//
//      tiles of one program   | for rank 2 | for rank 3 | for rank 0 | own: + staging[0] + staging[1] + … |
//      contributions          |      … from rank 3 … | from rank 0 … | from rank 2 … |
//
// The tile is also stored in its own place, as ever. Where a contribution does not come within the op's
// patience, the tile is marked as late and the program goes on; after the kernel the sum does the late tiles,
// and no others. So no tile waits for another rank without bound, and kernels of two ops that two GPUs run in
// different orders cannot keep each other from running.
//
// In an all-reduce in one step every tile does so: it is stored in every rank's staging, posted, and then
// waits for the same tile of the others (plan::push_to_all).
//
// It takes stores through a descriptor made on the host, of whole blocks, written out in the kernel: there
// the tile's coordinates and its value stand in one line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/program.hpp"

namespace syncopate::fuse {

/// Why the tiles of `program` (its plan lowered) cannot do the sum `ref`; empty if they can.
[[nodiscard]] std::string tile_sum_objection(const Program& program, const Lowered& lowered, plan::OpRef ref);

/// A tile and what it writes of a sum's destination.
struct SummedTile {
    std::int64_t tile = 0;
    plan::Region region;
    std::int32_t blocks = 1;  ///< of the descriptor, which together are the region
};

/// A sum that tiles do.
struct TiledSum {
    std::int32_t tensor = 0;  ///< the kernel's own
    /// The local copy that brings the own contribution to the destination, if that is another tensor. It must
    /// go inline: then the tile's own store does it, before the sum is stored.
    std::optional<plan::OpRef> writer;
    std::vector<SummedTile> tiles;
};

/// The sums that tiles do: all sums of one tensor of the kernel's, unless there is an objection to one of
/// them.
[[nodiscard]] std::map<plan::OpRef, TiledSum> sum_in_tiles(const Program& program, const Lowered& lowered);

}  // namespace syncopate::fuse
