// The backward of attention as SPEC names it, with its kernel for Hopper as that states itself: a stage whose
// tiles are blocks of K and V. Where ranks exchange heads, what a tile reads of Q is known from tables that the
// caller has, so there is no program without him.
#include <algorithm>

#include <fmt/format.h>

#include "ops/attention_task.hpp"
#include "ops/product.hpp"
#include "ops/rows.hpp"
#include "syncopate/ops/attention_backward.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int32_t kSplit = 4;  // chunks of a run of rows: the last one's way back is not hidden

Result<AttentionBackwardTask> task_of(const Problem& problem, const Strategy& strategy) {
    SYNCOPATE_TAKE(AttentionTask forward, attention_task(problem, strategy));
    AttentionBackwardTask task{.forward = std::move(forward), .gluon = true};
    task.forward.kind = backward_kind(task.forward.kind, {.ranks = problem.ranks,
                                                          .kv_heads = task.forward.shape.kv_heads,
                                                          .inner = task.forward.inner,
                                                          .nodes = problem.nodes})
                            .kind;
    if (task.forward.kind != "double_ring" && task.forward.kind != "ulysses_ring") task.forward.inner = 0;
    task.forward.split = strategy.split.value_or(task.forward.kind == "ulysses" ? 1 : kSplit);
    if (strategy.tiles.empty())
        task.forward.tile = choose_backward_kernel(task.forward.shape.head_dim, problem.dtype, 1.0,
                                                   {.cuda = true, .hopper = true})
                                .tile;
    return task;
}

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    SYNCOPATE_TAKE(const AttentionBackwardTask task, task_of(problem, strategy));
    SYNCOPATE_TAKE(AttentionBackwardOutline made, attention_backward_outline(task));
    return Outline{.plan = std::move(made.plan), .bindings = std::move(made.bindings)};
}

kernel::Arguments called_with(const AttentionTask& task, const Strategy& strategy) {
    const plan::AttentionShape& shape = task.shape;
    const std::int64_t block = task.tile.block_n;
    const auto rows = [&](plan::DType dtype, bool in_blocks) {
        return kernel::TensorArgument{.shape = {shape.batch, shape.kv_heads, shape.length, shape.head_dim},
                                      .dtype = dtype,
                                      .block = in_blocks
                                                   ? std::vector<std::int64_t>{1, 1, block, shape.head_dim}
                                                   : std::vector<std::int64_t>{}};
    };
    kernel::Arguments made;
    const std::int64_t queries = plan::most_rows(task.rows);  // that a rank's tiles walk
    made.scalars = {{"B", shape.batch}, {"H", shape.heads},   {"HKV", shape.kv_heads},
                    {"SQ", queries},    {"SK", shape.length}, {"D", shape.head_dim},
                    {"BN", block}};
    made.tensors = {{"k_desc", rows(shape.dtype, true)},
                    {"v_desc", rows(shape.dtype, true)},
                    {"dk_ptr", rows(plan::DType::fp32, false)},
                    {"dv_ptr", rows(plan::DType::fp32, false)}};
    const std::int64_t tiles = (shape.length + block - 1) / block * shape.kv_heads * shape.batch;
    made.grid = {std::min<std::int64_t>(tiles, strategy.programs.value_or(static_cast<std::int32_t>(tiles))),
                 1, 1};
    return made;
}

Result<fuse::StagedProgram> programmed(const Problem& problem, const Strategy& strategy,
                                       const Call& /*call*/) {
    SYNCOPATE_TAKE(const AttentionBackwardTask task, task_of(problem, strategy));
    SYNCOPATE_TAKE(AttentionBackwardOutline outline, attention_backward_outline(task));
    if (outline.exchanges)
        return usage(
            "attention_backward: where ranks exchange heads, its caller's tables make the program; take "
            "kind=all_gather, ring or double_ring");
    const AttentionBackwardForm form{
        .causal = task.forward.sequence.causal, .whole = true, .together = outline.together};
    SYNCOPATE_TAKE(kernel::Kernel kernel, kernel::stated::analyse(attention_backward_statement(form),
                                                                  called_with(task.forward, strategy)));
    fuse::StagedProgram made;
    made.stages.push_back({std::move(kernel), std::move(outline.bindings.front())});
    made.plan = std::move(outline.plan);
    return made;
}

}  // namespace

OperatorRow attention_backward() {
    return {.name = "attention_backward",
            .extents = {"S", "B", "H", "HKV", "D", "causal"},
            .required = 1,
            .defaults = {1, 32, 8, 128, 1},
            .words = {"kind", "sharding"},
            .outline = outlined,
            .program = programmed};
}

}  // namespace syncopate::ops
