// Deadlines of tiles: when what the tiles of a stage make should be made, so that it is there when the first op that sends it
// could start (order.hpp says which rules decide).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/fuse/model/scope.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/fuse/passes/order.hpp"
#include "syncopate/fuse/passes/place.hpp"

namespace syncopate::fuse {

/// Of what nobody waits for.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class Deadlines {
public:
    /// `traversal`: all tiles of the stage, in the kernel's order. Those of `scope` are found at once.
    Deadlines(const Graph& graph, const Lowered& lowered, const Placement& placement,
              const Arrivals& arrivals, std::size_t stage, const std::vector<std::int64_t>& traversal,
              Scope scope);
    Deadlines(const Deadlines&) = delete;  // `traversal` may be its owner's
    Deadlines& operator=(const Deadlines&) = delete;

    /// Whether some rank's tiles of the stage make chunks: else there are none.
    [[nodiscard]] bool any() const { return any_; }
    /// Whether chunks take turns, a tile each.
    [[nodiscard]] bool takes_turns() const { return takes_turns_; }
    /// By tile of `rank`: when the first of the chunks that it makes is to be sent, in the unit of Arrivals; kNever for a
    /// tile that makes none.
    [[nodiscard]] const std::vector<std::int64_t>& of(std::int32_t rank);

private:
    [[nodiscard]] std::int64_t due(NodeId node) const;
    [[nodiscard]] bool is_of_stage(const Made& made) const {
        return made.stage == static_cast<std::int32_t>(stage_);
    }
    void find_awaited();
    void find(Scope scope);
    [[nodiscard]] bool stores_all() const;
    [[nodiscard]] bool is_stored(NodeId node) const;
    [[nodiscard]] bool waits_for_chunk(NodeId node) const;
    void take_turns(std::vector<std::int64_t>& of_rank) const;

    const Graph& graph_;
    const Lowered& lowered_;
    const Placement& placement_;
    const Arrivals& arrivals_;
    std::size_t stage_;
    const std::vector<std::int64_t>& traversal_;
    bool any_ = false;
    bool takes_turns_ = false;
    std::vector<bool> awaited_;                         ///< by op: another one comes after it
    std::vector<std::vector<std::int64_t>> deadlines_;  ///< by rank, as they are asked for, and tile
};

}  // namespace syncopate::fuse
