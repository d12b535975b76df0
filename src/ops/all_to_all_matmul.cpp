// y = all_to_all(x) @ w: x, y of M rows on each rank; block p of x becomes block r of what rank p multiplies.
//
// Each rank's own X is exchanged into A, in chunks of rows and slices of K. Scales of x go first, as in
// all_gather_matmul.
#include "ops/product.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& call) {
    if (const std::string why = fetch_objection(problem, strategy, call); !why.empty()) return usage(why);
    const Slicing slices = slicing_of(strategy.chunking);
    const plan::Mesh mesh = mesh_of(problem);
    SYNCOPATE_TAKE(
        plan::Plan exchanged,
        plan::push_exchange(mesh, {"X", {problem.extent("M"), problem.extent("K")}, problem.dtype}, "A",
                            {.produced = false,
                             .split = strategy.chunking.rows,
                             .transient = fuse::is_inline(strategy.backend),  // tiles read x at its ranks
                             .for_kernel = !call.kept,
                             .minor_axis = slices.axis,
                             .minor_split = slices.split,
                             .minor_sizes = slices.sizes,
                             .peer_by_peer = slices.peer_by_peer}));
    Outline made{.bindings = {reads_x(problem, "A")}, .input = "X"};
    if (problem.scales == Scales::none) {
        made.plan = std::move(exchanged);
        return made;
    }
    SYNCOPATE_TAKE(plan::Plan scales,
                   plan::push_exchange(mesh, {"X_scale", x_scales_shape(problem), plan::DType::fp32},
                                       "A_scale", {.produced = false, .for_kernel = true}));
    SYNCOPATE_TAKE(plan::Plan both, plan::join({std::move(scales), std::move(exchanged)}));
    made.plan = std::move(both);
    made.scales = "X_scale";
    return made;
}

}  // namespace

OperatorRow all_to_all_matmul() {
    OperatorRow row = product_row("all_to_all_matmul", OperatorRow::Kind::exchanges);
    row.keys = {{"split", "chunking.rows"}, {"backend", "backend"}};
    row.equal_blocks = true;
    row.outline = outlined;
    return row;
}

}  // namespace syncopate::ops
