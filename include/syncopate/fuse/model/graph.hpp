// The work graph: everything that happens in a call, and what must be complete before what.
//
//   begin ──► start ──► copy ──► tiles ──► chunk ──► copy ──► sum ──► end
//   (rank 0)  (rank 1)  (rank 1, what rank 0 holds)            (rank 0)
//
// An op of the lowered plan is one node: a copy, a sum, or one rank's part in a collective. Tiles of one
// stage on one rank that read the same regions are one node, as they need the same; where a tile walks a
// loop, an edge says from which iteration on it needs the other node. A chunk node is complete when all tiles
// that write into the chunk are. `begin`, `start`, `kernel` and `end` are the boundaries of a rank's call:
// what its user has given may be read from `begin` on, its transfers may start from `start` on, its tiles
// have all ended at `kernel`, and the user may touch memory again from `end` on. An edge of lag 1 comes from
// the call before.
//
// Regions decide all edges: build (build.hpp) makes those inside a call, guard (guard.hpp) those between
// ranks' calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/short_list.hpp"

namespace syncopate::fuse {

using NodeId =
    std::int32_t;  ///< index in Graph::nodes; an op's is its number over all ranks, by rank and index
inline constexpr NodeId kNoNode = -1;

/// What happens in one node.
struct Node {
    enum class Kind : std::uint8_t { copy, sum, collective, tiles, chunk, begin, start, kernel, end };
    Kind kind = Kind::copy;
    std::int32_t rank = 0;   ///< who carries it out
    std::int32_t stage = 0;  ///< of tiles and chunks
    /// Of an op: in its rank's list; of tiles: their class; of a chunk: among its rank's.
    std::int32_t index = 0;
};

/// `from` must be complete before the node that holds the edge, or before iteration `iteration` of its tiles'
/// loop.
struct Edge {
    std::int64_t iteration = 0;  ///< 0: before the node starts
    NodeId from = kNoNode;
    std::int32_t lag = 0;  ///< 1: `from` of the call before
    auto operator<=>(const Edge&) const = default;
};
using Edges = plan::ShortList<Edge, 1>;  ///< most nodes have one

/// Iterations [begin, end) of loop `loop` of some tiles need `op`.
struct Use {
    std::int32_t loop = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    NodeId op = kNoNode;
    auto operator<=>(const Use&) const = default;
};

/// Who carries out an op. The last four cost no transfer: somebody who reads or writes the data anyway goes
/// to where it is.
enum class Carrier : std::uint8_t {
    own,          ///< a transfer of its own, in a lane
    programs,     ///< a sum: the kernel's programs, when they have made their tiles
    tile_stores,  ///< the tiles that make the source store it at the destination, too
    tile_loads,   ///< the tiles that read the destination load it from the source
    sum_loads,    ///< the sum that adds it reads it at the source
    sum_stores,   ///< the sum that makes it stores it at the destination, too
};

/// Tiles of a stage, rising. Ranks that run the same tiles share them: of many ranks and chunks they are most of a graph.
class Makers {
public:
    Makers() = default;
    explicit Makers(std::vector<std::int64_t> tiles)
        : tiles_(std::make_shared<const std::vector<std::int64_t>>(std::move(tiles))) {}
    [[nodiscard]] auto begin() const { return span().begin(); }
    [[nodiscard]] auto end() const { return span().end(); }
    [[nodiscard]] std::size_t size() const { return span().size(); }
    [[nodiscard]] bool empty() const { return size() == 0; }

private:
    [[nodiscard]] std::span<const std::int64_t> span() const {
        return tiles_ ? std::span<const std::int64_t>(*tiles_) : std::span<const std::int64_t>();
    }

