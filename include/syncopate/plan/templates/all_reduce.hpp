// all_reduce: every rank holds its contribution to the whole tensor and ends with the whole, reduced over all
// ranks of the group. All ranks end with the same bits, and so does every run.
//
// two_shot: reduce_scatter, then all_gather, both direct (drawn there). A chunk goes out as soon as it is
// reduced:
//
//               rank p
//     shot 1    its contribution to each shard q  =>  rank q's slot for p
//     reduce    shard p += the slots, in the order of positions
//     shot 2    shard p                           ->  all others, in place           after reduce
//
// Every rank sends 2 (n - 1) / n of the tensor: for large tensors. Reducing sets the ranks apart, and two
// senders to one receiver are slower than one after the other; so in shot 2, and inside the nodes of
// hierarchical, a rank is sent to in turn: the transfer of offset d to it waits for the one of offset d - 1.
// (Simulated, 128 MiB on 8 H200s: 781 µs instead of 1674.)
//
// one_shot: everyone sends its whole contribution to all, and each reduces all of it by itself. One hop, n -
// 1 times the tensor sent: for small ones, where latency counts (n = 3):
//
//                rank 0              rank 1              rank 2
//     offset 1   0 => 1              1 => 2              2 => 0       r => p: all of r's contribution,
//     offset 2   0 => 2              1 => 0              2 => 1       to its slot on rank p
//     reduce     own += slots 0, 1   slot 0 joins own,   slot 0 += slot 1,
//                                    then slot 1         which joins own
//
// On all ranks that is the order 0, 1, 2 (see reduce_scatter.hpp); and since `own` is what others fetch, its
// reduction waits until they have.
//
// ring: the ring reduce_scatter, then the ring all_gather: 2 (n - 1) steps, each with the two neighbours
// only, and no staging space.
//
// hierarchical: the hierarchical reduce_scatter, then the hierarchical all_gather. With split >= 2 the first
// chunks are handed out while the last ones are still reduced.
#pragma once

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// The plan drawn above, with `options.reduce`. Algorithms: two_shot (default), one_shot, ring, hierarchical.
/// Staging: one_shot has n - 1 slots for the whole tensor in NAME.staging, the others as in
/// reduce_scatter.hpp. Fails as all_gather does.
[[nodiscard]] Result<Plan> all_reduce(const Mesh& mesh, const Tensor& tensor,
                                      const TemplateOptions& options = {});

}  // namespace syncopate::plan
