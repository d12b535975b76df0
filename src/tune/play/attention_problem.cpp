#include <algorithm>

#include <fmt/format.h>

#include "syncopate/try.hpp"
#include "syncopate/tune/play/attention.hpp"

namespace syncopate::tune {

Result<AttentionProblem> attention_problem(const Problem& problem, const Machine& machine) {
    AttentionProblem made;
    if (problem.op != "attention") return usage_error(problem.op + " is no attention");
    SYNCOPATE_TAKE(made.shape, ops::attention_shape(problem));
    if (made.shape.heads % made.shape.kv_heads != 0)
        return usage_error(fmt::format("attention: H must be a multiple of HKV, got {} and {}",
                                       made.shape.heads, made.shape.kv_heads));
    made.sequence = {.length = made.shape.length, .causal = problem.extent("causal") != 0};
    made.spec = problem;
    made.kind = problem.word("kind");
    made.nodes = problem.nodes;
    const bool hopper = machine.rates.attention_gluon_tflops.at(static_cast<double>(made.shape.head_dim)) > 0;
    made.kernel = choose_attention_kernel(made.shape, problem.ranks, 1.0, {.cuda = true, .hopper = hopper});
    const auto sharding = plan::sharding_from(problem.word("sharding")).value_or(plan::Sharding::contiguous);
    made.rows = plan::shard_rows(made.sequence, problem.ranks, sharding, made.kernel.tile.block_m);
    // Of too few rows for whole tiles each rank keeps what it holds.
    if (std::ranges::any_of(made.rows, &plan::Rows::empty))
        made.rows = plan::shard_rows(made.sequence, problem.ranks, sharding, 1);
    return made;
}

}  // namespace syncopate::tune
