#include "explore/fault_paths.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/emit/table.hpp"

namespace syncopate::explore {

void FaultPaths::observe(SimulatedRanks& ranks, std::size_t look, bool told) {
    struck_ = {.look = look, .told = told};
    looks_.clear();
    started_.clear();
    ranks.observer = [this](const Event& event) { take(event); };
    ranks.strikes = [this](const Event& event) -> std::uint32_t {
        if (looks_.is_same(event) || struck_.seen++ != struck_.look) return 0;
        struck_.fiber = event.fiber;
        struck_.agent = of_.looks[struck_.look].first;
        return struck_.told ? emit::control::fault_of_peer | 1u << 8 : 1u;
    };
}

std::string FaultPaths::take() {
    if (struck_.fiber < 0) return "a look is not there again";
    const auto& [agent, step] = of_.looks[struck_.look];
    Step& look = of_.model.agents[agent].steps[step];
    (struck_.told ? look.told_fault : look.found_fault) = std::move(struck_.detour);
    return std::exchange(struck_, {}).wrong;
}

void FaultPaths::take(const Event& event) {
    using Kind = Event::Kind;
    looks_.note(event);
    if (event.kind == Kind::start) started_[event.value].push_back(static_cast<int>(event.address));
    if (event.kind == Kind::look && event.fiber == struck_.fiber && !std::exchange(struck_.has_come, true))
        return;  // to the look itself
    if (event.fiber != struck_.fiber || struck_.over) {
        if (event.kind == Kind::join) started_[event.address].clear();
        return;
    }
    switch (event.kind) {
        case Kind::look: return take_next_look(event);
        case Kind::store:
            return struck_.detour.steps.push_back({.kind = Step::Kind::store,
                                                   .word = of_.word(event.address),
                                                   .value = static_cast<std::uint32_t>(event.value)});
        case Kind::join: return take_join(event);
        case Kind::read:
        case Kind::write: return take_move();
        default: struck_.wrong = "an agent does more than that after a fault";
    }
}

/// The agent comes back to what it does without a fault.
void FaultPaths::take_next_look(const Event& event) {
    struck_.over = true;
    for (std::size_t look = struck_.look + 1; look < of_.looks.size(); ++look) {
        if (of_.looks[look].first != struck_.agent) continue;
        struck_.detour.then = static_cast<std::uint32_t>(of_.looks[look].second);
        if (of_.model.agents[struck_.agent].steps[struck_.detour.then].any != event.any)
            struck_.wrong = "an agent does not come to its next look after a fault";
        return;
    }
}

void FaultPaths::take_join(const Event& event) {
    for (const int fiber : std::exchange(started_[event.address], {})) {
        for (const std::size_t other : of_.agents_of[fiber]) {
            if (of_.model.agents[other].call != of_.model.agents[struck_.agent].call) continue;
            struck_.detour.steps.push_back(
                {.kind = Step::Kind::wait, .word = of_.done_of(other), .value = 1, .own = false});
        }
    }
}

/// What it moves after the fault it moves without one, too: its step, by where that is.
void FaultPaths::take_move() {
    std::vector<Step>& detour = struck_.detour.steps;
    if (!detour.empty() && detour.back().kind == Step::Kind::move) return;
    const std::vector<Step>& steps = of_.model.agents[struck_.agent].steps;
    std::size_t at = std::max(struck_.moved, of_.looks[struck_.look].second) + 1;
    while (at < steps.size() && steps[at].kind != Step::Kind::move) ++at;
    if (at >= steps.size()) struck_.wrong = "an agent moves after a fault what it does not without";
    struck_.moved = at;
    detour.push_back({.kind = Step::Kind::move, .word = static_cast<std::uint32_t>(at)});
}

void hand_on_paths(Model& model) {
    for (Agent& agent : model.agents) {
        const Step* look = nullptr;
        for (Step& step : agent.steps) {
            for (Detour* detour : {&step.found_fault, &step.told_fault}) {
                for (Step& moves : detour->steps) {
                    if (moves.kind == Step::Kind::move) moves = agent.steps[moves.word];
                }
            }
            if (step.kind == Step::Kind::look) {
                look = &step;
            } else if (step.kind != Step::Kind::wait) {
                look = nullptr;
            } else if (look != nullptr && model.can_fail(step)) {
                step.found_fault = look->found_fault;
                step.told_fault = look->told_fault;
            }
        }
    }
}

}  // namespace syncopate::explore
