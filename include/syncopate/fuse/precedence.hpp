// Precedence: which ops have completed when another one has, and in which order each rank starts its own.
//
// Y precedes X when X waits for Y (`after`), or when both go through one lane of a rank (a copy stream, its
// sums) and Y comes first in it: a lane is first-in first-out, and its writes are visible in that order. On
// `host` and in the chunk engine a transfer begins before the one before it has ended, so only `after`
// counts. Precedence is transitive in memory as well: each edge is a release by the one side and an acquire
// by the other, so who has seen X's completion sees what Y wrote.
//
// Copy streams, by number:
//
//   0      everything else
//   0, 1   in turn, what the kernel makes, where chunks are small: starting a copy, and posting after it,
//          takes as long as moving 3 MiB, which is hidden behind the other stream's copy
//   2 …    what this rank has summed, one for each peer: ranks end their sums at different times, and one
//          that serves its peers in turn meets a second sender at each of them, so that both go at half the
//          speed; side by side its copies fill its link whatever the others do
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "syncopate/fuse/assign.hpp"
#include "syncopate/fuse/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// Streams for what is summed; with more peers than this some share one.
inline constexpr std::int32_t kSummedStreams = kMostCopyStreams - 2;

/// Ops are numbered over all ranks, by rank and then by index.
struct Precedence {
    std::vector<plan::OpRef> ops;        ///< by id
    std::vector<std::int32_t> first_id;  ///< by rank: the id of its op 0; one more entry for the end
    std::vector<std::vector<std::int32_t>> after;  ///< by id: what `after` names, each once
    std::vector<std::int32_t> stream_previous;     ///< by id: the copy before it in its lane; -1: none
    std::vector<std::int32_t> copy_stream;         ///< by id: of copies, the number of theirs
    std::vector<bool> fetched;  ///< by id: the tiles that read its destination carry it out
    std::vector<std::int32_t>
        started_before;  ///< by id: the same rank's op of that backend before it; -1: none
    std::vector<std::vector<std::int32_t>> before;  ///< by id: `after`, and stream_previous
    std::vector<std::int32_t> sorted;    ///< ids, each after its `before` and its rank's earlier starts
    std::vector<std::int32_t> position;  ///< by id: where it is in `sorted`
    std::vector<std::vector<std::int32_t>>
        start_order;  ///< by rank: its ops in the order in which they are to start

    [[nodiscard]] std::int32_t id(plan::OpRef ref) const { return first_id[ref.rank] + ref.index; }
    [[nodiscard]] std::int32_t num_ops() const { return static_cast<std::int32_t>(ops.size()); }
};

/// The precedence of `plan`. A rank starts its ops in the order of its list, unless starting them one after
/// another would block for ever (its first op waits for its second); then all ranks follow one topological
/// order of `after`, which takes ops of small index first. `done_with`: pulls that are parts of sums, which
/// no stream does (fuse/lower.hpp). `plan` must be well formed (plan::check); fails if `after` has a cycle.
[[nodiscard]] Result<Precedence> precede(const plan::Plan& plan, const Backends& backends,
                                         const std::map<plan::OpRef, plan::OpRef>& done_with = {});

/// For each op whether it is one of `ids`, or precedes one of them.
[[nodiscard]] std::vector<bool> completed_with(const Precedence& precedence,
                                               const std::vector<std::int32_t>& ids);

/// `ids` without those that precede another one of them: having seen the rest, one has seen all. Sorted, each
/// once.
[[nodiscard]] std::vector<std::int32_t> last_of(const Precedence& precedence, std::vector<std::int32_t> ids);

}  // namespace syncopate::fuse
