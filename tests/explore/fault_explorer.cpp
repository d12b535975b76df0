#include "explore/fault_explorer.hpp"

#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

#include "explore/fault_graph.hpp"
#include "explore/fault_steps.hpp"

namespace syncopate::explore {
namespace {

/// All states, each once; false: there are more than are looked at.
bool take_all(const FaultGraph& graph, FaultSteps& steps, std::uint64_t most_states, std::uint64_t& states) {
    std::unordered_set<std::uint64_t> seen;
    std::vector<FaultState> open{graph.first()};
    while (!open.empty() && steps.violation().empty()) {
        FaultState state = std::move(open.back());
        open.pop_back();
        steps.settle(state);
        if (!seen.insert(state.hash()).second) continue;
        if (++states > most_states) return false;
        for (FaultState& one : steps.successors(state)) open.push_back(std::move(one));
    }
    return true;
}

/// Orders that are drawn, each to its end.
void take_walks(const FaultGraph& graph, FaultSteps& steps, const Looked& looked, std::uint64_t& states) {
    std::mt19937_64 random(looked.seed);
    for (std::uint64_t taken = 0; taken < looked.of_walks && steps.violation().empty();) {
        FaultState state = graph.first();
        for (;; ++taken, ++states) {
            steps.settle(state);
            std::vector<FaultState> after = steps.successors(state);
            if (after.empty() || !steps.violation().empty()) break;
            state = std::move(after[random() % after.size()]);
        }
        ++taken;
    }
}

}  // namespace

Explored explore_fault(const Model& model, const Fault& fault, const Looked& looked) {
    const FaultGraph graph(model, fault);
    FaultSteps steps(graph);
    Explored result;
    result.complete = take_all(graph, steps, looked.most_states, result.states);
    if (!result.complete) take_walks(graph, steps, looked, result.states);
    result.violation = steps.violation();
    result.complete = result.complete || !result.violation.empty();
    return result;
}

}  // namespace syncopate::explore
