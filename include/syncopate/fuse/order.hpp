// Order: when each chunk is expected, and in which order a rank's tiles run.
//
// Without a topology, arrival is simulated with equal links: each rank starts its ops of one backend one
// after another, an op starts when those that it is `after` have ended, and lasts as long as its bytes. With
// one, plan::simulate tells. What a rank holds from the start arrives at 0.
//
// A tile runs when the last chunk that it needs is expected; among equals the kernel's own traversal decides,
// so that its locality in the cache is kept. With phases a tile starts earlier: it is sorted by the time at
// which its first iteration can run, then by its last chunk.
//
// Among tiles that can run alike, one whose stores make a chunk goes by that chunk's deadline: when the first
// op that sends it could start. So the rows that are sent first are made first, and what a rank keeps comes
// last. What a sum adds to is due a chunk after the contributions are expected: one is still under way then.
// Where contributions are read where they are, all of a sum is due at once, the own part with the last pull.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/assign.hpp"
#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/lower.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/produce.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// By op id: when it ends, in bytes that one link has carried by then.
[[nodiscard]] std::vector<std::int64_t> expect_arrivals(const Lowered& lowered, const Precedence& precedence);

/// By rank and tile: when the first of the chunks that it makes is to be sent, in the units of
/// expect_arrivals; INT64_MAX for a tile that makes none. Empty when no kernel makes any.
[[nodiscard]] std::vector<std::vector<std::int64_t>> deadlines_of(const Lowered& lowered,
                                                                  const Precedence& precedence,
                                                                  const Production& production,
                                                                  const std::vector<std::int64_t>& arrivals,
                                                                  std::size_t num_tiles);

/// By rank and slot: the tile that runs there. `deadlines`: of deadlines_of.
[[nodiscard]] std::vector<std::vector<std::int64_t>> order_tiles(
    const Dependence& dependence, const std::vector<std::int64_t>& arrivals, bool phases,
    const std::vector<std::vector<std::int64_t>>& deadlines = {});
/// The same as simulated on `topology` with the backends that were assigned, and in the same unit: bytes that
/// a link of kLinkBytesPerMicrosecond (cost.hpp) has carried by then. Fails as plan::simulate does.
[[nodiscard]] Result<std::vector<std::int64_t>> expect_arrivals(const plan::Plan& plan,
                                                                const Precedence& precedence,
                                                                const Backends& backends,
                                                                const plan::Topology& topology);

}  // namespace syncopate::fuse
