// all_gather: every rank holds one shard of a tensor and ends with the whole of it.
//
// Position p of a group of n owns the p-th interval of split_evenly along `axis`; each shard is cut again
// into `split` chunks. Shards or chunks that come out empty (an axis shorter than n × split) have no op. All
// is in place: nobody copies its own shard, and no staging space is used. With `minor_split` > 1 the whole is
// done once per minor slice, so that every peer's first slice comes before any peer's second; `peer_by_peer`
// (direct) turns that round.
//
// Drawn for push; rows in order of time. With `pull` the receiver owns the op.
//
// direct: each shard goes straight from its owner to each other rank, with no op after another. The list of a
// rank goes round the ring of ranks from itself, so that at each moment no two ranks aim at the same
// destination and all chunks of one source arrive together (n = 4, split = 2):
//
//     push                rank 0      rank 1      rank 2      rank 3
//     offset 1, chunk 0   0.0 -> 1    1.0 -> 2    2.0 -> 3    3.0 -> 0        r.s: chunk s of rank r's shard
//     offset 1, chunk 1   0.1 -> 1    1.1 -> 2    2.1 -> 3    3.1 -> 0
//     offset 2, chunk 0   0.0 -> 2    1.0 -> 3    2.0 -> 0    3.0 -> 1
//     offset 2, chunk 1   0.1 -> 2    1.1 -> 3    2.1 -> 0    3.1 -> 1
//     offset 3, chunk 0   0.0 -> 3    1.0 -> 0    2.0 -> 1    3.0 -> 2
//     offset 3, chunk 1   0.1 -> 3    1.1 -> 0    2.1 -> 1    3.1 -> 2
//
// With `pull`, rank r reads from r+1, r+2, … instead: row "offset d, chunk s" of rank r is (r+d).s -> r.
//
// ring: each passes on what came last; the n-th chunk of a shard waits only for that chunk (n = 4):
//
//              rank 0    rank 1    rank 2    rank 3
//     step 0   0 -> 1    1 -> 2    2 -> 3    3 -> 0      r -> p: rank r's shard to rank p
//     step 1   3 -> 1    0 -> 2    1 -> 3    2 -> 0      after step 0 of the rank before
//     step 2   2 -> 1    3 -> 2    0 -> 3    1 -> 0
//
// bidirectional: round the ring both ways, n / 2 steps to the right and (n - 1) / 2 to the left (n = 5):
//
//              rank 0            rank 1            rank 2            …
//     step 0   0 -> 1, 0 -> 4    1 -> 2, 1 -> 0    2 -> 3, 2 -> 1
//     step 1   4 -> 1, 1 -> 4    0 -> 2, 2 -> 0    1 -> 3, 3 -> 1
//
// double_ring: see ring.hpp; all its steps together are an all-gather.
//
// hierarchical: each shard crosses to every other node once, straight to the rank with its owner's place
// there (its rail), which hands it out inside. While one shard is handed out the next one crosses, so both
// levels are at work (2 nodes of 3; node 0 is ranks 0 1 2, node 1 is ranks 3 4 5):
//
//                rank 0            rank 1            rank 2            rank 3            …
//     across 1   0 -> 3            1 -> 4            2 -> 5            3 -> 0
//     within 0   0 -> 1, 0 -> 2    1 -> 2, 1 -> 0    2 -> 0, 2 -> 1    3 -> 4, 3 -> 5    its own, at once
//     within 1   3 -> 1, 3 -> 2    4 -> 2, 4 -> 0    5 -> 0, 5 -> 1    0 -> 4, 0 -> 5    after across 1
//
// With o nodes the rows are across 1, within 0, across 2, within 1, …, across o-1, within o-2, within o-1.
#pragma once

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

using AllGatherOptions = TemplateOptions;

/// The plan drawn above. Algorithms: direct (default), ring, bidirectional, double_ring, hierarchical. Each
/// moves a shard n - 1 times per group.
///
/// Fails (ErrorClass::usage) if an axis is not one of the tensor's, both are the same, a split is below 1 or
/// cuts no axis, the group or its levels do not fit the mesh, an option is not one of its own, the mesh has
/// no ranks or more than kMaxRanks, or the plan would have more than kMaxOps ops. So do the other templates.
[[nodiscard]] Result<Plan> all_gather(const Mesh& mesh, const Tensor& tensor,
                                      const TemplateOptions& options = {});

}  // namespace syncopate::plan
