// Which rank runs which tiles. A kernel for one GPU that makes all of a tensor is shared out over ranks where
// the plan says that each rank makes a part (`produced`): a rank leaves out the tiles of which other ranks
// make all that they write. So how rows are sharded is the plan's affair, and the kernel knows nothing of it:
//
//      tiles of O          | t0 | t1 | t2 | t3 | t4 | t5 | t6 | t7 |
//      produced, in turns  | rank 0  | rank 1  | rank 1  | rank 0  |
//
// A rank that makes nothing of a tensor leaves out what it has from the start or by ops, or what reads that it does not have, where the
// program is one stage and its tiles make nothing but what the plan moves.
#pragma once

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Sets StageNodes::runs of the stage; it stays empty where all ranks run all tiles. A tile of which a rank
/// makes some and not all stays, for build to complain of.
[[nodiscard]] Status find_runs(const BoundKernel& program, std::size_t stage, Graph& graph);

/// A launch has programs: on cuda no rank is left without a tile.
[[nodiscard]] Status require_tiles(const StagedProgram& program, const Graph& graph, Device device);

}  // namespace syncopate::fuse
