// Over nodes: what joins them, as the player simulates it. What goes between nodes goes by rounds, whose sides begin
// and end together.
//
//     rank 0   tiles ──► send, round 0 ──► receive, round 1 ──► copies in its node ──► tiles that read them
//     rank 4   receive, round 0 ──► send, round 1 …
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::tune {

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
