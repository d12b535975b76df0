#include "explore/explorer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace syncopate::explore {
namespace {

struct State {
    std::vector<std::uint16_t> at;  ///< by agent: its next step
    std::vector<std::uint32_t> words;
    std::vector<std::uint16_t> atoms;
};

/// Numbers that are not 0, each once, in one piece of memory.
class Numbers {
public:
    /// False: it was there.
    bool insert(std::uint64_t number) {
        if (2 * (count_ + 1) > table_.size()) grow();
        std::uint64_t& place = place_of(number);
        if (place == number) return false;
        place = number;
        ++count_;
        return true;
    }

private:
    std::uint64_t& place_of(std::uint64_t number) {
        std::size_t at = number & (table_.size() - 1);
        while (table_[at] != 0 && table_[at] != number) at = (at + 1) & (table_.size() - 1);
        return table_[at];
    }
    void grow() {
        std::vector<std::uint64_t> before(std::max<std::size_t>(1024, 2 * table_.size()), 0);
        table_.swap(before);
        for (const std::uint64_t number : before) {
            if (number != 0) place_of(number) = number;
        }
    }

    std::vector<std::uint64_t> table_;
    std::size_t count_ = 0;
};

using AgentStep = std::pair<std::uint16_t, std::uint16_t>;  ///< agent, step

class Exploring {
public:
    Exploring(const Model& model, const ExploreOptions& options) : model_(model), options_(options) {
        conflicts_.resize(model.record.size() + 1);
        std::vector<std::pair<AgentStep, const Step*>> visible;
        for (const auto& [agent, step] : model.record) {
            const Step& of = model.agents[agent].steps[step];
            if (!of.left_out && is_visible(of))
                visible.push_back(
                    {{static_cast<std::uint16_t>(agent), static_cast<std::uint16_t>(step)}, &of});
        }
        for (std::size_t i = 0; i < visible.size(); ++i) {
            for (std::size_t j = 0; j < i; ++j) {
                if (visible[i].first.first == visible[j].first.first) continue;
                if (!conflict(*visible[i].second, *visible[j].second)) continue;
                conflicts_[visible[i].second->number].push_back(visible[j].first);
                conflicts_[visible[j].second->number].push_back(visible[i].first);
            }
        }
    }

    Explored run() {
        State first{std::vector<std::uint16_t>(model_.agents.size(), 0),
                    std::vector<std::uint32_t>(model_.num_words, 0),
                    std::vector<std::uint16_t>(model_.num_atoms, 0)};
        std::vector<State> open;
        open.push_back(std::move(first));
        while (!open.empty()) {
            State state = std::move(open.back());
            open.pop_back();
            settle(state);
            if (!seen_.insert(hash_of(state))) continue;
            if (++result_.states > options_.most_states) return result_;
            std::vector<std::size_t> next = next_of(state);
            if (next.empty()) {
                if (is_over(state)) continue;
                result_.violation = "nobody can go on: " + waiting(state);
                break;
            }
            for (const std::size_t agent : next) {
                State& after =
                    agent == next.back() ? open.emplace_back(std::move(state)) : open.emplace_back(state);
                if (!take(after, agent)) break;
            }
            if (!result_.violation.empty()) break;
        }
        result_.complete = true;
        return result_;
    }

private:
    [[nodiscard]] bool is_visible(const Step& step) const {
        return step.kind == Step::Kind::move ||
               (step.kind != Step::Kind::count && !model_.monotonic[step.word]);
    }

    static bool meet(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
        for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
            if (a[i] == b[j]) return true;
            ++(a[i] < b[j] ? i : j);
        }
        return false;
    }
    static bool conflict(const Step& a, const Step& b) {
        const bool moves = a.kind == Step::Kind::move;
        if (moves != (b.kind == Step::Kind::move)) return false;
        // Who only adds to a word keeps nobody from anything, and who awaits it changes nothing.
        if (!moves) return a.word == b.word && (a.kind == Step::Kind::store || b.kind == Step::Kind::store);
        return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
    }

    [[nodiscard]] const Step* next(const std::vector<std::uint16_t>& at, std::size_t agent) const {
        const std::vector<Step>& steps = model_.agents[agent].steps;
        return at[agent] < steps.size() ? &steps[at[agent]] : nullptr;
    }

    static bool is_able(const Step& step, const std::vector<std::uint32_t>& words) {
        if (step.kind != Step::Kind::wait || step.left_out) return true;
        const std::uint32_t value = words[step.word];
        return step.any ? value != 0 : static_cast<std::int32_t>(value - step.value) >= 0;
    }

