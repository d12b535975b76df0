// Collectives that a plan leaves direct: each participant's op becomes one step of its rank, which a library
// (NCCL) or, on device host, the ranks together carry out.
//
//   rank 0   | … | all_gather | …        each participant waits for what touches its own memory: what it
//   rank 1   | … | all_gather | …        sends has been made or has arrived, what it overwrites has been read
//   rank 2   | … | all_gather | …
//
// Seen from one rank it is a local op from its `src` to its `dst`: the library waits for the others by
// itself. Whoever comes after it waits for the participants whose memory it touches.
#pragma once

#include <map>
#include <string>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

struct Graph;
struct Placement;

/// By op: the collective that it takes part in. `plan` must be well formed (plan::check).
using Collectives = std::map<plan::OpRef, Collective>;
[[nodiscard]] Collectives collectives_of(const plan::Plan& plan);

/// Whether some op is one's.
[[nodiscard]] bool has_collectives(const plan::Plan& plan);

/// Whether the region is one run of the tensor's elements.
[[nodiscard]] bool is_contiguous(const plan::Tensor& tensor, const plan::Region& region);

/// Why a library could not carry out the collective as one call; empty if it can. It takes contiguous
/// regions, shards of one size in the order of the participants, and sums and maxima of what can_reduce().
[[nodiscard]] std::string collective_objection(const plan::Plan& plan, const Collective& collective);

/// The plan with each `after` that names a collective naming the participants instead on whose memory the op
/// works. A participant also comes after what another one comes after, where that works on the participant's memory. All
/// participants of a broadcast come after what any of them comes after, as its root does not wait for the others.
[[nodiscard]] plan::Plan with_participants(const plan::Plan& plan);

/// Fails, naming an op, where ranks would come to collectives in orders that block each other.
Status check_collective_order(const plan::Plan& plan, const Graph& graph, const Placement& placement);

}  // namespace syncopate::fuse
