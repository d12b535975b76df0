// Order: when each chunk is expected, and in which order a rank's tiles run.
//
// Without a topology, arrival is simulated with equal links: each rank starts its ops of one backend one
// after another, an op starts when those that it is `after` have ended, and lasts as long as its bytes. With
// one, plan::simulate tells. What a rank holds from the start arrives at 0.
//
// A tile runs when the last chunk that it needs is expected; among equals the kernel's own traversal decides,
// so that its locality in the cache is kept. With phases a tile starts earlier: it is sorted by the time at
// which its first iteration can run, then by its last chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/assign.hpp"
#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/plan/plan.hpp"
#include "syncopate/plan/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// By op id: when it ends, in bytes that one link has carried by then.
[[nodiscard]] std::vector<std::int64_t> expect_arrivals(const plan::Plan& plan, const Precedence& precedence);

/// The same as simulated on `topology` with the backends that were assigned, and in the same unit: bytes that
/// a link of kLinkBytesPerMicrosecond (cost.hpp) has carried by then. Fails as plan::simulate does.
[[nodiscard]] Result<std::vector<std::int64_t>> expect_arrivals(const plan::Plan& plan,
                                                                const Precedence& precedence,
                                                                const Backends& backends,
                                                                const plan::Topology& topology);

/// By rank and slot: the tile that runs there.
[[nodiscard]] std::vector<std::vector<std::int64_t>> order_tiles(const Dependence& dependence,
                                                                 const std::vector<std::int64_t>& arrivals,
                                                                 bool phases);

}  // namespace syncopate::fuse
