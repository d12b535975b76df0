// Synthesis: the plan of a collective for any topology, found by greedy search in the style of TACOS (W. Won
// et al., "TACOS: Topology-Aware Collective Algorithm Synthesizer for Distributed Machine Learning", arXiv
// 2304.05301, §IV).
//
// Think of the machine's links drawn once for every moment (a time-expanded network). From the first moment
// on, each connection that is free is matched with a chunk that its near end has and its far end lacks; when
// a chunk has arrived, it can go on from there. Here moments are events (a connection or an engine falls
// free, a chunk arrives), a connection is a way between two ranks through switches alone, and it is matched
// only when every link on it and a lane of the sender's engine are free, so that no two transfers of the
// result are meant to share a link. Of several chunks the one that the fewest ranks have goes first; into
// another node a chunk goes once.
//
//     ring of 4, 2 chunks a shard        time 0      1      2
//     (o.k: chunk k of rank o's shard)   0 → 1  0.0    3.0    2.1         each link busy all the time:
//                                        0 → 3  0.1    1.1    2.0  …      the bandwidth bound is reached
//
//   all_gather
//       As described.
//   broadcast
//       As described, or, where all reach all through switches, in rounds
//       (src/plan/templates/broadcast_rounds.hpp); over two nodes, with both engines, as drawn in
//       src/plan/templates/broadcast_nodes.hpp.
//   reduce_scatter
//       An all-gather on the topology with its links reversed, run backwards: what spread a chunk from its
//       owner now sums it up on the way to the owner.
//   all_reduce
//       reduce_scatter, then all_gather, of groups of chunks one after another, so that one group is spread
//       while the next one is summed; as many groups as simulate fastest, and going into another node twice
//       where that does. Or, where each connection has its links to itself, along spanning trees that load
//       them alike (src/plan/templates/tree_steps.hpp), if that simulates faster.
//   all_to_all
//       Each chunk has one destination, and a shortest way there: those over the least loaded links (loads
//       count by their squares), farthest chunks first.
//
// With `chunks` left open, broadcast and all_to_all may go half by the copy engines and half by the SMs, each
// half as if it had half of every link. Of all these ways the plan that simulates fastest is kept.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

struct SynthesiseOptions {
    CollectiveKind kind = CollectiveKind::all_gather;
    std::int32_t axis = 0;  ///< along which ranks hold shards; for broadcast, along which the tensor is cut
    std::int32_t to_axis = 1;  ///< all_to_all: along which they hold shards afterwards
    /// Per shard (broadcast: of the whole), along `axis`; 0: as many as simulate fastest.
    std::int32_t chunks = 1;
    std::int32_t root = 0;  ///< broadcast: the rank that has the tensor
    std::uint64_t seed = 0;
    std::int32_t attempts = 0;  ///< searches of which the fastest plan is kept; 0: as many as seem worth it
    bool sms = true;  ///< with `chunks` 0: SMs may move chunks too, where that makes the plan faster
    /// Who takes part, each once; empty: all. Nobody else sends or receives.
    std::vector<std::int32_t> ranks;
};

/// The plan, in place on `tensor`; pushes, each after the one that brought its chunk, in the order in which
/// they are meant to start. Participant i owns the i-th interval of split_evenly over the axis.
///   all_gather       initial: own shard                     final: the whole
///   reduce_scatter   initial: a contribution to the whole   final: own shard, reduced over participants
///   all_reduce       initial: a contribution to the whole   final: the whole, reduced over participants
///   broadcast        initial: the root has the whole        final: the whole
///   all_to_all       initial: own shard along `axis`        final: own shard along `to_axis`
/// The same arguments give the same plan. Fails (ErrorClass::usage) on an axis or a rank that does not exist,
/// more ranks than devices, a plan of more than kMaxOps ops, a kind that is none of these, and where some
/// rank cannot be reached. For n ranks with c chunks each, time grows about with c n² × (connections of a
/// rank + c n / 64) for each attempt.
[[nodiscard]] Result<Plan> synthesise(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                                      const SynthesiseOptions& options = {});

}  // namespace syncopate::plan
