// Collectives as verification sees them: which ops of different ranks are one collective, and what it moves.
#pragma once

#include <string>
#include <vector>

#include "syncopate/plan/check.hpp"
#include "syncopate/plan/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// One participant's op for each rank of the collective, in the order of Op::ranks.
using CollectiveGroup = std::vector<OpRef>;

struct CollectiveMatch {
    std::vector<CollectiveGroup> groups;
    std::vector<Finding> unmatched;  ///< participants that would wait forever
};

/// As in NCCL, the n-th collective of a kind over a list of ranks on one rank belongs to the n-th on every
/// other. Ops whose rank list lacks their own rank, or has unknown or repeated ranks, are left out
/// (check_malformed reports them).
[[nodiscard]] CollectiveMatch match_collectives(const Plan& plan);

/// One box that goes from memory to memory. All moves of an event read before any of them writes.
struct Move {
    OpRef op;  ///< whom to name in a finding
    std::int32_t src_rank = 0;
    Chunk src;
    std::int32_t dst_rank = 0;
    Chunk dst;
    Reduce reduce = Reduce::none;
};

/// What an event moves: a transfer by itself, or a collective, whose participants are given in rank-list
/// order.
///
/// Where source and destination are the same tensor, every box keeps its place in it: all_gather needs each
/// source inside each destination, reduce_scatter the other way round, all_to_all moves the common part of
/// each pair, and all_reduce and broadcast (from the first rank listed) need equal regions. Between different
/// tensors parts are laid out in rank-list order along the one axis whose extents differ by the number of
/// ranks (all_to_all: axis 0 of both). Fails if the regions do not fit the kind, and for permute.
[[nodiscard]] Result<std::vector<Move>> moves_of(const Plan& plan, const CollectiveGroup& members);

}  // namespace syncopate::plan
