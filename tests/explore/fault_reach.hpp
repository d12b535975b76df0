// What others may come to while an agent stays where it is: by this the explorer of faults knows which orders of steps
// need not both be tried (a persistent set of one; Godefroid, Partial-Order Methods, ch. 4).
#pragma once

#include <cstdint>
#include <vector>

#include "explore/fault_graph.hpp"

namespace syncopate::explore {

class FaultReach {
public:
    explicit FaultReach(const FaultGraph& graph);

    /// Whether the agent's next step is one that only a clear can get ahead of, and one does while the agent stays there: a
    /// post, an addition, a count, or a fault that is told where there is one.
    [[nodiscard]] bool may_be_cleared_before(const FaultState& state, std::size_t agent) const;
    /// Whether no other agent can come to a step that conflicts with the agent's next one before that is done. `posts`: the
    /// step is one of those.
    [[nodiscard]] bool is_alone(const FaultState& state, std::size_t agent, bool posts);

private:
    void reach(const FaultState& state, std::size_t agent, std::uint16_t until);
    [[nodiscard]] bool is_reached(const Place& place, std::size_t without) const {
        return place.agent != without && reached_[place.agent][place.node] != 0;
    }
    [[nodiscard]] bool reaches_a_clear(std::size_t without) const;

    const FaultGraph& graph_;
    std::vector<std::vector<char>> reached_;  ///< by reach(): agent and node
    std::vector<std::vector<char>> behind_;   ///< by agent and node: a clear may be reached before it is done
};

}  // namespace syncopate::explore
