// Guard: the edges that keep one call from overwriting what another rank's call still reads, without a
// barrier.
//
// Let X be an op with executing rank e, source rank s, destination rank d (docs/protocol.md).
//
// consumed  [P4, P10, P15] If d != e, nothing else tells e that d's readers of call n are done. So d says so
//             - when d's kernel ends (kernel_posts), if only that kernel reads the region: it waited for X,
//               so X of call n itself has landed by then;
//             - when d's call ends (end_posts), if an op reads it on d, another rank's op writes to it, or
//               nobody reads it but the end of the call: d's own transfers are joined before, and those that
//               others execute are seen by d's end_waits.
//           If d == e, d's own main stream has that order.
// ready     [P11] If the source is delivered by ops, X's `after` covers it. ready implies consumed of the same
//           pair, as s begins call n+1 after it has ended call n.
// fetched   [P12] What tiles fetch inline has been read when their kernel ends: one signal a kernel.
// arrived   [P13] So that `final` holds at the end, and that `consumed` there covers the writes too.
//
// Why this suffices: [P14]. What kernels sum needs none of it [P16].
//
// What a call has received, its kernel reads, and d does not hold at the end may be overwritten once its
// readers within the call are done: a user who wants to keep it copies it in the call.
#pragma once

#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/place.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

/// Edges into the boundaries of each rank's call, by rank.
struct Guards {
    /// Into `start`: from `begin` of the ranks that are to be ready, then, with lag 1, from `kernel` or `end`
    /// of those that are to have consumed; each in the order of ranks.
    std::vector<std::vector<Edge>> start;
    std::vector<std::vector<NodeId>> end;  ///< into `end`: the last ops whose completion nothing else implies
};

/// Of the ranks of `scope`.
[[nodiscard]] Guards guard(const Graph& graph, const plan::Plan& plan, const Placement& placement,
                           const Synchronization& synchronization, Scope scope = {});

}  // namespace syncopate::fuse
