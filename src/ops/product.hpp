// Product: what operators around products have in common.
#pragma once

#include <string>
#include <vector>

#include "syncopate/ops/operators.hpp"
#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::ops {

[[nodiscard]] Error usage(std::string message);

/// All ranks on one axis; of several nodes on two.
[[nodiscard]] plan::Mesh mesh_of(const Problem& problem);

/// One product x [M, K] @ w [K, N].
[[nodiscard]] std::vector<ProductShape> one_product(const Problem& problem);

/// A row of an operator around one product; its outline is left out.
[[nodiscard]] OperatorRow product_row(std::string_view name, OperatorRow::Kind kind);

/// The shape of the scales of x.
[[nodiscard]] std::vector<std::int64_t> x_scales_shape(const Problem& problem);

/// How what comes before a product is cut along K.
struct Slicing {
    std::int32_t axis = -1;
    std::int32_t split = 1;
    std::vector<std::int64_t> sizes;
    bool peer_by_peer = false;
};
[[nodiscard]] Slicing slicing_of(const Chunking& chunking);

/// Of an operator whose tiles read what comes, why they cannot fetch it by themselves (an inline backend);
/// "" where they can.
[[nodiscard]] std::string fetch_objection(const Problem& problem, const Strategy& strategy, const Call& call);

/// `bindings` of the kernel of an operator that reads x as `tensor`, with its scales where there are some.
[[nodiscard]] Bindings reads_x(const Problem& problem, const std::string& tensor);

/// The outline's program, its kernels the library's products of these shapes with the strategy's tiles.
[[nodiscard]] Result<fuse::StagedProgram> program_of(const Problem& problem, const Strategy& strategy,
                                                     const Call& call,
                                                     const std::vector<ProductShape>& shapes);
/// The same of the problem's own products.
[[nodiscard]] Result<fuse::StagedProgram> product_program(const Problem& problem, const Strategy& strategy,
                                                          const Call& call);

}  // namespace syncopate::ops