    std::shared_ptr<const std::vector<std::int64_t>> tiles_;
};

/// A region that the tiles of one stage make and some op needs.
struct Made {
    NodeId node = kNoNode;
    std::int32_t stage = 0;
    plan::Chunk chunk;
    Makers makers;
};

struct Graph {
    std::vector<Node> nodes;
    std::vector<Edges> in;                ///< by node: what must be complete before it, sorted
    std::vector<NodeId> first_op;         ///< by rank: the node of its op 0; one more entry for the end
    std::vector<Carrier> carriers;        ///< by op
    std::vector<std::vector<Made>> made;  ///< by rank, those of one stage after another's
    std::vector<bool> written;            ///< by tensor: some stage writes it
    /// An op that needs what tiles of the stage make on the rank, in place of an edge from a chunk.
    struct Elsewhere {
        NodeId op = kNoNode;
        std::int32_t stage = 0;
        std::int32_t rank = 0;
    };
    /// Of a part (Scope), where only that much matters of other nodes' chunks (build_makes.hpp): these have no nodes.
    std::vector<Elsewhere> elsewhere;
    struct StageNodes {
        std::vector<std::int32_t> class_of;  ///< by tile
        std::vector<NodeId> first;           ///< by rank: the node of class 0
        std::int32_t num_classes = 0;
        /// By tiles node, from first[0] on: the ops that its tiles carry out.
        std::vector<std::vector<NodeId>> loads;
        /// By tiles node likewise: the chunks of earlier stages that its tiles await. Only of programs
        /// without ops, whose stages overlap; otherwise a stage starts when the one before it has ended.
        std::vector<std::vector<NodeId>> awaits;
        /// Where tiles differ in their loops, or a loop takes its ranges in any order (`ranged`): by class
        /// and loop, how often it runs; and by tiles node, from first[0] on, which iterations need what,
        /// sorted. Their edges say only whether an op is needed before the tile starts (iteration 0).
        bool ranged = false;
        std::vector<std::vector<std::int64_t>> trips;
        std::vector<std::vector<Use>> uses;
        /// By rank and tile: whether that rank runs it; empty: all ranks run all.
        std::vector<std::vector<bool>> runs;
    };
    std::vector<StageNodes> stages;
    std::vector<bool> overlapping;  ///< by stage: it starts beside the one before it; empty: none does
    std::vector<NodeId> begin, start, kernel, end;  ///< by rank
    /// One order in which all ops can start and complete; each rank starts its ops as they come in it. That
    /// is the order of its list, unless starting them one after another would block for ever (its first op
    /// waits for its second): then all ranks follow one topological order of `after`, which takes ops of
    /// small index first.
    std::vector<NodeId> sorted;
    std::vector<std::vector<NodeId>> start_order;  ///< by rank
    /// By op: of a side of a channel its round (channel.hpp), else -1; empty: nothing goes between nodes.
    std::vector<std::int32_t> rounds;
    /// By op likewise: the last round that it is in or comes after; -1: it needs none.
    std::vector<std::int32_t> follows;

    /// By rank, whether tiles make something that some op needs.
    [[nodiscard]] std::vector<bool> makers() const {
        std::vector<bool> makers(made.size(), false);
        for (std::size_t rank = 0; rank < made.size(); ++rank) makers[rank] = !made[rank].empty();
        for (const Elsewhere& one : elsewhere) makers[at(one.rank)] = true;
        return makers;
    }
    /// Whether tiles of the stage make such.
    [[nodiscard]] bool makes(std::size_t stage) const {
        const auto is_of = [&](const auto& one) { return at(one.stage) == stage; };
        return std::ranges::any_of(elsewhere, is_of) || std::ranges::any_of(made, [&](const auto& of_rank) {
                   return std::ranges::any_of(of_rank, is_of);
               });
    }
    [[nodiscard]] std::int32_t round(NodeId op) const { return rounds.empty() ? -1 : rounds[at(op)]; }
    [[nodiscard]] NodeId num_ops() const { return first_op.back(); }
    [[nodiscard]] bool is_op(NodeId node) const { return node < num_ops(); }
    [[nodiscard]] NodeId op(plan::OpRef ref) const { return first_op[at(ref.rank)] + ref.index; }
    [[nodiscard]] plan::OpRef ref(NodeId op) const {
        const Node& node = nodes[at(op)];
        return {node.rank, node.index};
    }
    [[nodiscard]] const Node& operator[](NodeId node) const { return nodes[at(node)]; }
    [[nodiscard]] Carrier carrier(NodeId op) const { return carriers[at(op)]; }
    [[nodiscard]] NodeId tiles(std::size_t stage, std::int32_t rank, std::int64_t tile) const {
        const StageNodes& of = stages[stage];
        return of.first[at(rank)] + of.class_of[at(tile)];
    }
    [[nodiscard]] const Made& made_at(NodeId chunk) const {
        const Node& node = (*this)[chunk];
        return made[at(node.rank)][at(node.index)];
    }
    [[nodiscard]] std::span<const NodeId> awaited_by(std::size_t stage, NodeId tiles) const {
        const StageNodes& of = stages[stage];
        return of.awaits[at(tiles - of.first.front())];
    }
    /// Whether `rank` runs `tile` of the stage.
    [[nodiscard]] bool runs(std::size_t stage, std::int32_t rank, std::int64_t tile) const {
        const StageNodes& of = stages[stage];
        return of.runs.empty() || of.runs[at(rank)][at(tile)];
    }
    /// How many tiles of the stage it runs.
    [[nodiscard]] std::size_t num_run(std::size_t stage, std::int32_t rank) const {
        const StageNodes& of = stages[stage];
        if (of.runs.empty()) return of.class_of.size();
        const std::vector<bool>& run = of.runs[at(rank)];
        return static_cast<std::size_t>(std::ranges::count(run, true));
    }
    [[nodiscard]] std::span<const Use> uses_of(std::size_t stage, NodeId tiles) const {
        const StageNodes& of = stages[stage];
        return of.uses[at(tiles - of.first.front())];
    }
    [[nodiscard]] std::span<const NodeId> loads_of(std::size_t stage, NodeId tiles) const {
        const StageNodes& of = stages[stage];
        return of.loads[at(tiles - of.first.front())];
    }
};

}  // namespace syncopate::fuse
