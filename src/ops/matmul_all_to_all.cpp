// y = all_to_all(x @ w): block p of this rank's product C, M / ranks rows, becomes block r of D on rank p.
#include "ops/product.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    SYNCOPATE_TAKE(
        plan::Plan exchanged,
        plan::push_exchange(mesh_of(problem), {"C", {problem.extent("M"), problem.extent("N")}, problem.out},
                            "D", {.split = strategy.split.value_or(1)}));
    return Outline{.plan = std::move(exchanged), .bindings = {{{"c_desc", "C"}}}, .output = "D"};
}

}  // namespace

OperatorRow matmul_all_to_all() {
    OperatorRow row = product_row("matmul_all_to_all", OperatorRow::Kind::sends);
    row.equal_blocks = true;
    row.outline = outlined;
    return row;
}

}  // namespace syncopate::ops
