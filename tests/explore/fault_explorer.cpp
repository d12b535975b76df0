#include "explore/fault_explorer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace syncopate::explore {
namespace {

constexpr std::uint16_t kOver = 0xffff;  ///< an agent has no further step
constexpr std::uint16_t kSpoiled =
    0xffff;  ///< in an atom: what a rank with a fault has made of something wrong
constexpr std::uint32_t kFound = 1, kTold = 2;  ///< in a fault word

/// A step, and where its agent goes from there.
struct Node {
    const Step* step = nullptr;
    std::uint16_t next = kOver;
    std::uint16_t found = kOver, told = kOver;  ///< after a fault
    bool can_fail = false;
    bool is_mark = false;  ///< nothing happens here
};

struct State {
    std::vector<std::uint16_t> at;  ///< by agent: its next node
    std::vector<std::uint32_t> words;
    std::vector<std::uint16_t> atoms;
    bool stopped = false;  ///< the rank that does

    [[nodiscard]] std::uint64_t hash() const {
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
};

struct Place {
    std::uint16_t agent = 0;
    std::uint16_t node = 0;
};

class FaultExploring {
public:
    FaultExploring(const Model& model, const Fault& fault, std::uint64_t most_states)
        : model_(model), fault_(fault), most_states_(most_states), is_fault_word_(model.num_words, -1) {
        for (std::size_t rank = 0; rank < model.fault_words.size(); ++rank)
            is_fault_word_[model.fault_words[rank]] = static_cast<int>(rank);
        wait_for_fault_.resize(model.fault_words.size());
        make_nodes();
        find_conflicts();
    }

    Explored run() {
        State first{.at = std::vector<std::uint16_t>(nodes_.size(), 0),
                    .words = std::vector<std::uint32_t>(model_.num_words, 0),
                    .atoms = std::vector<std::uint16_t>(model_.num_atoms, 0)};
        for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
            if (nodes_[agent].empty()) first.at[agent] = kOver;
        }
        std::vector<State> open;
        open.push_back(std::move(first));
        while (!open.empty() && result_.violation.empty()) {
            State state = std::move(open.back());
            open.pop_back();
            settle(state);
            if (!seen_.insert(state.hash()).second) continue;
            if (++result_.states > most_states_) return result_;
            std::vector<State> after = successors(state);
            for (State& one : after) open.push_back(std::move(one));
        }
        result_.complete = true;
        return result_;
    }

private:
    using Kind = Step::Kind;

    [[nodiscard]] bool goes_on() const { return fault_.stopped < 0 && fault_.goes_on; }
    [[nodiscard]] int rank_of(std::size_t agent) const { return model_.agents[agent].rank; }
    [[nodiscard]] std::uint32_t fault_word(std::size_t agent) const {
        return model_.fault_words[static_cast<std::size_t>(rank_of(agent))];
    }
    [[nodiscard]] bool is_late(std::size_t agent, std::uint16_t node) const {
        return fault_.late && fault_.late->first == agent && fault_.late->second == origin_[agent][node];
    }

    /// The last call's main agent of a rank, the one that resets it, and the one of the call after that.
    [[nodiscard]] std::uint32_t main_of(int rank, int call) const {
        for (std::uint32_t agent = 0; agent < model_.agents.size(); ++agent) {
            if (model_.agents[agent].rank == rank && model_.agents[agent].call == call) return agent;
        }
        return 0;
    }

    void make_nodes() {
        nodes_.resize(model_.agents.size());
        origin_.resize(model_.agents.size());
        for (std::uint32_t agent = 0; agent < nodes_.size(); ++agent) {
            const Agent& of = model_.agents[agent];
            if (!goes_on() && of.call > model_.calls) continue;
            if (of.call == model_.calls + 1) {  // its user goes on once it knows of the fault
                Step& step = wait_for_fault_[static_cast<std::size_t>(of.rank)];
                step = {.kind = Kind::wait, .word = fault_word(agent), .any = true, .own = false};
                add(agent, step, kOver);
            }
            for (std::size_t i = 0; i < of.steps.size(); ++i)
                add(agent, of.steps[i], static_cast<std::uint32_t>(i));
            nodes_[agent].back().next = kOver;
            add_paths(agent);
        }
    }

