// Sum stores: pushes of what a rank has just summed, which the sum itself carries out.
//
// A copy that follows a sum starts some 8 us after it, takes its time, and posts 3 us later: for a chunk of
// which a copy takes 5 us, most of that is waiting. The flat heap puts every rank's memory at a constant
// distance, so whoever sums stores each result at the peers as well, and tells them when it is done:
//
//      copies     sum | ······· | copy to 1 | post | copy to 2 | post | copy to 3 | post
//      stored     sum, each unit here, to 1, to 2 and to 3 | posts
//
// Large chunks (Costs, cost.hpp) are left to the copy engine: the stores of a sum take multiprocessors, and
// beside the kernel they slow it down. The chunk engine, which has its own, stores all of its sums so.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

inline constexpr std::int32_t kMostSumStores = 15;  ///< peers of one sum

/// Why the sum that op `ref` of the lowered plan follows cannot carry it out; empty if it can. It can if the
/// op is a push, after nothing but one sum of its rank, of just what that sums, to the same place of a peer.
[[nodiscard]] std::string sum_store_objection(const plan::Plan& lowered, plan::OpRef ref);

/// Whether the op, of the lowered plan, follows nothing but sums: only they can carry it out inline.
[[nodiscard]] bool follows_sums(const plan::Plan& lowered, plan::OpRef ref);

/// Fails, with rank and op, where `backends` lets one sum carry out more than kMostSumStores.
[[nodiscard]] Status check_sum_stores(const plan::Plan& lowered, const Backends& backends);

}  // namespace syncopate::fuse
