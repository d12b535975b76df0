#include "explore/fault_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace syncopate::explore {
namespace {

using Kind = Step::Kind;

constexpr std::uint16_t kSpoiled =
    0xffff;  ///< in an atom: what a rank with a fault has made of something wrong

}  // namespace

void FaultSteps::set(FaultState& state, std::uint32_t word, std::uint32_t value) const {
    if (graph_.is_fault_word[word] < 0) {
        state.words[word] = value;
    } else if (state.words[word] == 0) {  // the first one stays
        state.words[word] = kTold;
    }
}

void FaultSteps::change(FaultState& state, const Step& step) const {
    switch (step.kind) {
        case Kind::store: set(state, step.word, step.value); break;
        case Kind::add: state.words[step.word] += step.value; break;
        case Kind::count:
            if (++state.words[step.word] != step.value) break;
            if (step.any) state.words[step.word] = 0;
            for (const std::uint32_t post : step.posts) set(state, post, step.epoch);
            break;
        case Kind::clear:
            for (std::size_t word = 0; word < state.words.size(); ++word) {
                const bool is_kept = step.any && graph_.is_fault_word[word] < 0;  // a mutation
                if (graph_.model.owners[word] == static_cast<int>(step.word) && !is_kept)
                    state.words[word] = 0;
            }
            break;
        default: break;
    }
}

/// What of the rank that may stop others can notice.
bool FaultSteps::is_noticed(std::size_t agent, const Step& step) const {
    if (graph_.rank_of(agent) != graph_.fault.stopped || step.kind == Kind::wait || step.kind == Kind::look)
        return false;
    const auto is_anothers = [&](std::uint32_t word) {
        if (graph_.model.is_of_channel(word)) return true;
        return graph_.model.owners[word] >= 0 && graph_.model.owners[word] != graph_.rank_of(agent);
    };
    return is_anothers(step.word) || std::ranges::any_of(step.posts, is_anothers);
}

/// Whether the agent's step is taken as soon as it can be: whatever else happens, it is the same. What a clear would
/// undo waits for its turn where one may get ahead of it.
bool FaultSteps::is_at_once(const FaultState& state, std::size_t agent, const Node& node) const {
    const Step& step = *node.step;
    if (node.is_mark) return true;
    const std::uint32_t fault = state.words[graph_.fault_word(agent)];
    if (graph_.is_late(agent, state.at[agent]) && fault == 0) return false;
    switch (step.kind) {
        case Kind::move:
        case Kind::clear: return false;
        case Kind::look: return fault != 0 && node.can_fail;
        case Kind::wait: return graph_.model.monotonic[step.word] && is_reached(step, state.words);
        default: return only_sets(state, agent, step) && !reach_.may_be_cleared_before(state, agent);
    }
}

/// Whether nobody but a clear can tell when it sets its words.
bool FaultSteps::only_sets(const FaultState& state, std::size_t agent, const Step& step) const {
    if (step.kind == Kind::count) return !is_noticed(agent, step);
    if (step.kind != Kind::store && step.kind != Kind::add) return false;
    const bool tells = graph_.is_fault_word[step.word] >= 0 || graph_.model.told[step.word] >= 0;
    if (tells && step.kind == Kind::store) return state.words[step.word] != 0;
    return graph_.model.monotonic[step.word] && !is_noticed(agent, step);
}

void FaultSteps::go_on(FaultState& state, std::size_t agent, const Node& node) const {
    const std::uint32_t fault = state.words[graph_.fault_word(agent)];
    if (node.step->kind == Kind::look && node.can_fail && fault != 0) return fail(state, agent, node);
    if (!node.is_mark) change(state, *node.step);
    state.at[agent] = node.next;
}
void FaultSteps::fail(FaultState& state, std::size_t agent, const Node& node) const {
    state.at[agent] = state.words[graph_.fault_word(agent)] == kFound ? node.found : node.told;
}
void FaultSteps::give_up(FaultState& state, std::size_t agent, const Node& node) const {
    state.words[graph_.fault_word(agent)] = kFound;
    fail(state, agent, node);
}

void FaultSteps::settle(FaultState& state) const {
    for (bool moved = true; std::exchange(moved, false);) {
        for (std::size_t agent = 0; agent < graph_.nodes.size(); ++agent) {
            for (const Node* node = graph_.next(state, agent);
                 node != nullptr && is_at_once(state, agent, *node); node = graph_.next(state, agent)) {
                go_on(state, agent, *node);
                moved = true;
            }
        }
    }
}

bool FaultSteps::is_able(const FaultState& state, std::size_t agent, const Node& node) const {
    if (node.step->kind != Kind::wait || node.is_mark || is_reached(*node.step, state.words)) return true;
    const std::uint32_t fault = state.words[graph_.fault_word(agent)];
    return (node.can_fail && (fault != 0 || graph_.is_broken(state, *node.step))) ||
           (graph_.is_late(agent, state.at[agent]) && fault == 0);
}

