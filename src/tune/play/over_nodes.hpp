// Over nodes: an operator's call on several machines and what joins them. The player plays all ranks' work graph,
// with what goes between nodes as the schedule has it: by rounds, whose sides begin and end together.
//
//     rank 0   tiles ──► send, round 0 ──► receive, round 1 ──► copies in its node ──► tiles that read them
//     rank 4   receive, round 0 ──► send, round 1 …
//
// What the pair of the vendors' libraries takes is told in its favour: its collective is as fast as the slower of its
// two levels alone, and crosses in as many steps as halving the nodes takes.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

/// Of a problem of several nodes, and a machine that knows a network. `kUnknownUs` where the strategy makes no
/// program.
[[nodiscard]] Estimate estimate_over_nodes(const Problem& problem, const Machine& machine,
                                           const Strategy& strategy);

/// `transfers` (fuse::transfers_of), so that it can be simulated: a receive fetches what its send has, and a side
/// comes after all sides of its rank's round before.
void meet_between_nodes(const fuse::Lowered& lowered, const fuse::Graph& graph, plan::Plan& transfers);

/// The ops of each rank in the order in which it starts them, and where each op of the plan has gone.
struct Started {
    plan::Plan plan;
    std::vector<std::vector<std::int32_t>> place;  ///< by rank and index
    [[nodiscard]] plan::OpRef of(plan::OpRef ref) const;
};
[[nodiscard]] Started in_start_order(const plan::Plan& transfers, const fuse::Graph& graph);

}  // namespace syncopate::tune
