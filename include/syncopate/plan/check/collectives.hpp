// Collectives as verification sees them: which ops of different ranks are one collective, and what it moves.
#pragma once

#include <string>
#include <vector>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/plan.hpp"
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

/// A box of a participant's memory and where it lies in the frame: a space that exists only to say which
/// sources meet, and who takes what.
struct CollectivePart {
    OpRef op;
    Chunk chunk;  ///< on rank op.rank
    Region at;    ///< in the frame; of the same extents
};

/// What a collective moves: all sources are laid into the frame, where with `reduce` they add up and without
/// it they lie side by side; then every target takes its part of the frame, as far as a source has filled it.
/// Nothing is written before all is read.
struct CollectiveLayout {
    Reduce reduce = Reduce::none;
    std::vector<CollectivePart> sources;
    std::vector<CollectivePart> targets;
};

/// The layout of a collective, whose participants are given in rank-list order.
///
/// Where all sources and destinations are in one tensor, the frame is that tensor and every box keeps its
/// place: all_gather needs each source inside each destination, reduce_scatter the other way round,
/// all_to_all takes what sources and destinations have in common, and all_reduce and broadcast (from the
/// first rank listed) need equal regions. Otherwise all sources have one size and all destinations one, and
/// parts are laid out in rank-list order along the one axis whose extents differ by the number of ranks
/// (all_to_all: axis 0 of both). Fails if the regions, dtypes or reductions do not fit the kind, and for
/// permute. Linear in the participants; all_to_all between tensors has a part for each pair.
[[nodiscard]] Result<CollectiveLayout> layout_of(const Plan& plan, const CollectiveGroup& members);

}  // namespace syncopate::plan