std::vector<FaultState> FaultSteps::successors(const FaultState& state) {
    std::vector<std::size_t> able;
    for (std::size_t agent = 0; agent < graph_.nodes.size(); ++agent) {
        const Node* node = graph_.next(state, agent);
        if (node != nullptr && is_able(state, agent, *node)) able.push_back(agent);
    }
    std::vector<FaultState> after;
    if (able.empty()) {
        give_up_one(state, after);
        if (after.empty()) judge_end(state);
        return after;
    }
    if (able.size() > 1) {
        for (const std::size_t agent : able) {
            const Step& step = *graph_.nodes[agent][state.at[agent]].step;
            if (!reach_.is_alone(state, agent, only_sets(state, agent, step))) continue;
            able = {agent};
            break;
        }
    }
    for (const std::size_t agent : able) take(state, agent, after);
    if (graph_.fault.stopped >= 0 && !state.stopped) {
        const auto stops = [&](std::size_t agent) { return graph_.rank_of(agent) == graph_.fault.stopped; };
        if (std::ranges::any_of(able, stops)) after.emplace_back(state).stopped = true;
    }
    return after;
}

/// Adds what the agent's step leads to.
void FaultSteps::take(const FaultState& state, std::size_t agent, std::vector<FaultState>& after) {
    const Node& node = graph_.nodes[agent][state.at[agent]];
    const Step& step = *node.step;
    const std::uint32_t fault = state.words[graph_.fault_word(agent)];
    if (graph_.is_late(agent, state.at[agent]) && fault == 0)
        return give_up(after.emplace_back(state), agent, node);
    if (step.kind == Kind::wait) {
        if (is_reached(step, state.words)) go_on(after.emplace_back(state), agent, node);
        if (node.can_fail && fault != 0) fail(after.emplace_back(state), agent, node);
        if (node.can_fail && fault == 0 && graph_.is_broken(state, step)) {
            FaultState& next = after.emplace_back(state);
            set(next, graph_.fault_word(agent), kTold);
            fail(next, agent, node);
        }
        return;
    }
    FaultState& next = after.emplace_back(state);
    if (step.kind == Kind::move) move(next, agent, step);
    if (step.kind == Kind::clear) require_quiet(state, agent);
    if (step.kind == Kind::look && !node.can_fail && fault != 0)
        violate(describe(state, agent) + " finds the fault of before");
    go_on(next, agent, node);
}

void FaultSteps::move(FaultState& state, std::size_t agent, const Step& step) {
    bool right = true;
    for (std::size_t i = 0; i < step.reads.size(); ++i)
        right = right && state.atoms[step.reads[i]] == step.found[i];
    const Agent& of = graph_.model.agents[agent];
    const bool of_user = graph_.main_of(of.rank, of.call) == agent;
    if (!right && (of_user || state.words[graph_.fault_word(agent)] == 0)) {
        violate(fmt::format("{} finds what is not of its call, {}", describe(state, agent),
                            of_user ? "and reports success" : "and its rank has no fault"));
    }
    for (const std::uint16_t atom : step.writes) state.atoms[atom] = right ? step.number : kSpoiled;
}

/// Nothing of a call before is under way when words are cleared, nor has one after begun [P35, P36].
void FaultSteps::require_quiet(const FaultState& state, std::size_t by) {
    for (std::size_t agent = 0; agent < graph_.nodes.size(); ++agent) {
        const int call = graph_.model.agents[agent].call;
        const bool has_begun = state.at[agent] != 0;
        if (call > graph_.model.calls + 1 && has_begun)
            violate(fmt::format("{}, when {} has begun", describe(state, by), describe(state, agent)));
        if (call <= graph_.model.calls && has_begun && state.at[agent] != kOver)
            violate(fmt::format("{}, when {} has not ended", describe(state, by), describe(state, agent)));
    }
}

/// Nobody can go on: where a rank has stopped, a deadline passes at one of the waits.
void FaultSteps::give_up_one(const FaultState& state, std::vector<FaultState>& after) const {
    if (!state.stopped) return;
    for (std::size_t agent = 0; agent < graph_.nodes.size(); ++agent) {
        const Node* node = graph_.next(state, agent);
        if (node == nullptr || !node->can_fail || node->step->any ||
            state.words[graph_.fault_word(agent)] != 0)
            continue;
        give_up(after.emplace_back(state), agent, *node);
    }
}

void FaultSteps::judge_end(const FaultState& state) {
    for (std::size_t agent = 0; agent < graph_.nodes.size(); ++agent) {
        const int call = graph_.model.agents[agent].call;
        if (graph_.next(state, agent) == nullptr) continue;
        const bool has_begun = state.at[agent] != 0;
        const bool must_end = graph_.goes_on() && call > graph_.model.calls;
        if (has_begun || must_end) return violate("nobody can go on: " + describe(state, agent));
    }
}

std::string FaultSteps::describe(const FaultState& state, std::size_t agent) const {
    const std::uint16_t at = state.at[agent];
    const std::uint32_t origin = at == kOver ? kOver : graph_.origin[agent][at];
    if (origin != kOver) return graph_.model.describe(agent, origin);
    return fmt::format("rank {}, call {}, agent {}, after a fault", graph_.rank_of(agent),
                       graph_.model.agents[agent].call, agent);
}
void FaultSteps::violate(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
}

}  // namespace syncopate::explore
