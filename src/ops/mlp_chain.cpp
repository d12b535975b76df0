// y = x [M, H] @ w1 [H, F] @ w2 [F, H] on one GPU: two kernels, of which the second one's tiles wait for what
// they read of the first one's, H. Nothing moves between ranks: the plan has no ops.
#include "ops/product.hpp"

namespace syncopate::ops {
namespace {

Result<Outline> outlined(const Problem& problem, const Strategy& /*strategy*/, const Call& /*call*/) {
    if (problem.ranks > 1) return usage("mlp_chain: it is of one GPU, and moves nothing between ranks");
    const std::int64_t m = problem.extent("M");
    const std::int64_t f = problem.extent("F");
    Outline made{.bindings = {{{"c_desc", "H"}}, {{"a_desc", "H"}}}};
    made.plan.mesh = mesh_of(problem);
    made.plan.tensors = {{"H", {m, f}, problem.dtype}};
    made.plan.initial = {{0, {0, {{0, m}, {0, f}}}}};
    made.plan.ranks.resize(1);
    return made;
}

std::vector<ProductShape> products(const Problem& problem) {
    const std::int64_t m = problem.extent("M");
    const std::int64_t h = problem.extent("H");
    const std::int64_t f = problem.extent("F");
    return {{m, f, h}, {m, h, f}};
}

Result<fuse::StagedProgram> programmed(const Problem& problem, const Strategy& strategy, const Call& call) {
    return program_of(problem, strategy, call, products(problem));
}

}  // namespace

OperatorRow mlp_chain() {
    return {.name = "mlp_chain",
            .extents = {"M", "H", "F"},
            .required = 3,
            .products = products,
            .outline = outlined,
            .program = programmed};
}

}  // namespace syncopate::ops
