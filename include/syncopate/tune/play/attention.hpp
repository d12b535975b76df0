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
#include <optional>
#include <string>
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
    std::int32_t nodes = 1;
    std::string kind{};                     ///< which is asked for; "" or "auto": any
    std::optional<std::int64_t> bounded{};  ///< as of ops::AttentionTask
    std::optional<Problem> spec{};          ///< that says all of it, by which a store knows it
};

/// Of a kind whose plan this is. `relays`: multiprocessors that the kernel leaves free. Fails where the plan cannot be
/// simulated.
[[nodiscard]] Result<Estimate> play_attention(const AttentionProblem& problem, const Machine& machine,
                                              const plan::Plan& plan, const plan::AttentionOptions& options,
                                              std::int32_t relays);
/// Of the library's all-gather of K and V, then the kernel.
[[nodiscard]] Estimate unfused_attention(const AttentionProblem& problem, const Machine& machine);

/// What a problem "attention:S=…,H=…,…" is for so many ranks of a machine: one run of rows a rank, or as its
/// `sharding` says, and heads padded. Fails where the extents cannot be attention's.
[[nodiscard]] Result<AttentionProblem> attention_problem(const Problem& problem, const Machine& machine);

}  // namespace syncopate::tune
