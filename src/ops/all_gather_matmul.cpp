// y = all_gather(x) @ w: x [M / ranks, K] on each rank, or [M, K / ranks] of columns; y [M, N].
//
// x is gathered as tensor A, in chunks of rows and slices of K; tiles wait for the rows that they read. Tiles
// of an inline backend fetch them. Scales of x are few bytes: they go first, so that no tile waits for them
// alone.
#include <fmt/format.h>

#include "ops/product.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

std::string objection(const Problem& problem, const Strategy& strategy, const Call& call) {
    if (call.axis != 0 && call.axis != 1)
        return fmt::format("axis: expected 0 (rows) or 1 (columns), got {}", call.axis);
    if (call.axis == 1) {
        const std::int64_t k = problem.extent("K");
        if (problem.scales != Scales::none)
            return "axis=1: scales are of whole rows of x, and a rank has a part of each";
        if (k % problem.ranks != 0)
            return fmt::format("axis=1: K must be a multiple of the ranks, got {} and {}", k, problem.ranks);
        if (slicing_of(strategy.chunking).axis >= 0)
            return "axis=1: shards are columns already, so the strategy cannot cut them into slices";
    }
    return fetch_objection(problem, strategy, call);
}

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& call) {
    if (const std::string why = objection(problem, strategy, call); !why.empty()) return usage(why);
    const bool fetched = fuse::is_inline(strategy.backend);  // tiles that fetch leave nothing behind
    const Slicing slices = slicing_of(strategy.chunking);
    plan::TemplateOptions options;
    options.axis = call.axis;
    options.split = strategy.chunking.rows;
    options.pull = strategy.pull || fetched;
    // Tiles may read the own shard where the caller has it.
    options.transient = fetched || !(strategy.pull || call.kept);
    options.minor_axis = slices.axis;
    options.minor_split = slices.split;
    options.minor_sizes = slices.sizes;
    options.peer_by_peer = slices.peer_by_peer && problem.nodes == 1;
    if (problem.nodes > 1) options.algorithm = plan::Algorithm::hierarchical;
    const plan::Mesh mesh = mesh_of(problem);
    SYNCOPATE_TAKE(
        plan::Plan gathered,
        plan::all_gather(mesh, {"A", {problem.extent("M"), problem.extent("K")}, problem.dtype}, options));
    Outline made{.bindings = {reads_x(problem, "A")}, .input = "A"};
    if (problem.scales == Scales::none) {
        made.plan = std::move(gathered);
        return made;
    }
    plan::TemplateOptions whole;
    whole.transient = true;
    whole.algorithm = options.algorithm;
    SYNCOPATE_TAKE(plan::Plan scales,
                   plan::all_gather(mesh, {"A_scale", x_scales_shape(problem), plan::DType::fp32}, whole));
    SYNCOPATE_TAKE(plan::Plan both, plan::join({std::move(scales), std::move(gathered)}));
    made.plan = std::move(both);
    made.scales = "A_scale";
    return made;
}

}  // namespace

OperatorRow all_gather_matmul() {
    OperatorRow row = product_row("all_gather_matmul", OperatorRow::Kind::gathers);
    row.keys = {
        {"split", "chunking.rows"}, {"slices", "chunking.slices"}, {"pull", "pull"}, {"backend", "backend"}};
    row.outline = outlined;
    return row;
}

}  // namespace syncopate::ops
