// softmax(q @ kᵀ · scale) @ v over a sequence of S rows, sharded over the ranks: the operator as SPEC names it,
// with its kernel for Hopper as that states itself. Of the kind "auto" the strategy's; where nobody has chosen,
// all_gather.
#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "ops/attention_task.hpp"
#include "ops/product.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

/// The least number of ranks that divides them; all of them where none does.
std::int32_t group_of(std::int32_t ranks) {
    std::int32_t group = 2;
    while (group < ranks && ranks % group != 0) ++group;
    return group;
}

}  // namespace

Result<AttentionTask> attention_task(const Problem& problem, const Strategy& strategy) {
    AttentionTask task;
    SYNCOPATE_TAKE(task.shape, attention_shape(problem));
    task.sequence = {.length = task.shape.length, .causal = problem.extent("causal") != 0};
    task.kind = problem.word("kind");
    task.nodes = problem.nodes;
    task.parts = strategy.head_parts;
    const bool open = task.kind.empty() || task.kind == "auto";
    if (open && !strategy.kind.empty()) {
        task.kind = strategy.kind;
    } else if (open) {
        task.kind = "all_gather";
        if (task.nodes > 1) {
            const KindOverNodes made = kind_over_nodes(problem.ranks, problem.nodes);
            task.kind = made.kind;
            task.inner = made.inner;
        }
    }
    // Heads are exchanged inside nodes, and rings go from one to the next.
    const std::int32_t places = problem.ranks / problem.nodes;
    const bool inside = problem.nodes > 1 && places > 1;
    if (task.kind == "ulysses_ring") task.inner = inside ? places : group_of(problem.ranks);
    if (task.kind == "double_ring" && inside) task.inner = places;
    if (strategy.inner > 0) task.inner = strategy.inner;
    task.split = strategy.split.value_or(1);
    const bool hopper = strategy.kernel == ProductKernel::gluon;
    task.tile =
        strategy.tiles.empty()
            ? choose_attention_kernel(task.shape, problem.ranks, 1.0, {.cuda = true, .hopper = hopper}).tile
            : strategy.tiles.front();
    task.rows =
        attention_rows(task.sequence, problem.ranks,
                       plan::sharding_from(problem.word("sharding")).value_or(plan::Sharding::contiguous),
                       task.tile.block_m, task.kind == "ulysses_ring" ? task.inner : 1, false);
    return task;
}

namespace {

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    SYNCOPATE_TAKE(const AttentionTask task, attention_task(problem, strategy));
    SYNCOPATE_TAKE(AttentionOutline made, attention_outline(task));
    return Outline{.plan = std::move(made.plan), .bindings = {std::move(made.bindings)}};
}

kernel::Arguments called_with(const AttentionTask& task, const AttentionOutline& outline,
                              const Strategy& strategy) {
    const plan::AttentionShape& shape = task.shape;
    const std::int64_t block_m = task.tile.block_m;
    const std::int64_t block_n = task.tile.block_n;
    std::int64_t queries = shape.length;
    std::int64_t keys = shape.length;
    if (outline.passes) {  // ranks with fewer rows than others work on as many
        keys = outline.passes->width;
        queries = plan::most_rows(task.rows);
    }
    kernel::Arguments made;
    made.scalars = {
        {"B", shape.batch}, {"H", shape.heads},          {"HKV", shape.kv_heads},          {"SQ", queries},
        {"SK", keys},       {"OFFSET", std::int64_t{0}}, {"WINDOW", task.sequence.window}, {"BM", block_m},
        {"BN", block_n}};
    const auto rows = [&](std::int64_t heads, std::int64_t number, std::int64_t block) {
        return kernel::TensorArgument{.shape = {shape.batch, heads, number, shape.head_dim},
                                      .dtype = shape.dtype,
                                      .block = {1, 1, block, shape.head_dim}};
    };
    made.tensors = {{"k_desc", rows(shape.kv_heads, keys, block_n)},
                    {"v_desc", rows(shape.kv_heads, keys, block_n)},
                    {"q_desc", rows(shape.heads, queries, block_m)},
                    {"o_desc", rows(shape.heads, queries, block_m)},
                    {"l_ptr", {.shape = {shape.batch, shape.heads, queries}, .dtype = plan::DType::fp32}}};
    const std::int64_t tiles = (queries + block_m - 1) / block_m * shape.heads * shape.batch;
    made.grid = {std::min<std::int64_t>(tiles, strategy.programs.value_or(static_cast<std::int32_t>(tiles))),
                 1, 1};
    return made;
}

Result<fuse::StagedProgram> programmed(const Problem& problem, const Strategy& strategy,
                                       const Call& /*call*/) {
    SYNCOPATE_TAKE(const AttentionTask task, attention_task(problem, strategy));
    SYNCOPATE_TAKE(AttentionOutline outline, attention_outline(task));
    const AttentionForm form{.causal = task.sequence.causal,
                             .one_pass = outline.passes.has_value(),
                             .placed = outline.placed,
                             .together = outline.together};
    SYNCOPATE_TAKE(kernel::Kernel kernel,
                   kernel::stated::analyse(attention_statement(form), called_with(task, outline, strategy)));
    fuse::StagedProgram made;
    made.stages.push_back({std::move(kernel), std::move(outline.bindings)});
    made.plan = std::move(outline.plan);
    return made;
}

}  // namespace

OperatorRow attention() {
    return {.name = "attention",
            .extents = {"S", "B", "H", "HKV", "D", "causal"},
            .required = 1,
            .defaults = {1, 32, 8, 128, 1},
            .words = {"kind", "sharding"},
            .keys = {{"backend", "backend"}},
            .call = {"window", "inner", "split", "bounded", "cu_seqlens"},
            .outline = outlined,
            .program = programmed};
}

}  // namespace syncopate::ops
