#include "explore/fault_graph.hpp"

namespace syncopate::explore {

using Kind = Step::Kind;

std::uint64_t FaultState::hash() const {
    std::uint64_t hash = stopped ? 0x51ed'270b'9d3c'8f1dU : 0x9e37'79b9'7f4a'7c15U;
    const auto mix = [&hash](std::uint64_t value) {
        hash = (hash ^ value) * 0xbf58'476d'1ce4'e5b9U;
        hash ^= hash >> 29;
    };
    for (const std::uint16_t one : at) mix(one);
    for (const std::uint32_t word : words) mix(word);
    for (const std::uint16_t atom : atoms) mix(atom);
    return hash;
}

FaultGraph::FaultGraph(const Model& recorded, const Fault& around)
    : model(recorded),
      fault(around),
      is_fault_word(model.num_words, -1),
      clear_of_(model.fault_words.size()) {
    for (std::size_t rank = 0; rank < model.fault_words.size(); ++rank)
        is_fault_word[model.fault_words[rank]] = static_cast<int>(rank);
    waits_for_fault_.resize(model.fault_words.size());
    make_nodes();
    find_conflicts();
}

FaultState FaultGraph::first() const {
    FaultState first{.at = std::vector<std::uint16_t>(nodes.size(), 0),
                     .words = std::vector<std::uint32_t>(model.num_words, 0),
                     .atoms = std::vector<std::uint16_t>(model.num_atoms, 0)};
    for (std::size_t agent = 0; agent < nodes.size(); ++agent) {
        if (nodes[agent].empty()) first.at[agent] = kOver;
    }
    return first;
}

std::uint32_t FaultGraph::main_of(int rank, int call) const {
    for (std::uint32_t agent = 0; agent < model.agents.size(); ++agent) {
        if (model.agents[agent].rank == rank && model.agents[agent].call == call) return agent;
    }
    return 0;
}

bool FaultGraph::is_to_be_cleared(const FaultState& state, int rank) const {
    if (!goes_on() || rank < 0) return false;
    const std::optional<Place>& clear = clear_of_[static_cast<std::size_t>(rank)];
    return clear && state.at[clear->agent] <= clear->node;
}

void FaultGraph::make_nodes() {
    nodes.resize(model.agents.size());
    origin.resize(model.agents.size());
    fails_.resize(model.agents.size());
    for (std::uint32_t agent = 0; agent < nodes.size(); ++agent) {
        const Agent& of = model.agents[agent];
        if (!goes_on() && of.call > model.calls) continue;
        if (of.call == model.calls + 1) {  // its user goes on once it knows of the fault
            Step& step = waits_for_fault_[static_cast<std::size_t>(of.rank)];
            step = {.kind = Kind::wait, .word = fault_word(agent), .any = true, .own = false};
            add(agent, step, kOver);
            nodes[agent].back().is_mark = goes_on_untold(of.rank);
        }
        for (std::size_t i = 0; i < of.steps.size(); ++i) {
            if (of.steps[i].kind == Kind::clear)
                clear_of_[of.steps[i].word] =
                    Place{static_cast<std::uint16_t>(agent), static_cast<std::uint16_t>(nodes[agent].size())};
            add(agent, of.steps[i], static_cast<std::uint32_t>(i));
        }
        nodes[agent].back().next = kOver;
        add_paths(agent);
    }
}

void FaultGraph::add(std::uint32_t agent, const Step& step, std::uint32_t of) {
    nodes[agent].push_back({.step = &step,
                            .next = static_cast<std::uint16_t>(nodes[agent].size() + 1),
                            .is_mark = step.left_out || (step.kind == Kind::look && step.any)});
    origin[agent].push_back(of);
}

/// Of each look and wait, what follows where there is a fault; a look has what its waits have.
void FaultGraph::add_paths(std::uint32_t agent) {
    const Agent& of = model.agents[agent];
    if (of.call > model.calls) return;
    const std::size_t count = nodes[agent].size();
    fails_[agent].resize(count);
    const bool is_main = main_of(of.rank, of.call) == agent;
    std::uint16_t last = kOver;  // by which its rank knows that it has ended
    if (const Step& end = of.steps.back(); end.kind == Kind::store && !end.own && !is_main)
        last = static_cast<std::uint16_t>(count - 1);
    if (is_main && goes_on()) {  // the rank goes on to the reset
        const Agent& final = model.agents[main_of(of.rank, model.calls)];
        last = static_cast<std::uint16_t>(nodes[agent].size());
        add(agent, final.steps.back(), kOver);
        nodes[agent].back().next = kOver;
    }
    const auto add_path = [&](const Detour& detour) {
        const auto then = detour.then == 0 ? last : static_cast<std::uint16_t>(detour.then);
        if (detour.steps.empty()) return then;
        const auto first = static_cast<std::uint16_t>(nodes[agent].size());
        for (const Step& step : detour.steps) add(agent, step, kOver);
        nodes[agent].back().next = then;
        return first;
    };
    std::uint16_t found = last, told = last;
    for (std::size_t i = 0; i < count; ++i) {
        const Step& step = *nodes[agent][i].step;
        if (step.kind == Kind::look) {
            found = add_path(step.found_fault);
            told = add_path(step.told_fault);
            fails_[agent][i] = true;
        } else if (step.kind != Kind::wait) {
            continue;
        } else if (!model.can_fail(step) || i == 0 || !fails_[agent][i - 1]) {
            continue;
        } else {
            fails_[agent][i] = true;
        }
        Node& node = nodes[agent][i];
        node.can_fail = !node.is_mark;
        node.found = found;
        node.told = told;
    }
}

void FaultGraph::find_conflicts() {
    tellers.resize(model.fault_words.size());
    listeners.resize(model.fault_words.size());
    setters.resize(model.num_words);
    touching.resize(model.num_atoms);
    for (std::uint16_t agent = 0; agent < nodes.size(); ++agent) {
        for (std::uint16_t at = 0; at < nodes[agent].size(); ++at) {
            const Node& node = nodes[agent][at];
            const Step& step = *node.step;
            const Place place{agent, at};
            if (is_late(agent, at)) tellers[static_cast<std::size_t>(rank_of(agent))].push_back(place);
            if (node.is_mark) continue;
            if (step.kind == Kind::clear) clears.push_back(place);
            if (node.can_fail) listeners[static_cast<std::size_t>(rank_of(agent))].push_back(place);
            if (node.can_fail && step.broken)
                tellers[static_cast<std::size_t>(rank_of(agent))].push_back(place);
            if (step.kind == Kind::store || step.kind == Kind::add || step.kind == Kind::count ||
                (step.kind == Kind::wait && !model.monotonic[step.word])) {
                setters[step.word].push_back(place);
                for (const std::uint32_t post : step.posts) setters[post].push_back(place);
            }
            if (step.kind == Kind::store && model.told[step.word] >= 0)
                tellers[static_cast<std::size_t>(model.told[step.word])].push_back(place);
            if (step.kind == Kind::store && is_fault_word[step.word] >= 0)
                tellers[static_cast<std::size_t>(is_fault_word[step.word])].push_back(place);
            if (step.kind != Kind::move) continue;
            for (const auto* atoms : {&step.reads, &step.writes}) {
                for (const std::uint16_t atom : *atoms) touching[atom].push_back(place);
            }
        }
    }
}

}  // namespace syncopate::explore
