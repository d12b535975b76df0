// Precedence: which ops precede which, for passes that ask of every op. What a search has met it marks in tables that
// are made once: of a plan over many ranks each is as long as all ranks' ops.
//
// A receive follows its send, and so what the other node did before. That way is not gone: it would lead through the ops
// of all nodes for each of a node's waits, to save few of them.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/passes/place.hpp"

namespace syncopate::fuse {

/// A set of numbers from 0, as bits.
using Bits = std::vector<std::uint64_t>;

class Precedence {
public:
    /// Both outlive it.
    Precedence(const Graph& graph, const Placement& placement);

    /// `ops` without those that precede another one of them: having seen the rest, one has seen all. Sorted, each
    /// once.
    [[nodiscard]] std::vector<NodeId> last_of(std::vector<NodeId> ops);

    /// `ops` without those that are one of `seen`, or precede one.
    [[nodiscard]] std::vector<NodeId> not_seen(std::vector<NodeId> ops, const std::vector<NodeId>& seen);

    /// Of each of `ops`, which are sorted, each once: which of them, by their place there, are complete when it is.
    /// O(ops between them · ops / 64).
    [[nodiscard]] std::vector<Bits> shown_by(const std::vector<NodeId>& ops);

private:
    template <typename Visit>
    void each_before(NodeId op, const Visit& visit) const;
    /// `ops` without those that a search backwards meets, from what `begin` visits. It ends when it has met all but `free`
    /// of them, which nothing can meet.
    template <typename Begin>
    std::vector<NodeId> without_met(std::vector<NodeId> ops, std::size_t free, const Begin& begin);
    [[nodiscard]] std::int32_t earliest(const std::vector<NodeId>& ops) const;
    /// True the first time in a search.
    bool mark(NodeId op);

    const Graph& graph_;
    const Placement& placement_;
    std::vector<std::uint32_t> marked_;  ///< by op: the last search that met it
    std::vector<std::uint32_t> sought_;  ///< by op: the last search whose `ops` it was among
    std::vector<std::int32_t> place_;    ///< by op that the last search met: among those
    std::uint32_t search_ = 0;
};

}  // namespace syncopate::fuse
