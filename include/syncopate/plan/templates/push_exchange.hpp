// The all-to-all of what kernels make, or read: each block goes straight to the rank that is to have it; to another
// node with those that its node's other ranks have for the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

struct PushExchangeOptions {
    bool produced = true;  ///< the kernel makes what is sent; false: it is held initially
    std::int32_t split = 1;
    /// Of what is held initially: ranks pull their blocks, for their kernels only; `final` asks for nothing.
    bool transient = false;
    /// The same, but blocks are pushed; a kernel that can reads the own one where the user has it.
    bool for_kernel = false;
    std::int32_t minor_axis = -1;           ///< a second axis to cut blocks for others along; -1: none
    std::int32_t minor_split = 1;           ///< slices along minor_axis, equal but for a remainder
    std::vector<std::int64_t> minor_sizes;  ///< or their extents; empty: minor_split says
    /// All slices for one peer before the next peer's, instead of every peer's first slice before any second.
    bool peer_by_peer = false;
};

/// The all-to-all of equal buffers: each rank has a tensor of its own, `from` [ranks * block, …], and sends
/// block p of it to rank p, where it becomes block r of `to`, of the same shape. Each rank's `from` is
/// another value, so it is "partial" in the plan, and `to` is "of" one rank, block by block. Fails as
/// push_reduce (push_reduce.hpp) does, if the first axis is no multiple of the ranks, and if what is produced
/// is to be transient.
[[nodiscard]] Result<Plan> push_exchange(const Mesh& mesh, const Tensor& from, const std::string& to,
                                         const PushExchangeOptions& options = {});

}  // namespace syncopate::plan
