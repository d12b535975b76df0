// All-reduce along spanning trees that share a machine's links evenly.
//
// Where each pair of neighbours has a link of its own in either direction, a spanning tree rooted at a
// chunk's owner sums the chunk up on its way to the owner, and spreads the result back along the same edges:
// over each edge once in one direction and once in the other. If the trees of all chunks load every edge
// alike, all links are busy all the time, in both directions, and the bandwidth bound is reached. A graph has
// as many edge-disjoint spanning trees as its sparsest partition allows (Nash-Williams, "Edge-disjoint
// spanning trees of finite graphs", J. London Math. Soc. 1961); a mesh of 4 x 4 24/15 of them, in fractions,
// though no two whole ones:
//
//     o─o─o o   o o─o─o          of 24 edges a tree uses 15; with many chunks, each on
//     │   │     │ │   │          the tree that is least loaded so far, each edge comes
//     o o─o─o   o─o o─o  …       to carry 15/24 of all
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/synthesise/synthesis_steps.hpp"

namespace syncopate::plan {

struct TreeStep {
    std::int32_t chunk = 0;
    std::int32_t from = 0;  ///< participants
    std::int32_t to = 0;
    bool sums = false;  ///< on the way to the owner
    /// The step before it on the same link, if that is of the other kind; else -1. These two are carried out
    /// by different engines, which would share the link if this one did not wait.
    std::int32_t yields_to = -1;
};

/// Steps in order of start: each chunk is summed at its origin and then spread. Of the steps that are ready,
/// a link takes that of the earliest chunk of its owner. nullopt where this does not fit: connections share
/// links or lanes, or lead one way only, or do not connect all members. O(chunks · connections · log) time.
[[nodiscard]] std::optional<std::vector<TreeStep>> tree_steps(const SynthesisSearch& search,
                                                              const std::vector<MovingChunk>& chunks);

}  // namespace syncopate::plan
