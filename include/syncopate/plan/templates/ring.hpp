// ring and double_ring: shards are passed on step by step, as ring attention passes K and V, so that every
// rank sees all of them in turn and computes on each while the next one travels.
//
// A shard keeps its place in the tensor, for each rank's memory has room for the whole: a kernel finds it
// where it would in the unfused run, and nothing has to wait until a buffer is free. Shards are cut as in
// all_gather.hpp. Drawn for push; with `pull` the receiver owns the op.
//
// ring: `steps` hops to the successor; after all n - 1 of them everyone has everything, after fewer (a
// sliding window, a halo) each has its own shard and those of the `steps` ranks before it (n = 4):
//
//              rank 0    rank 1    rank 2    rank 3
//     step 0   0 -> 1    1 -> 2    2 -> 3    3 -> 0      r -> p: rank r's shard to rank p
//     step 1   3 -> 1    0 -> 2    1 -> 3    2 -> 0      after step 0 of the rank before
//     step 2   2 -> 1    3 -> 2    0 -> 3    1 -> 0
//
// With the algorithm bidirectional, (steps + 1) / 2 of the hops go to the successor and steps / 2 to the
// predecessor, side by side: where links work both ways, about half the time.
//
// double_ring: what LoongTrain calls Double-Ring-Attention (Gu et al., arXiv 2406.18485, 2024): inner rings
// inside the nodes and outer rings between them. In each turn the inner ring passes round what its node has,
// while the outer ring already moves each shard on to the same place in the next node, for the next turn; so
// both levels are at work, and a shard crosses each boundary between nodes once per rank and not once per
// step (2 nodes of 3):
//
//                      rank 0    rank 1    rank 2    rank 3    rank 4    rank 5
//     turn 0, across   0 -> 3    1 -> 4    2 -> 5    3 -> 0    4 -> 1    5 -> 2
//     turn 0, step 0   0 -> 1    1 -> 2    2 -> 0    3 -> 4    4 -> 5    5 -> 3
//     turn 0, step 1   2 -> 1    0 -> 2    1 -> 0    5 -> 4    3 -> 5    4 -> 3
//     turn 1, step 0   3 -> 1    4 -> 2    5 -> 0    0 -> 4    1 -> 5    2 -> 3      after turn 0, across
//     turn 1, step 1   5 -> 1    3 -> 2    4 -> 0    2 -> 4    0 -> 5    1 -> 3
//
// (Some call two counter-rotating rings a double ring; here that is `bidirectional`.)
#pragma once

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// `options.steps` shifts of the shards of `tensor`. Algorithms: ring (default), bidirectional. Fails
/// (ErrorClass::usage) if steps is below -1 or not below the ranks of the group, and as all_gather does.
[[nodiscard]] Result<Plan> ring(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options = {});

/// All shifts on two levels: o × i - 1 per rank, o - 1 of them between nodes. Fails as all_gather does.
[[nodiscard]] Result<Plan> double_ring(const Mesh& mesh, const Tensor& tensor,
                                       const TemplateOptions& options = {});

}  // namespace syncopate::plan
