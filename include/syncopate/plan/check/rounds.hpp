// Rounds: that what goes between nodes can meet.
//
// A transfer between nodes is a send and a receive, and both block until both ranks are there. So on all ranks they
// begin in one order, by rounds, in each of which a rank sends once at most and receives once:
//
//     round     0                1                     each op comes in a later round than all that it is after,
//     rank 0    send to 2        receive from 3        by way of whatever ops and nodes: none waits, in its round,
//     rank 3    receive from 1   send to 0             for what a later one brings
//
// Where ops wait for each other in no circle there are such rounds, and this gives them; fuse proves the same with
// what tiles wait for (fuse/passes/channel.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// By rank and op: the round of a transfer between nodes; -1 of what stays within one, and of ops on a circle or
/// after one, for which there is no round. Needs a plan that check() finds nothing malformed in.
[[nodiscard]] std::vector<std::vector<std::int32_t>> rounds_between_nodes(const Plan& plan);

}  // namespace syncopate::plan
