// broadcast: one rank holds a tensor and every rank of the group ends with it. The tensor is cut along `axis`
// into `split` chunks; hops are counted in positions from the root, round the group. In place. Drawn for
// push, rows in order of time; with `pull` the receiver owns the op.
//
// direct: the root sends to everyone, each chunk to all before the next one (n = 4, root 0):
//
//               rank 0
//     chunk 0   c0 -> 1, c0 -> 2, c0 -> 3
//     chunk 1   c1 -> 1, c1 -> 2, c1 -> 3
//
// chain: each passes on to the next, chunk by chunk, so that all links of the chain are at work at once: with
// s chunks s + n - 2 steps of one chunk each. Near the bandwidth bound for many chunks (n = 4, split = 3):
//
//              rank 0     rank 1     rank 2
//     step 0   c0 -> 1
//     step 1   c1 -> 1    c0 -> 2
//     step 2   c2 -> 1    c1 -> 2    c0 -> 3
//     step 3              c2 -> 2    c1 -> 3
//     step 4                         c2 -> 3
//
// tree (binomial): those who have a chunk double each round, ⌈log2 n⌉ rounds: for small tensors (n = 6):
//
//               rank 0    rank 1    rank 2    rank 3
//     round 0   c0 -> 1
//     round 1   c0 -> 2   c0 -> 3
//     round 2   c0 -> 4   c0 -> 5
#pragma once

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// The plan drawn above, from position `options.root` of each group. Algorithms: direct (default), chain,
/// tree. Fails (ErrorClass::usage) if root is not a position of the group, and as all_gather does.
[[nodiscard]] Result<Plan> broadcast(const Mesh& mesh, const Tensor& tensor,
                                     const TemplateOptions& options = {});

}  // namespace syncopate::plan
