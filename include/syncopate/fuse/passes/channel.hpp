// Channel: what goes from node to node, as its two ranks do it.
//
// Ranks of two nodes map no memory of each other's, so nobody can push or pull there, nor post. A transfer
// between them becomes two ops, a send of the source's rank and a receive of the destination's, each within
// its own rank as every later pass sees it. What is sent lies meanwhile in a tensor of the channel's, which
// takes no memory:
//
//     rank 0 of node 0   push A[0:64] to rank 2     send     A[0:64]         ─► A.channel[0:64]
//     rank 2 of node 1                              receive  A.channel[0:64] ─► A[0:64], after the send
//
// The one edge from node to node is that of a receive after its send, and the channel itself carries it. All
// else an op is `after` it awaits inside its node: of a transfer between nodes the side that is there. A send is
// over once its bytes have left, so it says nothing of its receive. What an op comes after by way of another node
// it therefore awaits itself, where that is:
//
//     node 0                                 node 1
//     rank 0   send A ───────────────────►   rank 2   receive A ──┐
//              send B, after send A          rank 3   pull A, after B's push: awaits receive A
//     rank 1   (B comes by memory)
//
// So in each node all keep the order that the plan gives them, and no memory is of two nodes. Where an op is after
// one that has no part in its node, a word is sent there.
//
// No rank waits for a send that cannot start. Sends and receives block: both sides of one begin before either
// ends. So they all get one order, by rounds:
//
//   - a pair of sides is one node of a graph with the edges of both. Where that has a circle, some rank would
//     wait for ever, and the plan is refused with the circle;
//   - a pair comes in a later round than all that it follows, through whatever ops, tiles and ranks; in a
//     round a rank sends once at most, and receives once;
//   - one order of all ops follows the edges and has each round in one piece. Each lane of each rank follows
//     that order, so the first op in it that has not ended can end. Tiles run in the order of the last rounds
//     that what they wait for comes after: none keeps a program from making what an earlier round sends.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Multiprocessors of cuda that carry it beside a kernel that waits for it: the grid leaves them free. Each has a communicator of
/// NCCL's to itself, and its part of what is sent.
inline constexpr std::int32_t kChannelBlocks = 4;

/// Splits what goes between nodes of the plan's mesh, by whichever backend: plan::check judges those. Fails where ops, with the
/// sums that lowering made of their own, wait for each other in a circle.
[[nodiscard]] Status split_between_nodes(Lowered& lowered);

/// Gives sides their rounds, and all ops an order with it (Graph::rounds, follows, sorted, start_order). Fails with the
/// circle where sides would wait for each other. Changes nothing where nothing goes between nodes.
[[nodiscard]] Status order_channel(const Lowered& lowered, Graph& graph);

/// How many tiles of the stage wait on `rank` for what the channel may have brought to its node: programs that run them leave it
/// its multiprocessors.
[[nodiscard]] std::int64_t waits_for_channel(const Schedule& schedule, std::int32_t rank, std::size_t stage);

/// Why the sides of a schedule, which may have been made or changed elsewhere, would not meet, or who would
/// wait for whom in a circle; empty if they all meet. Of a part: whether its ranks keep to the order of rounds. Between nodes
/// only a round is waited for, and rounds follow each other: a circle over nodes would hold, in one of them, a way from a
/// round back to it or to an earlier one, and that node's ranks find it in their part.
[[nodiscard]] std::string channel_objection(const Schedule& schedule);

}  // namespace syncopate::fuse
