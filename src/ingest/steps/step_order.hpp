// Which step of a schedule certainly comes before which.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ingest/steps/schedule.hpp"

namespace syncopate::ingest {

/// The graph of steps: the order in each worker, and the edges.
class StepOrder {
public:
    explicit StepOrder(const Schedule& schedule);

    /// All steps, each after what it waits for; shorter than the schedule if some wait for each other.
    [[nodiscard]] const std::vector<std::int32_t>& topological() const { return topological_; }
    [[nodiscard]] bool has_cycle() const { return topological_.size() != steps_.size(); }

    /// Steps of which each waits for the next, and the last for the first. Only with has_cycle().
    [[nodiscard]] std::vector<std::int32_t> cycle() const;

    /// What `step` waits for, without messages if not asked for.
    [[nodiscard]] std::vector<std::int32_t> waits(std::int32_t step, bool messages) const;

    /// True if `second` sees whatever `first` has done, in every run. Needs a graph without a cycle.
    ///
    /// A search back along the waits, which leaves out what is not after `first` by level, and ends in the
    /// worker of `first`: few steps in schedules that wait for what they use. nullopt once all searches
    /// together have looked at kMaxLooks steps: no schedule that anybody runs comes near.
    [[nodiscard]] std::optional<bool> before(std::int32_t first, std::int32_t second);

    static constexpr std::int64_t kMaxLooks = 200'000'000;

private:
    struct Wait {
        std::int32_t step;
        Edge::Kind kind;
    };
    [[nodiscard]] std::span<const Wait> incoming(std::int32_t step) const;

    const std::vector<Step>& steps_;
    std::vector<std::size_t> begin_;  ///< by step: where its waits begin
    std::vector<Wait> waits_;
    std::vector<std::int32_t> topological_;
    std::vector<std::int32_t> level_;  ///< of a step: length of the longest path to it
    std::vector<std::uint32_t> visited_;
    std::vector<std::int32_t> stack_;
    std::uint32_t search_ = 0;
    std::int64_t looks_ = 0;
};

}  // namespace syncopate::ingest
