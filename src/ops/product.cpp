#include "ops/product.hpp"

#include <utility>

#include <fmt/format.h>

#include "syncopate/fuse/model/backend.hpp"

namespace syncopate::ops {

Error usage(std::string message) { return usage_error(std::move(message)); }

plan::Mesh mesh_of(const Problem& problem) {
    if (problem.nodes == 1) return {{{"gpu", problem.ranks}}};
    return {{{"node", problem.nodes}, {"gpu", problem.ranks / problem.nodes}}, "node"};
}

std::vector<ProductShape> one_product(const Problem& problem) {
    return {{problem.extent("M"), problem.extent("N"), problem.extent("K")}};
}

OperatorRow product_row(std::string_view name, OperatorRow::Kind kind) {
    return {.name = name,
            .kind = kind,
            .extents = {"M", "N", "K"},
            .required = 3,
            .keys = {{"split", "split"}, {"backend", "backend"}},
            .products = one_product,
            .program = product_program};
}

std::vector<std::int64_t> x_scales_shape(const Problem& problem) {
    const std::int64_t rows = problem.extent("M");
    if (problem.scales == Scales::row) return {rows};
    return {rows, (problem.extent("K") + kScaled - 1) / kScaled};
}

Slicing slicing_of(const Chunking& chunking) {
    if (chunking.slices.empty() && chunking.num_slices == 1) return {};
    return {1, chunking.num_slices, chunking.slices, chunking.peer_by_peer};
}

std::string nodes_objection(const Problem& problem, const Strategy& strategy) {
    const OperatorRow* const row = operator_row(problem.op);
    if (problem.nodes == 1 || row == nullptr) return {};
    using Kind = OperatorRow::Kind;
    const bool fetches = row->kind == Kind::gathers || row->kind == Kind::exchanges;
    if (fetches && fuse::is_inline(strategy.backend))
        return fmt::format("nodes: tiles fetch x ({}) from ranks of their node alone",
                           plan::name_of(strategy.backend));
    const bool sums = row->kind == Kind::scatters || row->kind == Kind::reduces;
    if (sums && (strategy.pull || strategy.stored > 0 || strategy.one_step || strategy.kernel_sums))
        return "nodes: each node sums before nodes are added: leave out pull, stored, one_step and "
               "kernel_sums";
    return {};
}

std::string fetch_objection(const Problem& problem, const Strategy& strategy, const Call& call) {
    if (std::string why = nodes_objection(problem, strategy); !why.empty()) return why;
    if (!fuse::is_inline(strategy.backend)) return {};
    const std::string_view backend = plan::name_of(strategy.backend);
    if (problem.scales != Scales::none)
        return fmt::format("scales: tiles that fetch x themselves ({}) have none", backend);
    if (call.kept) return fmt::format("keep: tiles that fetch x themselves ({}) keep nothing", backend);
    return {};
}

Bindings reads_x(const Problem& problem, const std::string& tensor) {
    Bindings bindings{{"a_desc", tensor}};
    if (problem.scales != Scales::none) bindings["scale_a_ptr"] = tensor + "_scale";
    return bindings;
}

}  // namespace syncopate::ops
