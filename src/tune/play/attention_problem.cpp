#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "syncopate/tune/play/attention.hpp"

namespace syncopate::tune {

Result<AttentionProblem> attention_problem(const Problem& problem, const Machine& machine) {
    const auto refused = [](std::string why) {
        return Error{"attention: " + std::move(why), {}, ErrorClass::usage};
    };
    AttentionProblem made;
    made.shape = {.batch = problem.extent("B"),
                  .heads = problem.extent("H"),
                  .kv_heads = problem.extent("HKV"),
                  .length = problem.extent("S"),
                  .head_dim = problem.extent("D"),
                  .dtype = problem.dtype};
    if (made.shape.heads % made.shape.kv_heads != 0)
        return refused(
            fmt::format("H must be a multiple of HKV, got {} and {}", made.shape.heads, made.shape.kv_heads));
    const std::optional<std::int64_t> padded = padded_head(made.shape.head_dim);
    if (!padded)
        return refused(fmt::format("D is {}: no kernel has tiles for such heads", made.shape.head_dim));
    made.shape.head_dim = *padded;
    made.sequence = {.length = made.shape.length, .causal = problem.extent("causal") != 0};
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