    void add(std::uint32_t agent, const Step& step, std::uint32_t origin) {
        nodes_[agent].push_back({.step = &step,
                                 .next = static_cast<std::uint16_t>(nodes_[agent].size() + 1),
                                 .is_mark = step.left_out || (step.kind == Kind::look && step.any)});
        origin_[agent].push_back(origin);
    }

    /// Of each look and wait, what follows where there is a fault; a look has what its waits have.
    void add_paths(std::uint32_t agent) {
        const Agent& of = model_.agents[agent];
        if (of.call > model_.calls) return;
        const std::size_t count = nodes_[agent].size();
        const bool is_main = main_of(of.rank, of.call) == agent;
        std::uint16_t last = kOver;  // by which its rank knows that it has ended
        if (const Step& end = of.steps.back(); end.kind == Kind::store && !end.own && !is_main)
            last = static_cast<std::uint16_t>(count - 1);
        if (is_main && goes_on()) {  // the rank goes on to the reset
            const Agent& final = model_.agents[main_of(of.rank, model_.calls)];
            last = static_cast<std::uint16_t>(nodes_[agent].size());
            add(agent, final.steps.back(), kOver);
            nodes_[agent].back().next = kOver;
        }
        const auto add_path = [&](const Detour& detour) {
            const auto then = detour.then == 0 ? last : static_cast<std::uint16_t>(detour.then);
            if (detour.steps.empty()) return then;
            const auto first = static_cast<std::uint16_t>(nodes_[agent].size());
            for (const Step& step : detour.steps) add(agent, step, kOver);
            nodes_[agent].back().next = then;
            return first;
        };
        std::uint16_t found = last, told = last;
        for (std::size_t i = 0; i < count; ++i) {
            const Step& step = *nodes_[agent][i].step;
            if (step.kind == Kind::look) {
                found = add_path(step.found_fault);
                told = add_path(step.told_fault);
                fails_[{agent, i}] = true;
            } else if (step.kind != Kind::wait) {
                continue;
            } else if (!model_.can_fail(step) || i == 0 || !fails_.contains({agent, i - 1})) {
                continue;
            } else {
                fails_[{agent, i}] = true;
            }
            Node& node = nodes_[agent][i];
            node.can_fail = !node.is_mark;
            node.found = found;
            node.told = told;
        }
    }

    static bool meet(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
        for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
            if (a[i] == b[j]) return true;
            ++(a[i] < b[j] ? i : j);
        }
        return false;
    }

    /// Which later steps of others a step must not be taken before, or after, without trying both.
    void find_conflicts() {
        tellers_.resize(model_.fault_words.size());
        listeners_.resize(model_.fault_words.size());
        setters_.resize(model_.num_words);
        touching_.resize(model_.num_atoms);
        for (std::uint16_t agent = 0; agent < nodes_.size(); ++agent) {
            for (std::uint16_t at = 0; at < nodes_[agent].size(); ++at) {
                const Node& node = nodes_[agent][at];
                const Step& step = *node.step;
                const Place place{agent, at};
                if (is_late(agent, at)) tellers_[static_cast<std::size_t>(rank_of(agent))].push_back(place);
                if (node.is_mark) continue;
                if (step.kind == Kind::clear) clears_.push_back(place);
                if (node.can_fail) listeners_[static_cast<std::size_t>(rank_of(agent))].push_back(place);
                if (step.kind == Kind::store || step.kind == Kind::add || step.kind == Kind::count ||
                    (step.kind == Kind::wait && !model_.monotonic[step.word])) {
                    setters_[step.word].push_back(place);
                    for (const std::uint32_t post : step.posts) setters_[post].push_back(place);
                }
                if (step.kind == Kind::store && is_fault_word_[step.word] >= 0)
                    tellers_[static_cast<std::size_t>(is_fault_word_[step.word])].push_back(place);
                if (step.kind != Kind::move) continue;
                for (const auto* atoms : {&step.reads, &step.writes}) {
                    for (const std::uint16_t atom : *atoms) touching_[atom].push_back(place);
                }
            }
        }
    }

    static bool is_reached(const Step& step, const std::vector<std::uint32_t>& words) {
        const std::uint32_t value = words[step.word];
        return step.any ? value != 0 : static_cast<std::int32_t>(value - step.value) >= 0;
    }

    void set(State& state, std::uint32_t word, std::uint32_t value) const {
        if (is_fault_word_[word] < 0) {
            state.words[word] = value;
        } else if (state.words[word] == 0) {  // the first one stays
            state.words[word] = kTold;
        }
    }

