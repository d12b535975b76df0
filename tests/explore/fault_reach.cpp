#include "explore/fault_reach.hpp"

#include <algorithm>
#include <utility>

namespace syncopate::explore {
namespace {

using Kind = Step::Kind;

bool meet(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        if (a[i] == b[j]) return true;
        ++(a[i] < b[j] ? i : j);
    }
    return false;
}
bool conflict(const Step& a, const Step& b) {
    return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
}

bool sets_words(const Step& step) {
    return step.kind == Kind::store || step.kind == Kind::add || step.kind == Kind::count;
}

}  // namespace

FaultReach::FaultReach(const FaultGraph& graph) : graph_(graph), behind_(graph.nodes.size()) {
    const FaultState first = graph.first();
    for (std::size_t agent = 0; agent < graph.nodes.size(); ++agent) {
        behind_[agent].resize(graph.nodes[agent].size(), 0);
        for (std::uint16_t node = 0; graph.goes_on() && node < graph.nodes[agent].size(); ++node) {
            const Node& of = graph.nodes[agent][node];
            if (of.is_mark || !sets_words(*of.step)) continue;
            reach(first, agent, node);
            behind_[agent][node] = reaches_a_clear(agent) ? 1 : 0;
        }
    }
}

bool FaultReach::reaches_a_clear(std::size_t without) const {
    return std::ranges::any_of(graph_.clears, [&](const Place& place) { return is_reached(place, without); });
}

bool FaultReach::may_be_cleared_before(const FaultState& state, std::size_t agent) const {
    if (behind_[agent][state.at[agent]] == 0) return false;
    const Step& step = *graph_.nodes[agent][state.at[agent]].step;
    const auto is_to_come = [&](std::uint32_t word) {
        return graph_.is_to_be_cleared(state, graph_.model.owners[word]);
    };
    return is_to_come(step.word) || std::ranges::any_of(step.posts, is_to_come);
}

bool FaultReach::is_alone(const FaultState& state, std::size_t agent, bool posts) {
    const Node& node = graph_.nodes[agent][state.at[agent]];
    const Step& step = *node.step;
    if (step.kind == Kind::clear) return false;
    std::vector<const std::vector<Place>*> conflicts;
    const auto rank = static_cast<std::size_t>(graph_.rank_of(agent));
    if (graph_.is_late(agent, state.at[agent])) conflicts.push_back(&graph_.listeners[rank]);
    if (node.can_fail) conflicts.push_back(&graph_.tellers[rank]);
    if (step.kind == Kind::move) {
        for (const std::uint16_t atom : step.writes) conflicts.push_back(&graph_.touching[atom]);
        for (const std::uint16_t atom : step.reads) conflicts.push_back(&graph_.touching[atom]);
    } else if (step.kind != Kind::look && !posts) {
        conflicts.push_back(&graph_.setters[step.word]);
        const int of = graph_.is_fault_word[step.word];
        if (of >= 0) conflicts.push_back(&graph_.listeners[static_cast<std::size_t>(of)]);
        const int told = graph_.model.told[step.word];
        if (told >= 0) conflicts.push_back(&graph_.listeners[static_cast<std::size_t>(told)]);
    }
    reach(state, agent, state.at[agent]);
    // What is under way when words are cleared is wrong, whatever it is.
    if (reaches_a_clear(agent)) return false;
    for (const auto* places : conflicts) {
        for (const Place& place : *places) {
            if (!is_reached(place, agent)) continue;
            if (step.kind == Kind::move && !conflict(step, *graph_.nodes[place.agent][place.node].step))
                continue;
            return false;
        }
    }
    return true;
}

/// All that agents may come to while one of them does not do its node `until`, and a little more: waits ask for the most that
/// a word may be.
void FaultReach::reach(const FaultState& state, std::size_t agent, std::uint16_t until) {
    const std::vector<std::vector<Node>>& nodes = graph_.nodes;
    reached_.resize(nodes.size());
    std::vector<std::uint32_t> most = state.words;
    std::vector<Place> open, waiting;
    const auto come = [&](std::size_t to, std::uint16_t node) {
        if (node == kOver || reached_[to][node]) return;
        reached_[to][node] = 1;
        if (to != agent || node != until) open.push_back({static_cast<std::uint16_t>(to), node});
    };
    const auto raise = [&](std::uint32_t word, std::uint32_t value) {
        const bool is_more = graph_.is_fault_word[word] < 0
                                 ? static_cast<std::int32_t>(value - most[word]) > 0
                                 : most[word] == 0;  // who it was of is no number of a call
        if (is_more) most[word] = value;
    };
    for (std::size_t one = 0; one < nodes.size(); ++one) {
        reached_[one].assign(nodes[one].size(), 0);
        if (graph_.next(state, one) != nullptr) come(one, state.at[one]);
    }
    while (!open.empty() || !waiting.empty()) {
        if (open.empty()) {
            std::vector<Place> still;
            for (const Place& place : waiting) {
                const Node& node = nodes[place.agent][place.node];
                if (explore::is_reached(*node.step, most))
                    come(place.agent, node.next);
                else
                    still.push_back(place);
            }
            waiting = std::move(still);
            if (open.empty()) return;
        }
        const Place place = open.back();
        open.pop_back();
        const Node& node = nodes[place.agent][place.node];
        const Step& step = *node.step;
        const bool is_late = graph_.is_late(place.agent, place.node);
        if (node.can_fail) {
            come(place.agent, node.found);
            come(place.agent, node.told);
            if (step.broken) raise(graph_.fault_word(place.agent), kTold);
        }
        if (!node.is_mark && step.kind == Kind::wait && !explore::is_reached(step, most) && !is_late) {
            waiting.push_back(place);
            continue;
        }
        if (!node.is_mark && step.kind == Kind::store) raise(step.word, step.value);
        if (!node.is_mark && step.kind == Kind::add) most[step.word] += step.value;
        if (!node.is_mark && step.kind == Kind::count) {
            ++most[step.word];
            for (const std::uint32_t post : step.posts) raise(post, step.epoch);
        }
        if (is_late) raise(graph_.fault_word(place.agent), kFound);
        come(place.agent, node.next);
    }
}

}  // namespace syncopate::explore
