// Vector clocks over chains of events: what each event has certainly seen of every chain.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/check/event_graph.hpp"
#include "plan/model/budget.hpp"

namespace syncopate::plan {

/// Decides reachability by merging clocks along the waits, for as many events as the one that is looked at
/// needs: a sweep in topological order, which forgets a clock once all followers have merged it. So memory is
/// that of the sweep's front, not of the plan. (Vector clocks: Fidge, "Timestamps in message-passing systems
/// that preserve the partial ordering", 1988; chains: Jagadish, "A compression technique to materialize
/// transitive closure", TODS 1990.) Time: edges × chains, 16 of which are one step of `budget`.
class ChainClocks {
public:
    /// The graph must have no cycle, and all arguments outlive this.
    ChainClocks(const EventGraph& graph, const Followers& followers,
                std::span<const std::int32_t> topological, Budget& budget);

    /// Whether there are few enough chains, and the front is narrow enough.
    [[nodiscard]] bool feasible() const { return feasible_; }

    /// Whether `first` comes before `second`, the sweep having gone as far as `now` (exclusive) needs.
    /// nullopt if the clocks that would tell are gone, or further on. Only if feasible(); `now` must not go
    /// back.
    [[nodiscard]] std::optional<bool> before(std::int32_t first, std::int32_t second, std::int32_t now);

private:
    struct Block {  // of 16 chains: how many events of each have been seen
        std::array<std::int32_t, 16> seen{};
    };
    static constexpr std::size_t kBlock = 16;
    static constexpr std::size_t kMaxBytes = std::size_t{1} << 29;

    void make_chains(std::span<const std::int32_t> topological);
    [[nodiscard]] std::size_t widest_front(std::span<const std::int32_t> topological) const;
    void advance(std::int32_t position);
    [[nodiscard]] bool sees(std::int32_t event, std::int32_t first) const;

    const EventGraph& graph_;
    const Followers& followers_;
    std::span<const std::int32_t> topological_;
    Budget& budget_;
    bool feasible_ = false;
    std::size_t blocks_ = 0;               ///< of one clock
    std::vector<std::int32_t> chain_;      ///< of each event
    std::vector<std::int32_t> number_;     ///< in its chain, from 1
    std::vector<std::int32_t> position_;   ///< in topological_
    std::vector<std::int32_t> remaining_;  ///< followers that have not merged its clock yet
    std::vector<std::int32_t> slot_;       ///< where its clock is; -1: not yet, or no longer
    std::vector<Block> clocks_;
    std::vector<std::int32_t> free_slots_;
    std::int32_t swept_ = 0;  ///< events that have had their clock made
};

}  // namespace syncopate::plan