    void change(State& state, const Step& step) const {
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
                    const bool is_kept = step.any && is_fault_word_[word] < 0;  // a mutation
                    if (model_.owners[word] == static_cast<int>(step.word) && !is_kept) state.words[word] = 0;
                }
                break;
            default: break;
        }
    }

    [[nodiscard]] const Node* next(const State& state, std::size_t agent) const {
        if (state.at[agent] == kOver) return nullptr;
        if (state.stopped && rank_of(agent) == fault_.stopped) return nullptr;
        return &nodes_[agent][state.at[agent]];
    }

    /// What of the rank that may stop others can notice.
    [[nodiscard]] bool is_noticed(std::size_t agent, const Step& step) const {
        if (rank_of(agent) != fault_.stopped || step.kind == Kind::wait || step.kind == Kind::look)
            return false;
        const auto is_anothers = [&](std::uint32_t word) {
            return model_.owners[word] >= 0 && model_.owners[word] != rank_of(agent);
        };
        return is_anothers(step.word) || std::ranges::any_of(step.posts, is_anothers);
    }

    /// Whether the agent's step is taken as soon as it can be: whatever else happens, it is the same.
    [[nodiscard]] bool is_at_once(const State& state, std::size_t agent, const Node& node) const {
        const Step& step = *node.step;
        if (node.is_mark) return true;
        if (is_late(agent, state.at[agent]) && state.words[fault_word(agent)] == 0) return false;
        switch (step.kind) {
            case Kind::move:
            case Kind::clear: return false;
            case Kind::look: return state.words[fault_word(agent)] != 0 && node.can_fail;
            case Kind::wait: return model_.monotonic[step.word] && is_reached(step, state.words);
            case Kind::store:
                if (is_fault_word_[step.word] >= 0) return state.words[step.word] != 0;
                [[fallthrough]];
            case Kind::add: return model_.monotonic[step.word] && !is_noticed(agent, step);
            case Kind::count: return !is_noticed(agent, step);
        }
        return false;
    }

    void go_on(State& state, std::size_t agent, const Node& node) const {
        const std::uint32_t fault = state.words[fault_word(agent)];
        if (node.step->kind == Kind::look && node.can_fail && fault != 0) return fail(state, agent, node);
        if (!node.is_mark) change(state, *node.step);
        state.at[agent] = node.next;
    }
    void fail(State& state, std::size_t agent, const Node& node) const {
        state.at[agent] = state.words[fault_word(agent)] == kFound ? node.found : node.told;
    }
    void give_up(State& state, std::size_t agent, const Node& node) const {
        state.words[fault_word(agent)] = kFound;
        fail(state, agent, node);
    }

    void settle(State& state) const {
        for (bool moved = true; std::exchange(moved, false);) {
            for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
                for (const Node* node = next(state, agent);
                     node != nullptr && is_at_once(state, agent, *node); node = next(state, agent)) {
                    go_on(state, agent, *node);
                    moved = true;
                }
            }
        }
    }

    [[nodiscard]] bool is_able(const State& state, std::size_t agent, const Node& node) const {
        if (node.step->kind != Kind::wait || node.is_mark || is_reached(*node.step, state.words)) return true;
        const std::uint32_t fault = state.words[fault_word(agent)];
        return (node.can_fail && fault != 0) || (is_late(agent, state.at[agent]) && fault == 0);
    }

    std::vector<State> successors(const State& state) {
        std::vector<std::size_t> able;
        for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
            const Node* node = next(state, agent);
            if (node != nullptr && is_able(state, agent, *node)) able.push_back(agent);
        }
        std::vector<State> after;
        if (able.empty()) {
            give_up_one(state, after);
            if (after.empty()) judge_end(state);
            return after;
        }
        if (able.size() > 1) {
            for (const std::size_t agent : able) {
                if (!is_alone(state, agent)) continue;
                able = {agent};
                break;
            }
        }
        for (const std::size_t agent : able) take(state, agent, after);
        if (fault_.stopped >= 0 && !state.stopped) {
            const auto stops = [&](std::size_t agent) { return rank_of(agent) == fault_.stopped; };
            if (std::ranges::any_of(able, stops)) after.emplace_back(state).stopped = true;
        }
        return after;
    }

    /// Adds what the agent's step leads to.
    void take(const State& state, std::size_t agent, std::vector<State>& after) {
        const Node& node = nodes_[agent][state.at[agent]];
        const Step& step = *node.step;
        const std::uint32_t fault = state.words[fault_word(agent)];
        if (is_late(agent, state.at[agent]) && fault == 0)
            return give_up(after.emplace_back(state), agent, node);
        if (step.kind == Kind::wait) {
            if (is_reached(step, state.words)) go_on(after.emplace_back(state), agent, node);
            if (node.can_fail && fault != 0) fail(after.emplace_back(state), agent, node);
            return;
        }
        State& next = after.emplace_back(state);
        if (step.kind == Kind::move) move(next, agent, step);
        if (step.kind == Kind::clear) require_quiet(state, agent);
        if (step.kind == Kind::look && !node.can_fail && fault != 0)
            violate(describe(state, agent) + " finds the fault of before");
        go_on(next, agent, node);
    }

    void move(State& state, std::size_t agent, const Step& step) {
        bool right = true;
        for (std::size_t i = 0; i < step.reads.size(); ++i)
            right = right && state.atoms[step.reads[i]] == step.found[i];
        const Agent& of = model_.agents[agent];
        const bool of_user = main_of(of.rank, of.call) == agent;
        if (!right && (of_user || state.words[fault_word(agent)] == 0)) {
            violate(fmt::format("{} finds what is not of its call, {}", describe(state, agent),
                                of_user ? "and reports success" : "and its rank has no fault"));
        }
        for (const std::uint16_t atom : step.writes) state.atoms[atom] = right ? step.number : kSpoiled;
    }

    /// Nothing of a call before is under way when words are cleared, nor has one after begun [P35, P36].
    void require_quiet(const State& state, std::size_t by) {
        for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
            const int call = model_.agents[agent].call;
            const bool has_begun = state.at[agent] != 0;
            if (call > model_.calls + 1 && has_begun)
                violate(fmt::format("{}, when {} has begun", describe(state, by), describe(state, agent)));
            if (call <= model_.calls && has_begun && state.at[agent] != kOver)
                violate(
                    fmt::format("{}, when {} has not ended", describe(state, by), describe(state, agent)));
        }
    }

    /// Nobody can go on: where a rank has stopped, a deadline passes at one of the waits.
    void give_up_one(const State& state, std::vector<State>& after) const {
        if (!state.stopped) return;
        for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
            const Node* node = next(state, agent);
            if (node == nullptr || !node->can_fail || node->step->any || state.words[fault_word(agent)] != 0)
                continue;
            give_up(after.emplace_back(state), agent, *node);
        }
    }

    void judge_end(const State& state) {
        for (std::size_t agent = 0; agent < nodes_.size(); ++agent) {
            const int call = model_.agents[agent].call;
            if (next(state, agent) == nullptr) continue;
            const bool has_begun = state.at[agent] != 0;
            const bool must_end = goes_on() && call > model_.calls;
            if (has_begun || must_end) return violate("nobody can go on: " + describe(state, agent));
        }
    }

    /// Whether no other agent can come to a step that conflicts with the agent's next one before that is done.
    [[nodiscard]] bool is_alone(const State& state, std::size_t agent) {
        const Node& node = nodes_[agent][state.at[agent]];
        const Step& step = *node.step;
        if (step.kind == Kind::clear) return false;
        std::vector<const std::vector<Place>*> conflicts;
        const auto rank = static_cast<std::size_t>(rank_of(agent));
        if (is_late(agent, state.at[agent])) conflicts.push_back(&listeners_[rank]);
        if (node.can_fail) conflicts.push_back(&tellers_[rank]);
        if (step.kind == Kind::move) {
            for (const std::uint16_t atom : step.writes) conflicts.push_back(&touching_[atom]);
            for (const std::uint16_t atom : step.reads) conflicts.push_back(&touching_[atom]);
        } else if (step.kind != Kind::look) {
            conflicts.push_back(&setters_[step.word]);
            if (is_fault_word_[step.word] >= 0)
                conflicts.push_back(&listeners_[static_cast<std::size_t>(is_fault_word_[step.word])]);
        }
        reach(state, agent);
        const auto is_reached = [&](const Place& place) {
            return place.agent != agent && reached_[place.agent][place.node] != 0;
        };
        // What is under way when words are cleared is wrong, whatever it is.
        if (std::ranges::any_of(clears_, is_reached)) return false;
        for (const auto* places : conflicts) {
            for (const Place& place : *places) {
                if (!is_reached(place)) continue;
                if (step.kind == Kind::move && !conflict(step, *nodes_[place.agent][place.node].step))
                    continue;
                return false;
            }
        }
        return true;
    }
    static bool conflict(const Step& a, const Step& b) {
        return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
    }

    /// All that the others may come to without the agent, and a little more: waits ask for the most that a word may be.
    void reach(const State& state, std::size_t without) {
        reached_.resize(nodes_.size());
        std::vector<std::uint32_t> most = state.words;
        std::vector<Place> open, waiting;
        const auto come = [&](std::uint16_t agent, std::uint16_t node) {
            if (node == kOver || reached_[agent][node]) return;
            reached_[agent][node] = 1;
            open.push_back({agent, node});
        };
        const auto raise = [&](std::uint32_t word, std::uint32_t value) {
            if (static_cast<std::int32_t>(value - most[word]) > 0) most[word] = value;
        };
        for (std::uint16_t agent = 0; agent < nodes_.size(); ++agent) {
            reached_[agent].assign(nodes_[agent].size(), 0);
            if (agent != without && next(state, agent) != nullptr) come(agent, state.at[agent]);
        }
        while (!open.empty() || !waiting.empty()) {
            if (open.empty()) {
                std::vector<Place> still;
                for (const Place& place : waiting) {
                    const Node& node = nodes_[place.agent][place.node];
                    if (is_reached(*node.step, most))
                        come(place.agent, node.next);
                    else
                        still.push_back(place);
                }
                waiting = std::move(still);
                if (open.empty()) return;
            }
            const Place place = open.back();
            open.pop_back();
            const Node& node = nodes_[place.agent][place.node];
            const Step& step = *node.step;
            if (node.can_fail) {
                come(place.agent, node.found);
                come(place.agent, node.told);
            }
            if (!node.is_mark && step.kind == Kind::wait && !is_reached(step, most) &&
                !is_late(place.agent, place.node)) {
                waiting.push_back(place);
                continue;
            }
            if (!node.is_mark && step.kind == Kind::store) raise(step.word, step.value);
            if (!node.is_mark && step.kind == Kind::add) most[step.word] += step.value;
            if (!node.is_mark && step.kind == Kind::count) {
                ++most[step.word];
                for (const std::uint32_t post : step.posts) raise(post, step.epoch);
            }
            if (is_late(place.agent, place.node)) raise(fault_word(place.agent), kFound);
            come(place.agent, node.next);
        }
    }

    [[nodiscard]] std::string describe(const State& state, std::size_t agent) const {
        const std::uint16_t at = state.at[agent];
        const std::uint32_t origin = at == kOver ? kOver : origin_[agent][at];
        if (origin != kOver) return model_.describe(agent, origin);
        return fmt::format("rank {}, call {}, agent {}, after a fault", rank_of(agent),
                           model_.agents[agent].call, agent);
    }
    void violate(std::string what) {
        if (result_.violation.empty()) result_.violation = std::move(what);
    }

    const Model& model_;
    Fault fault_;
    std::uint64_t most_states_;
    std::vector<int> is_fault_word_;                  ///< by word: of which rank
    std::vector<Step> wait_for_fault_;                ///< by rank
    std::vector<std::vector<Node>> nodes_;            ///< by agent
    std::vector<std::vector<std::uint32_t>> origin_;  ///< by agent and node: the step; kOver: of a path
    std::map<std::pair<std::uint32_t, std::size_t>, bool> fails_;
    std::vector<std::vector<Place>> tellers_, listeners_;  ///< by rank: who sets its fault, who looks
    std::vector<std::vector<Place>> setters_;              ///< by word
    std::vector<std::vector<Place>> touching_;             ///< by atom
    std::vector<Place> clears_;
    std::vector<std::vector<char>> reached_;  ///< by reach(): agent and node
    std::unordered_set<std::uint64_t> seen_;
    Explored result_;
};

}  // namespace

Explored explore_fault(const Model& model, const Fault& fault, std::uint64_t most_states) {
    return FaultExploring(model, fault, most_states).run();
}

}  // namespace syncopate::explore
