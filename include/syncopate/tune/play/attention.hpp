// Attention over a sharded sequence: which kind of plan (plan/templates/attention.hpp) is likely to be the
// quickest on a machine. Each kind's plan is simulated on the machine's links, and each rank then works off
// what has arrived:
//
//     rows of Q  ×  rows of K and V      a part of the work, there once both are
//     own           own                  from the start
//     own           from rank 1          when those K and V have come
//     from rank 1   own                  Ulysses: when that Q has come
//
// A rank takes parts in the order in which they come to be there, as its kernel does (`any_order`). The
// busiest rank counts. With Ulysses, O goes back as it is made, part by part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

struct AttentionProblem {
    plan::AttentionShape shape;
    plan::Sequence sequence;       ///< its length is the shape's
    std::vector<plan::Rows> rows;  ///< by rank, what it holds of the sequence
    AttentionKernel kernel;
    std::int32_t inner = 0;  ///< ranks of an inner ring, or of a group that exchanges heads; 0: any
    std::int32_t parts = 0;  ///< of the heads, which are sent one after another; 0: ops::attention_parts
};

struct AttentionCandidate {
    std::string kind;  ///< "all_gather", "ring", "double_ring", "ulysses", "ulysses_ring" or "unfused"
    std::int32_t inner = 0;
    Estimate estimate;   ///< µs
    std::string pruned;  ///< why the shape or the ranks do not allow it; "" where they do

    /// Pruned where it cannot be estimated.
    void take(const Result<Estimate>& made);
};

/// Those that are possible first, the best of them by the estimate first of all; among equals the first stays first.
void rank(std::vector<AttentionCandidate>& candidates);

/// All kinds, those that are possible first, the best of them by the estimate first of all; among equals
/// the first in the order above. "unfused" is the all-gather, then the kernel.
[[nodiscard]] std::vector<AttentionCandidate> rank_attention(const AttentionProblem& problem,
                                                             const Machine& machine);

/// What a problem "attention:S=…,H=…,…" is for so many ranks of a machine: one run of rows a rank, or as its
/// `sharding` says, and heads padded. Fails where the extents cannot be attention's.
[[nodiscard]] Result<AttentionProblem> attention_problem(const Problem& problem, const Machine& machine);

}  // namespace syncopate::tune
