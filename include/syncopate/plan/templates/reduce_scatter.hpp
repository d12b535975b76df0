// reduce_scatter: every rank holds its contribution to the whole tensor and ends with one shard of it,
// reduced over all ranks of the group.
//
// Shards are cut as in all_gather.hpp. What a rank holds outside its own shard is lost in the ring and
// hierarchical algorithms, which add up in place. The order of additions is fixed, so that the same input
// gives the same bits on every run. Drawn for push; with `pull` the receiver owns the transfers, the local
// ops stay.
//
// direct: every contribution goes straight to who owns the shard, into a slot of its own of the staging
// tensor NAME.staging (n - 1 slots, one shard long). The owner adds them up in the order of positions, 0 + 1
// + 2 + …, as they come, chunk by chunk (n = 4; on rank 2):
//
//                rank 0    rank 1    rank 2    rank 3
//     offset 1   0 => 1    1 => 2    2 => 3    3 => 0      r => p: rank r's contribution to shard p,
//     offset 2   0 => 2    1 => 3    2 => 0    3 => 1      to rank p
//     offset 3   0 => 3    1 => 0    2 => 1    3 => 2
//     then       slot 0 += slot 1 ; shard += slot 0 ; shard += slot 2(from rank 3)      on rank 2
//
// Ranks before the owner are added up in slot 0 before the owner's own contribution joins, since a + b = b +
// a: so the sum is that of the order 0, 1, 2, … bit for bit, on whatever rank.
//
// ring: the sum travels. Each step adds what comes into the contribution held there and passes the sum on; no
// staging space; the order of additions of shard p begins at rank p + 1 (n = 4):
//
//              rank 0    rank 1    rank 2    rank 3
//     step 0   3 +> 1    0 +> 2    1 +> 3    2 +> 0        p +> r: the sum for shard p is added in at rank r
//     step 1   2 +> 1    3 +> 2    0 +> 3    1 +> 0        after step 0 of the rank before
//     step 2   1 +> 1    2 +> 2    3 +> 3    0 +> 0
//
// hierarchical: first inside nodes, then between them, one target node after another. For each, the ranks of
// a node send their contributions to the one with the owner's place, which adds them up (in rank order) and
// sends one sum across; the owner adds the nodes' sums up in the order of nodes. While a sum crosses,
// contributions for the next node are collected, so both levels are at work (2 nodes of 3; rank 0; its own
// node comes last):
//
//                rank 0, place 0 of node 0
//     collect 1  0 => 4 at 1, 0 => 5 at 2         r => p at q: rank r's contribution to shard p, to rank q
//     collect 2  0 => 1, 0 => 2
//     reduce 1   shard 3 += slots (from ranks 1, 2)
//     across 1   3 +=> 3                           the node's sum for shard 3, to rank 3
//     reduce 2   shard 0 += slots (from ranks 1, 2)
//     at last    shard 0 += node slot (from rank 3)
//
// Staging: NAME.staging, o × (i - 1) slots, and NAME.node-staging, o - 1, for o nodes of i ranks.
#pragma once

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// The plan drawn above, with `options.reduce`. Algorithms: direct (default), ring, hierarchical. `initial`
/// (or `produced`) is partial, `final` is "of" all, or of the ranks of the group. Fails as all_gather does.
[[nodiscard]] Result<Plan> reduce_scatter(const Mesh& mesh, const Tensor& tensor,
                                          const TemplateOptions& options = {});

}  // namespace syncopate::plan
