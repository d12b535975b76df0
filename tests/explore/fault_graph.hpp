// Where the agents of a model go around one fault (fault_explorer.hpp): each step with what follows it, without a fault and
// with one, and which steps of others must not be passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "explore/fault_explorer.hpp"
#include "explore/model.hpp"

namespace syncopate::explore {

constexpr std::uint16_t kOver = 0xffff;         ///< an agent has no further step
constexpr std::uint32_t kFound = 1, kTold = 2;  ///< in a fault word

/// A step, and where its agent goes from there.
struct Node {
    const Step* step = nullptr;
    std::uint16_t next = kOver;
    std::uint16_t found = kOver, told = kOver;  ///< after a fault
    bool can_fail = false;
    bool is_mark = false;  ///< nothing happens here
};

struct Place {
    std::uint16_t agent = 0;
    std::uint16_t node = 0;
};

struct FaultState {
    std::vector<std::uint16_t> at;  ///< by agent: its next node
    std::vector<std::uint32_t> words;
    std::vector<std::uint16_t> atoms;
    bool stopped = false;  ///< the rank that does

    [[nodiscard]] std::uint64_t hash() const;
};

class FaultGraph {
public:
    FaultGraph(const Model& model, const Fault& fault);

    const Model& model;
    const Fault fault;
    std::vector<std::vector<Node>> nodes;            ///< by agent
    std::vector<std::vector<std::uint32_t>> origin;  ///< by agent and node: the step; kOver: of a path
    std::vector<int> is_fault_word;                  ///< by word: of which rank; -1: of none
    // Steps that one of a kind must not be taken before, or after, without trying both.
    std::vector<std::vector<Place>> tellers, listeners;  ///< by rank: who sets its fault, who looks
    std::vector<std::vector<Place>> setters;             ///< by word
    std::vector<std::vector<Place>> touching;            ///< by atom
    std::vector<Place> clears;

    [[nodiscard]] FaultState first() const;
    /// Whether all reset, or recover, and call again.
    [[nodiscard]] bool goes_on() const { return fault.stopped < 0 && fault.goes_on; }
    [[nodiscard]] int rank_of(std::size_t agent) const { return model.agents[agent].rank; }
    [[nodiscard]] std::uint32_t fault_word(std::size_t agent) const {
        return model.fault_words[static_cast<std::size_t>(rank_of(agent))];
    }
    [[nodiscard]] bool is_late(std::size_t agent, std::uint16_t node) const {
        return fault.late && fault.late->first == agent && fault.late->second == origin[agent][node];
    }
    /// Whether the rank's user goes on, once its calls have ended, without having been told: who leaves does, and over nodes
    /// only ends of what is under way are told.
    [[nodiscard]] bool goes_on_untold(int rank) const {
        const int of = fault.late ? rank_of(fault.late->first) : fault.leaves;
        return of >= 0 && (fault.leaves == rank || model.nodes[static_cast<std::size_t>(of)] !=
                                                       model.nodes[static_cast<std::size_t>(rank)]);
    }
    /// Whether who is awaited, on another node, has told of a fault, or has stopped: what has come by then has come.
    [[nodiscard]] bool is_broken(const FaultState& state, const Step& step) const {
        if (!step.broken) return false;
        return state.words[*step.broken] != 0 ||
               (state.stopped && model.tells[*step.broken] == fault.stopped);
    }
    /// A rank's main agent of a call; of call `calls` + 1 the one that resets it.
    [[nodiscard]] std::uint32_t main_of(int rank, int call) const;
    /// Whether the words of the rank's control block are still to be cleared.
    [[nodiscard]] bool is_to_be_cleared(const FaultState& state, int rank) const;
    /// The agent's next node; null: none, or its rank has stopped.
    [[nodiscard]] const Node* next(const FaultState& state, std::size_t agent) const {
        if (state.at[agent] == kOver || (state.stopped && rank_of(agent) == fault.stopped)) return nullptr;
        return &nodes[agent][state.at[agent]];
    }

private:
    void make_nodes();
    void add(std::uint32_t agent, const Step& step, std::uint32_t origin);
    void add_paths(std::uint32_t agent);
    void find_conflicts();

    std::vector<Step> waits_for_fault_;           ///< by rank
    std::vector<std::vector<bool>> fails_;        ///< by agent and node: a look, or a wait behind one
    std::vector<std::optional<Place>> clear_of_;  ///< by rank
};

/// Whether a wait for `step` is over.
[[nodiscard]] inline bool is_reached(const Step& step, const std::vector<std::uint32_t>& words) {
    const std::uint32_t value = words[step.word];
    return step.any ? value != 0 : static_cast<std::int32_t>(value - step.value) >= 0;
}

}  // namespace syncopate::explore
