// y = reduce_scatter(act(all_gather(x) @ w1) @ w2): x [M / ranks, K], w1 [K, F], w2 [F, N] of each rank, y
// [M / ranks, N]. Two kernels around one plan; what is between them, H, is each rank's own.
//
//     all-gather of x | stage 1: H = act(x @ w1), as rows of x arrive | stage 2: C = H @ w2               |
//                                                                     | rows leave as made, and are summed
#include "ops/product.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

std::vector<ProductShape> products(const Problem& problem) {
    const std::int64_t m = problem.extent("M");
    const std::int64_t f = problem.extent("F");
    return {{m, f, problem.extent("K")}, {m, problem.extent("N"), f}};
}

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    const std::int64_t m = problem.extent("M");
    const plan::Mesh mesh = mesh_of(problem);
    plan::TemplateOptions options;
    options.split = strategy.chunking.rows;
    options.pull = strategy.pull;
    options.transient = !strategy.pull;
    if (problem.nodes > 1) options.algorithm = plan::Algorithm::hierarchical;
    SYNCOPATE_TAKE(plan::Plan gathered,
                   plan::all_gather(mesh, {"X", {m, problem.extent("K")}, problem.dtype}, options));
    SYNCOPATE_TAKE(plan::Plan scattered,
                   plan::push_reduce(mesh, {"C", {m, problem.extent("N")}, problem.dtype},
                                     {.split = strategy.split.value_or(1)}));
    SYNCOPATE_TAKE(plan::Plan both, plan::join({std::move(gathered), std::move(scattered)},
                                               {{"H", {m, problem.extent("F")}, problem.dtype}}));
    return Outline{.plan = std::move(both),
                   .bindings = {{{"a_desc", "X"}, {"c_desc", "H"}}, {{"a_desc", "H"}, {"c_desc", "C"}}},
                   .input = "X",
                   .output = "C"};
}

}  // namespace

OperatorRow feed_forward() {
    return {.name = "feed_forward",
            .kind = OperatorRow::Kind::block,
            .extents = {"M", "K", "F", "N"},
            .required = 4,
            .words = {"activation"},
            .keys = {{"rows", "chunking.rows"}, {"split", "split"}, {"pull", "pull"}, {"apart", "apart"}},
            .products = products,
            .outline = outlined,
            .program = product_program};
}

}  // namespace syncopate::ops
