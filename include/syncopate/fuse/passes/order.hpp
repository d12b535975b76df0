// Order: in which order a rank's tiles run, given when each op is expected to end (arrivals.hpp).
//
// A tile runs when the last chunk that it needs is expected; among equals the kernel's own traversal decides,
// so that its locality in the cache is kept. With phases a
// tile starts earlier: it is sorted by the time at which its first iteration can run, then by its last chunk.
// Where loops differ in length, the longest tiles go first of those, or as the kernel states its order.
//
// Among tiles that can run alike, one whose stores make a chunk goes by that chunk's deadline: when the first
// op that sends it could start. So the rows that are sent first are made first, and what a rank keeps comes
// last. What a sum adds to is due a chunk after the contributions are expected: one is still under way then.
// Where contributions are read where they are, all of a sum is due at once, the own part with the last pull.
// Where tiles themselves store all that leaves, and nobody works on it but one sum a rank, no chunk is due
// before another. Then chunks take turns, a tile each: neighbours that read the same columns of an operand
// run side by side whatever chunk they make, and what is stored goes to all ranks alike.
//
// Stages that wait for each other's tiles: a program of the later one finds a place when the last round of
// the earlier one's tiles (as many as run at once) begins. Tiles that need nothing of that round come first.
// Among them and among the others the kernel's traversal decides, since neighbours that load the same operand
// are worth more than the moments between; and in that round is what makes the last chunks, where that lets
// the later stage begin with much more. One whose kernel can has a head start (head_start.hpp).
//
// The tiles of a persistent kernel that take unequal times are packed instead (pack.hpp), or where their loops wait
// for one range after another, dealt out to its programs (deal.hpp).
//
// Tiles that all start at once, each on a program of its own, keep the kernel's own traversal: none comes
// before another, and neighbours that read the same rows or columns run on neighbouring multiprocessors,
// whose requests for the same lines become one on a GPU.
//
// Tiles that wait for others of their kernel (Kernel::in_order) keep its traversal too: one would else spin for another that comes
// behind it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/scope.hpp"
#include "syncopate/fuse/passes/arrivals.hpp"
#include "syncopate/fuse/passes/head_start.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// The order of one stage.
struct StageOrder {
    std::vector<std::vector<std::int64_t>>
        tiles;  ///< by rank of the scope and slot: the tile that runs there
    /// By slot, the program that runs it, its slots in ascending order.
    std::vector<std::int64_t> program_of;
    std::size_t round = 1;   ///< tiles that run at once, about
    HeadStart head_start{};  ///< of its first programs
    bool in_turns = false;   ///< chunks take turns, a tile each
    bool phased = false;     ///< tiles walk their loops in phases, as what they need arrives
    std::int64_t trips = 0;  ///< iterations of the loop, where it is one, alike in all tiles; 0: not phased
    std::int64_t most_slots = 0;             ///< as kernel::Kernel's
    std::array<std::int64_t, 2> own_grid{};  ///< of a kernel that runs one tile a program: x and y
    std::vector<kernel::Loop> loops{};       ///< where they are told range by range (StageNodes::ranged)
};

/// By stage; tiles of the ranks of `scope` are ordered. Fails where the number of programs is not one that the kernel can run with.
[[nodiscard]] Result<std::vector<StageOrder>> order(const StagedProgram& program, const Graph& graph,
                                                    const Lowered& lowered, const Placement& placement,
                                                    const Arrivals& arrivals, const Options& options,
                                                    Scope scope = {});

}  // namespace syncopate::fuse