    static void change(const Step& step, std::vector<std::uint32_t>& words) {
        if (step.left_out) return;
        switch (step.kind) {
            case Step::Kind::store: words[step.word] = step.value; break;
            case Step::Kind::add: words[step.word] += step.value; break;
            case Step::Kind::count:
                if (++words[step.word] != step.value) break;
                if (step.any) words[step.word] = 0;
                for (const std::uint32_t post : step.posts) words[post] = step.epoch;
                break;
            default: break;
        }
    }

    /// All that need not be branched on.
    void settle(State& state) const {
        for (bool moved = true; std::exchange(moved, false);) {
            for (std::size_t agent = 0; agent < model_.agents.size(); ++agent) {
                for (const Step* step = next(state.at, agent); step != nullptr;
                     step = next(state.at, agent)) {
                    if ((!step->left_out && is_visible(*step)) || !is_able(*step, state.words)) break;
                    change(*step, state.words);
                    ++state.at[agent];
                    moved = true;
                }
            }
        }
    }

    /// The agents whose steps are to be branched on, the first one last: its step is that which others may overtake.
    [[nodiscard]] std::vector<std::size_t> next_of(const State& state) const {
        std::vector<std::size_t> able;
        for (std::size_t agent = 0; agent < model_.agents.size(); ++agent) {
            const Step* step = next(state.at, agent);
            if (step != nullptr && is_able(*step, state.words)) able.push_back(agent);
        }
        if (!options_.reduce || able.size() < 2) return able;
        for (const std::size_t agent : able) {
            if (is_alone(state, agent)) return {agent};
        }
        return able;
    }

    /// Whether no other agent can come to a step that conflicts with the agent's next one before that is done.
    [[nodiscard]] bool is_alone(const State& state, std::size_t agent) const {
        const std::vector<AgentStep>& conflicts = conflicts_[next(state.at, agent)->number];
        const auto is_open = [&](const AgentStep& place) { return place.second >= state.at[place.first]; };
        if (std::ranges::none_of(conflicts, is_open)) return true;
        std::vector<std::uint16_t> at = state.at;
        std::vector<std::uint32_t> words = state.words;
        for (bool moved = true; std::exchange(moved, false);) {
            for (std::size_t other = 0; other < model_.agents.size(); ++other) {
                if (other == agent) continue;
                for (const Step* step = next(at, other); step != nullptr && is_able(*step, words);
                     step = next(at, other)) {
                    change(*step, words);
                    ++at[other];
                    moved = true;
                }
            }
        }
        return std::ranges::none_of(conflicts, [&](const AgentStep& place) {
            return is_open(place) && place.second < at[place.first];
        });
    }

    /// False: what it found is wrong.
    [[nodiscard]] bool take(State& state, std::size_t agent) {
        const Step& step = *next(state.at, agent);
        for (std::size_t i = 0; i < step.reads.size(); ++i) {
            const std::uint16_t found = state.atoms[step.reads[i]];
            if (found == step.found[i]) continue;
            const auto name = [&](std::uint16_t number) {
                if (number == 0) return std::string("what nobody has written");
                const auto& [by, at] = model_.record[number - 1];
                return "what was written by (" + model_.describe(by, at) + ")";
            };
            result_.violation =
                fmt::format("{} finds {} instead of {}", model_.describe(agent, state.at[agent]), name(found),
                            name(step.found[i]));
            return false;
        }
        for (const std::uint16_t atom : step.writes) state.atoms[atom] = step.number;
        change(step, state.words);
        ++state.at[agent];
        return true;
    }

    [[nodiscard]] bool is_over(const State& state) const {
        for (std::size_t agent = 0; agent < model_.agents.size(); ++agent) {
            if (next(state.at, agent) != nullptr) return false;
        }
        return true;
    }

    [[nodiscard]] std::string waiting(const State& state) const {
        for (std::size_t agent = 0; agent < model_.agents.size(); ++agent) {
            const Step* step = next(state.at, agent);
            if (step != nullptr && step->own) return model_.describe(agent, state.at[agent]);
        }
        return "the ends of calls";
    }

    static std::uint64_t hash_of(const State& state) {
        std::uint64_t hash = 0x9e37'79b9'7f4a'7c15U;
        const auto mix = [&hash](std::uint64_t value) {
            hash = (hash ^ value) * 0xbf58'476d'1ce4'e5b9U;
            hash ^= hash >> 29;
        };
        for (const std::uint16_t at : state.at) mix(at);
        for (const std::uint32_t word : state.words) mix(word);
        for (const std::uint16_t atom : state.atoms) mix(atom);
        return hash | 1;  // not 0
    }

    const Model& model_;
    ExploreOptions options_;
    std::vector<std::vector<AgentStep>> conflicts_;  ///< by step's number
    Numbers seen_;                                   ///< hashes of states
    Explored result_;
};

}  // namespace

Explored explore(const Model& model, const ExploreOptions& options) {
    return Exploring(model, options).run();
}

}  // namespace syncopate::explore
