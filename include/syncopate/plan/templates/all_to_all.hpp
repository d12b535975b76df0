// all_to_all: every rank holds one shard of a tensor along `axis` and ends with one along `to_axis`: rows
// become columns. So head-parallel attention turns shards of the sequence into shards of the heads. The
// all_to_all of equal buffers, as libraries have it, is that of a tensor whose first two axes are sender and
// receiver.
//
// Both axes are cut by split_evenly; p.q is what lies in row shard p and column shard q. All is in place, and
// a piece that is empty has no op. `split` cuts along `axis`. Drawn for push; with `pull` the receiver owns
// the op.
//
// direct: straight from sender to receiver, with no op after another (n = 4):
//
//                rank 0    rank 1    rank 2    rank 3
//     offset 1   0.1 -> 1  1.2 -> 2  2.3 -> 3  3.0 -> 0
//     offset 2   0.2 -> 2  1.3 -> 3  2.0 -> 0  3.1 -> 1
//     offset 3   0.3 -> 3  1.0 -> 0  2.1 -> 1  3.2 -> 2
//
// hierarchical: what a node has for one receiver is first brought together inside the node, at the rank with
// the receiver's place, and then crosses in one message, as many times larger as a node has ranks. While it
// crosses, what goes to the next node is collected, so both levels are at work (2 nodes of 3; rank 0):
//
//                rank 0, place 0 of node 0
//     within 1   0.4 -> 1, 0.5 -> 2         for node 1, to the rank of this node with the receiver's place
//     within 2   0.1 -> 1, 0.2 -> 2         for this node: at their receivers
//     across 1   {0,1,2}.3 -> 3             after within 1 of ranks 1 and 2
//
// With o nodes the rows are within 1, within 2, across 1, within 3, across 2, …, within o, across o-1.
#pragma once

#include <cstdint>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// The plan drawn above. Algorithms: direct (default), hierarchical. Fails (ErrorClass::usage) if the tensor
/// has one axis only or to_axis is not another one of its axes, and as all_gather does.
[[nodiscard]] Result<Plan> all_to_all(const Mesh& mesh, const Tensor& tensor,
                                      const TemplateOptions& options = {});

/// options.to_axis, or its default, judged.
[[nodiscard]] Result<std::int32_t> all_to_all_axis(const Tensor& tensor, const TemplateOptions& options);

}  // namespace syncopate::plan
