// Place: the lane of each op, and what lanes imply.
//
// Y precedes X when X waits for Y, or when both go through one lane of a rank that ends one transfer before
// it begins the next (a copy stream, its sums) and Y comes first in it: its writes are visible in that order.
// In other lanes (the chunk engine, device host) only the graph's edges count. Precedence is transitive in
// memory as well: each edge is a release by the one side and an acquire by the other, so who has seen X's
// completion sees what Y wrote.
//
// Copy streams, by number:
//
//   0      everything else
//   0, 1   in turn, what the kernel makes, where chunks are small (Costs::two_streams_mib): starting a
//          copy, and posting after it, takes as long as moving 3 MiB, which is hidden behind the other
//          stream's copy
//   2 …    what this rank has summed, one for each peer: ranks end their sums at different times, and one
//          that serves its peers in turn meets a second sender at each of them, so that both go at half the
//          speed; side by side its copies fill its link whatever the others do
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/scope.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// What runs its ops one after another, on the rank of the op.
struct Lane {
    LaneKind kind = LaneKind::inlined;
    std::int32_t stream = 0;  ///< of copies: which one
    auto operator<=>(const Lane&) const = default;
};

/// By op some ops, in one piece of memory.
class OpLists {
public:
    /// To one op after another.
    void add(std::span<const NodeId> ops) { ops_.insert(ops_.end(), ops.begin(), ops.end()); }
    void end_list() { begin_.push_back(ops_.size()); }
    void reserve(std::size_t lists, std::size_t ops) {
        begin_.reserve(lists + 1);
        ops_.reserve(ops);
    }
    [[nodiscard]] std::size_t size() const { return begin_.size() - 1; }
    [[nodiscard]] std::span<const NodeId> operator[](std::size_t op) const {
        return std::span(ops_).subspan(begin_[op], begin_[op + 1] - begin_[op]);
    }

private:
    std::vector<std::size_t> begin_{0};  ///< in ops_; one more entry for the end
    std::vector<NodeId> ops_;
};

/// By op, unless it says otherwise.
struct Placement {
    std::vector<Lane> lanes;
    std::vector<NodeId> previous;  ///< the op that its lane ends before it begins this one
    /// The op of its rank and lane that starts before it, in any lane kind.
    std::vector<NodeId> started_before;
    OpLists before;                      ///< ops that the graph's edges name, and `previous`
    std::vector<std::int32_t> position;  ///< in Graph::sorted
    /// Chunks that it must wait for: not those that `before` implies.
    std::vector<std::vector<NodeId>> awaits;
};

/// Fails, with rank and op, where an op writes into what another rank's kernel makes without a surely earlier
/// op that has waited for that, and where ranks would come to collectives in orders that block each other.
/// What is written on ranks outside of `scope` is not looked at.
[[nodiscard]] Result<Placement> place(const Graph& graph, const Lowered& lowered, const Backends& backends,
                                      const Costs& costs = usual_costs(), Scope scope = {});

/// For each op whether it is one of `ops`, or precedes one of them.
[[nodiscard]] std::vector<bool> completed_with(const Placement& placement, const std::vector<NodeId>& ops);

}  // namespace syncopate::fuse
