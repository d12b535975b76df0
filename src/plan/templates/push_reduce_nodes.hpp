// push_reduce over several nodes. Each shard crosses from every other node once, by the rank that has its owner's
// place there:
//
//     node 0   ranks 0, 1   inside: contributions to rank 2's shard to rank 0, to rank 3's to rank 1; summed
//                           across: rank 0 ⇒ rank 2, rank 1 ⇒ rank 3
//     node 1   ranks 2, 3   inside: contributions to own shards; summed with what has crossed, in rank order
//
// Other nodes' shards go first, as they have the longest way; one node's cross while the next one's are made. An
// all-reduce then goes the same way back: a shard crosses to every other node once, and is handed out there.
#pragma once

#include <vector>

#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::plan {

/// `chunks`: of each rank's shard. The options must be sound; those of backends and of pulls are not looked at.
[[nodiscard]] Plan push_reduce_nodes(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options,
                                     std::vector<std::vector<Region>> chunks);

}  // namespace syncopate::plan
