// Guard: the edges that keep one call from overwriting what another rank's call still reads, without a
// barrier.
//
// Memory is reused by every call, ranks may be any number of calls apart, and a rank that has ended a call
// may at once overwrite what it holds initially. Let X be an op with executing rank e, source rank s,
// destination rank d. A rank's main stream runs begin, the kernel, the join of its own transfers, end, in
// this order, call after call.
//
// consumed  (d → e, lag 1)  X of call n+1 overwrites on d what X of call n brought. If d != e, nothing else
//           tells e that d's readers of call n are done. So d says so, and e waits for it before call n+1
//           starts a transfer. d says so
//             - when d's kernel ends (kernel_posts), if only that kernel reads the region: it waited for X,
//               so X of call n itself has landed by then;
//             - when d's call ends (end_posts), if an op reads it on d, another rank's op writes to it, or
//               nobody reads it but the end of the call: d's own transfers are joined before, and those that
//               others execute are seen by d's end_waits (below).
//           If d == e, d's own main stream has that order.
// ready     (s → e, lag 0)  A pull reads what s's user writes between calls: e starts only when s has begun
//           the same call. The same (d → e) if X writes into what d holds initially, which d's user
//           refreshes between calls, or into what d holds at the end and its kernel does not read, which
//           d's user reads between calls. If the source is delivered by ops, X's `after` covers it. ready
//           implies consumed of the same pair, as s begins call n+1 after it has ended call n.
// fetched   (X → s)  A pull has read its source: s waits for it before its call ends, since from then on
//           its user, or an op of the next call, may overwrite that region. What tiles fetch inline has been
//           read when their kernel ends: one signal a kernel.
// arrived   (X → d)  What arrives at d and neither its kernel nor its own transfers imply is waited for at
//           the end, so that `final` holds then, and so that `consumed` at the end covers the writes too.
//
// No race: each region of a rank's memory is written by its user (between end and begin of that rank), by
// that rank's transfers (between its begin and its end), or by another rank's, which lie after a `ready` of
// the same call or a `consumed` of the call before, and before that rank's end through `arrived`; its readers
// lie before `consumed` and the end. So writes of call n+1 come after all reads and writes of call n, and
// reads of call n+1 after the writes of call n+1 by the waits of slots and transfers. No deadlock: a wait of
// lag 1 needs what its poster did in the call before; ready is posted by the first step of a call, before any
// wait; what remains follows `after`, which has no cycle. Ranks that exchange nothing need not wait for each
// other, so a straggler holds up only those that need it.
//
// What a call has received and its kernel reads may be overwritten once its readers within the call are done:
// a user who wants to keep a gathered tensor copies it in the call.
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

[[nodiscard]] Guards guard(const Graph& graph, const plan::Plan& plan, const Placement& placement,
                           const Synchronization& synchronization);

}  // namespace syncopate::fuse
