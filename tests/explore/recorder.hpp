// Takes down what ranks do in their calls, event by event, as agents and steps (model.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "explore/recorded.hpp"
#include "explore/simulated_ranks.hpp"

namespace syncopate::explore {

class Recorder {
public:
    explicit Recorder(Recorded& recorded) : of_(recorded) {}

    void observe(SimulatedRanks& ranks) {
        ranks.observer = [this](const Event& event) { take(event); };
    }
    /// The rank's main fiber begins its next call.
    void begin_call(int rank, int fiber, int call);

private:
    void take(const Event& event);
    void take_start(std::size_t agent, const Event& event);
    void take_join(std::size_t agent, const Event& event);
    void take_apart(std::size_t agent, const Event& event);
    void take_count(std::size_t agent, const Event& event);
    void take_touch(std::size_t agent, const Event& event);
    [[nodiscard]] std::size_t make(int rank, int call);
    void push(std::size_t agent, Step step);
    [[nodiscard]] bool has_written(std::size_t agent, const Event& event) const;
    [[nodiscard]] int cleared_by(const Event& event) const;

    Recorded& of_;
    Looks seen_;
    std::map<int, std::size_t> current_;                          ///< by fiber: its agent
    std::map<int, int> rank_of_;                                  ///< by fiber
    std::map<int, std::uint32_t> begun_;                          ///< by fiber
    std::map<int, std::uint64_t> owner_of_;                       ///< by fiber
    std::map<std::uint64_t, std::vector<std::size_t>> of_owner_;  ///< agents that nobody has joined
    std::map<std::size_t, int> last_;                             ///< by agent: the fiber that has moved last
};

}  // namespace syncopate::explore
