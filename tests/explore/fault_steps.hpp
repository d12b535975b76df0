// What agents do around a fault, step by step, and what is wrong with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "explore/fault_graph.hpp"
#include "explore/fault_reach.hpp"

namespace syncopate::explore {

class FaultSteps {
public:
    explicit FaultSteps(const FaultGraph& graph) : graph_(graph), reach_(graph) {}

    /// Takes all steps that need not be branched on.
    void settle(FaultState& state) const;
    /// What the steps that are then to be branched on lead to. None: all is over, or nobody can go on.
    [[nodiscard]] std::vector<FaultState> successors(const FaultState& state);
    /// The first thing that was wrong; "" if nothing was.
    [[nodiscard]] const std::string& violation() const { return violation_; }

private:
    void set(FaultState& state, std::uint32_t word, std::uint32_t value) const;
    void change(FaultState& state, const Step& step) const;
    [[nodiscard]] bool is_noticed(std::size_t agent, const Step& step) const;
    [[nodiscard]] bool is_at_once(const FaultState& state, std::size_t agent, const Node& node) const;
    [[nodiscard]] bool only_sets(const FaultState& state, std::size_t agent, const Step& step) const;
    void go_on(FaultState& state, std::size_t agent, const Node& node) const;
    void fail(FaultState& state, std::size_t agent, const Node& node) const;
    void give_up(FaultState& state, std::size_t agent, const Node& node) const;
    [[nodiscard]] bool is_able(const FaultState& state, std::size_t agent, const Node& node) const;
    void take(const FaultState& state, std::size_t agent, std::vector<FaultState>& after);
    void move(FaultState& state, std::size_t agent, const Step& step);
    void require_quiet(const FaultState& state, std::size_t by);
    void give_up_one(const FaultState& state, std::vector<FaultState>& after) const;
    void judge_end(const FaultState& state);
    [[nodiscard]] std::string describe(const FaultState& state, std::size_t agent) const;
    void violate(std::string what);

    const FaultGraph& graph_;
    FaultReach reach_;
    std::string violation_;
};

}  // namespace syncopate::explore
