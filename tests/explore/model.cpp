#include "explore/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "syncopate/emit/table.hpp"

namespace syncopate::explore {
namespace {

struct Bytes {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

/// Steps before addresses are numbered.
struct Touched {
    std::vector<Bytes> reads, writes;
};

class Recorder {
public:
    explicit Recorder(PlayedOp& op) : op_(op) {}

    void observe(SimulatedRanks& ranks) {
        ranks.observer = [this](const Event& event) { take(event); };
    }

    /// From now on faults are part of it: the ranks go on after so many calls.
    void take_faults(int calls) { model_.calls = calls; }

    [[nodiscard]] std::size_t num_looks() const { return looks_.size(); }
    [[nodiscard]] bool is_of_main(std::size_t look) const { return main_.contains(looks_[look].first); }

    /// What an agent does from a look on, in a run in which its rank has a fault there.
    void observe_fault(SimulatedRanks& ranks, std::size_t look, bool told) {
        struck_ = {.look = look, .told = told};
        last_look_.clear();
        started_.clear();
        ranks.observer = [this](const Event& event) { take_after_fault(event); };
        ranks.strikes = [this](const Event& event) -> std::uint32_t {
            if (is_same_look(event) || struck_.seen++ != struck_.look) return 0;
            struck_.fiber = event.fiber;
            struck_.agent = looks_[struck_.look].first;
            return struck_.told ? emit::control::fault_of_peer | 1u << 8 : 1u;
        };
    }
    /// The call of the rank has ended, whose main fiber this is.
    void end_call(int fiber) {
        if (struck_.fiber == fiber) struck_.over = true;
    }
    [[nodiscard]] std::string take_path() {
        if (struck_.fiber < 0) return "a look is not there again";
        Step& look = model_.agents[looks_[struck_.look].first].steps[looks_[struck_.look].second];
        (struck_.told ? look.told_fault : look.found_fault) = std::move(struck_.detour);
        return std::exchange(struck_, {}).wrong;
    }

    /// The rank's main fiber begins its next call.
    void begin_call(int rank, int fiber, int call) {
        const std::size_t agent = make(rank, call);
        std::uint32_t before = 0;
        if (current_.contains(fiber)) {
            before = done_of(current_[fiber]);
            push(current_[fiber], {.kind = Step::Kind::store, .word = before, .value = 1, .own = false});
        } else {
            before = new_word("begin");
        }
        push(agent, {.kind = Step::Kind::wait, .word = before, .value = call > 1 ? 1u : 0u, .own = false});
        main_.insert(agent);
        current_[fiber] = agent;
        rank_of_[fiber] = rank;
    }

    Model take_model(std::string name) {
        number_atoms();
        for (Agent& agent : model_.agents) agent.role = role_of(agent);
        find_contents();
        find_owners();
        hand_on_paths();
        model_.name = std::move(name);
        model_.num_words = model_.word_names.size();
        find_monotonic();
        return std::move(model_);
    }

private:
    std::size_t make(int rank, int call) {
        model_.agents.push_back({.rank = rank, .call = call});
        touched_.emplace_back();
        return model_.agents.size() - 1;
    }

    void push(std::size_t agent, Step step, Touched touched = {}) {
        model_.record.emplace_back(agent, model_.agents[agent].steps.size());
        step.number = static_cast<std::uint16_t>(model_.record.size());
        model_.agents[agent].steps.push_back(std::move(step));
        touched_[agent].push_back(std::move(touched));
    }

    std::uint32_t word(std::uint64_t address) {
        address = op_.in_first_mapping(address);
        const auto [found, is_new] = words_.try_emplace(address, model_.word_names.size());
        if (is_new) model_.word_names.push_back(name_of(address));
        return static_cast<std::uint32_t>(found->second);
    }
    std::uint32_t new_word(std::string name) {
        model_.word_names.push_back(std::move(name));
        return static_cast<std::uint32_t>(model_.word_names.size() - 1);
    }
    std::uint32_t done_of(std::size_t agent) {
        const auto found = done_.find(agent);
        if (found != done_.end()) return found->second;
        return done_[agent] = new_word(fmt::format("end of agent {}", agent));
    }

    [[nodiscard]] bool is_of_collective(int rank, std::int32_t word) const {
        const fuse::RankSchedule& own = op_.schedule().ranks[static_cast<std::size_t>(rank)];
        return word >= emit::relay_gate_of(own, own.num_relays);
    }

    [[nodiscard]] std::string name_of(std::uint64_t address) const {
        for (int rank = 0; rank < op_.size(); ++rank) {
            const std::uint64_t block = op_.in_first_mapping(op_.op(rank).control_address());
            if (address < block || address - block >= op_.op(rank).control_bytes()) continue;
            const auto at = static_cast<std::int32_t>((address - block) / 4);
            const auto& signals = op_.schedule().ranks[static_cast<std::size_t>(rank)].signals;
            const std::int32_t signal = (at - emit::control::first_signal) / emit::control::signal_stride;
            if (at < emit::control::first_signal) return fmt::format("header word {} of rank {}", at, rank);
            if (is_of_collective(rank, at)) return fmt::format("collective word {} of rank {}", at, rank);
            if (signal >= static_cast<std::int32_t>(signals.size()))
                return fmt::format("counter word {} of rank {}", at, rank);
            static constexpr const char* kKinds[] = {"arrived", "consumed", "ready", "fetched", "made"};
            const fuse::SignalMeaning& meaning = signals[static_cast<std::size_t>(signal)];
            return fmt::format("signal {} of rank {} ({} {}:{})", signal, rank,
                               kKinds[static_cast<std::size_t>(meaning.kind)], meaning.op.rank,
                               meaning.op.index);
        }
        return fmt::format("word {} of this process", model_.word_names.size());
    }

    /// One look after another is one.
    [[nodiscard]] bool is_same_look(const Event& event) const {
        const auto last = last_look_.find(event.fiber);
        return event.kind == Event::Kind::look && last != last_look_.end() && last->second == event.any;
    }
    void note_look(const Event& event) {
        if (event.kind == Event::Kind::look)
            last_look_[event.fiber] = event.any;
        else
            last_look_.erase(event.fiber);
    }

    void take_after_fault(const Event& event) {
        using Kind = Event::Kind;
        note_look(event);
        if (event.kind == Kind::start) started_[event.value].push_back(static_cast<int>(event.address));
        if (event.kind == Kind::look && event.fiber == struck_.fiber &&
            !std::exchange(struck_.has_come, true))
            return;  // to the look itself
        if (event.fiber != struck_.fiber || struck_.over) {
            if (event.kind == Kind::join) started_[event.address].clear();
            return;
        }
        switch (event.kind) {
            case Kind::look: {
                struck_.over = true;
                const std::size_t after = struck_.look + 1;
                const auto is_next = [&](std::size_t look) { return looks_[look].first == struck_.agent; };
                for (std::size_t look = after; look < looks_.size(); ++look) {
                    if (!is_next(look)) continue;
                    struck_.detour.then = static_cast<std::uint32_t>(looks_[look].second);
                    if (model_.agents[struck_.agent].steps[struck_.detour.then].any != event.any)
                        struck_.wrong = "an agent does not come to its next look after a fault";
                    break;
                }
                return;
            }
            case Kind::store:
                return struck_.detour.steps.push_back({.kind = Step::Kind::store,
                                                       .word = word(event.address),
                                                       .value = static_cast<std::uint32_t>(event.value)});
            case Kind::join:
                for (const int fiber : std::exchange(started_[event.address], {})) {
                    for (const std::size_t other : agents_of_[fiber]) {
                        if (model_.agents[other].call != model_.agents[struck_.agent].call) continue;
                        struck_.detour.steps.push_back(
                            {.kind = Step::Kind::wait, .word = done_of(other), .value = 1, .own = false});
                    }
                }
                return;
            case Kind::read:
            case Kind::write: return take_move_after_fault();
            default: struck_.wrong = "an agent does more than that after a fault";
        }
    }

    /// What it moves after the fault it moves without one, too: its step, by where that is.
    void take_move_after_fault() {
        std::vector<Step>& detour = struck_.detour.steps;
        if (!detour.empty() && detour.back().kind == Step::Kind::move) return;
        const std::vector<Step>& steps = model_.agents[struck_.agent].steps;
        std::size_t at = std::max(struck_.moved, looks_[struck_.look].second) + 1;
        while (at < steps.size() && steps[at].kind != Step::Kind::move) ++at;
        if (at >= steps.size()) struck_.wrong = "an agent moves after a fault what it does not without";
        struck_.moved = at;
        detour.push_back({.kind = Step::Kind::move, .word = static_cast<std::uint32_t>(at)});
    }

    void take(const Event& event) {
        using Kind = Event::Kind;
        const std::size_t agent = current_.at(event.fiber);
        const bool is_same = is_same_look(event);
        note_look(event);
        if (event.kind == Kind::look && (model_.calls == 0 || is_same)) return;
        switch (event.kind) {
            case Kind::look:
                if (model_.agents[agent].call <= model_.calls)
                    looks_.emplace_back(agent, model_.agents[agent].steps.size());
                return push(agent, {.kind = Step::Kind::look, .word = word(event.address), .any = event.any});
            case Kind::start: {
                const int child = static_cast<int>(event.address);
                const std::uint32_t begun = new_word(fmt::format("start of fiber {}", child));
                push(agent, {.kind = Step::Kind::store, .word = begun, .value = 1, .own = false});
                begun_[child] = begun;
                rank_of_[child] = rank_of_[event.fiber];
                current_[child] = make(rank_of_[child], model_.agents[agent].call);
                push(current_[child], {.kind = Step::Kind::wait, .word = begun, .value = 1, .own = false});
                of_owner_[event.value].push_back(current_[child]);
                owner_of_[child] = event.value;
                agents_of_[child].push_back(current_[child]);
                return;
            }
            case Kind::join:
                for (const std::size_t other : of_owner_[event.address]) {
                    push(other,
                         {.kind = Step::Kind::store, .word = done_of(other), .value = 1, .own = false});
                    push(agent, {.kind = Step::Kind::wait, .word = done_of(other), .value = 1, .own = false});
                }
                of_owner_[event.address].clear();
                return;
            case Kind::apart: {
                const std::vector<Step>& so_far = model_.agents[agent].steps;
                const auto does = [](const Step& step) { return step.kind != Step::Kind::look; };
                if (std::ranges::count_if(so_far, does) <= 1) return;
                const std::size_t next = make(rank_of_[event.fiber], model_.agents[agent].call);
                push(next,
                     {.kind = Step::Kind::wait, .word = begun_.at(event.fiber), .value = 1, .own = false});
                current_[event.fiber] = next;
                agents_of_[event.fiber].push_back(next);
                of_owner_[owner_of_.at(event.fiber)].push_back(next);
                return;
            }
            case Kind::awaited: {
                const std::uint32_t of = word(event.address);
                return push(agent, {.kind = Step::Kind::wait,
                                    .word = of,
                                    .value = static_cast<std::uint32_t>(event.value),
                                    .any = event.any,
                                    .own = !model_.word_names[of].starts_with("collective")});
            }
            case Kind::store:
                return push(agent, {.kind = Step::Kind::store,
                                    .word = word(event.address),
                                    .value = static_cast<std::uint32_t>(event.value)});
            case Kind::add:
                return push(agent, {.kind = Step::Kind::add,
                                    .word = word(event.address),
                                    .value = static_cast<std::uint32_t>(event.value)});
            case Kind::count: {
                Step step{.kind = Step::Kind::count,
                          .word = word(event.address),
                          .value = static_cast<std::uint32_t>(event.value),
                          .any = event.any,
                          .epoch = event.epoch};
                for (const std::uint64_t post : event.posts) step.posts.push_back(word(post));
                return push(agent, std::move(step));
            }
            case Kind::read:
            case Kind::write: {
                if (const int cleared = cleared_by(event); cleared >= 0)
                    return push(agent,
                                {.kind = Step::Kind::clear, .word = static_cast<std::uint32_t>(cleared)});
                std::vector<Step>& steps = model_.agents[agent].steps;
                if (event.kind == Kind::read && has_written(agent, event))
                    push(agent, {.kind = Step::Kind::move});
                if (steps.empty() || steps.back().kind != Step::Kind::move || last_[agent] != event.fiber)
                    push(agent, {.kind = Step::Kind::move});
                last_[agent] = event.fiber;
                const std::uint64_t begin = op_.in_first_mapping(event.address);
                Touched& touched = touched_[agent].back();
                (event.kind == Kind::read ? touched.reads : touched.writes)
                    .push_back({begin, begin + event.value});
                return;
            }
        }
    }

    /// Whether the agent's last step has written some of what is read: that is then another step.
    [[nodiscard]] bool has_written(std::size_t agent, const Event& event) const {
        if (model_.calls == 0 || touched_[agent].empty()) return false;
        const std::uint64_t begin = op_.in_first_mapping(event.address);
        return std::ranges::any_of(touched_[agent].back().writes, [&](const Bytes& bytes) {
            return bytes.begin < begin + event.value && begin < bytes.end;
        });
    }

    /// The rank whose control block is written whole; -1: none.
    [[nodiscard]] int cleared_by(const Event& event) const {
        if (model_.calls == 0 || event.kind != Event::Kind::write) return -1;
        const std::uint64_t begin = op_.in_first_mapping(event.address);
        for (int rank = 0; rank < op_.size(); ++rank) {
            const std::uint64_t block = op_.in_first_mapping(op_.op(rank).control_address());
            if (begin <= block && block < begin + event.value) return rank;
        }
        return -1;
    }

    void find_owners() {
        model_.owners.assign(model_.word_names.size(), -1);
        for (int rank = 0; rank < op_.size(); ++rank) {
            const std::uint64_t block = op_.in_first_mapping(op_.op(rank).control_address());
            if (model_.calls > 0) model_.fault_words.push_back(word(block + 4 * emit::control::fault));
            model_.owners.resize(model_.word_names.size(), -1);
            for (const auto& [address, number] : words_) {
                if (address >= block && address - block < op_.op(rank).control_bytes())
                    model_.owners[number] = rank;
            }
        }
    }

    /// A wait that fails goes on as the look before it does.
    void hand_on_paths() {
        for (Agent& agent : model_.agents) {
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
                } else if (look != nullptr && model_.can_fail(step)) {
                    step.found_fault = look->found_fault;
                    step.told_fault = look->told_fault;
                }
            }
        }
    }

    void number_atoms() {
        std::vector<std::uint64_t> cuts;
        const auto each = [&](const auto& visit) {
            for (const auto& [agent, step] : model_.record) {
                for (const Bytes& bytes : touched_[agent][step].reads) visit(bytes, agent, step, false);
                for (const Bytes& bytes : touched_[agent][step].writes) visit(bytes, agent, step, true);
            }
        };
        each([&](const Bytes& bytes, std::size_t, std::size_t, bool) {
            cuts.push_back(bytes.begin);
            cuts.push_back(bytes.end);
        });
        std::ranges::sort(cuts);
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        std::vector<std::vector<std::uint32_t>> touching(cuts.size());
        each([&](const Bytes& bytes, std::size_t agent, std::size_t step, bool writes) {
            auto at = static_cast<std::size_t>(std::ranges::lower_bound(cuts, bytes.begin) - cuts.begin());
            const std::uint32_t id = 2u * model_.agents[agent].steps[step].number + (writes ? 1u : 0u);
            for (; cuts[at] < bytes.end; ++at) touching[at].push_back(id);
        });
        std::map<std::vector<std::uint32_t>, std::uint16_t> atoms;
        for (std::vector<std::uint32_t>& ids : touching) {
            std::ranges::sort(ids);
            ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
            if (ids.empty()) continue;
            const auto atom = static_cast<std::uint16_t>(atoms.size());
            if (!atoms.try_emplace(ids, atom).second) continue;
            for (const std::uint32_t id : ids) {
                const auto& [agent, step] = model_.record[id / 2 - 1];
                Step& of = model_.agents[agent].steps[step];
                (id % 2 == 1 ? of.writes : of.reads).push_back(atom);
            }
        }
        model_.num_atoms = atoms.size();
    }

    [[nodiscard]] std::string role_of(const Agent& agent) const {
        std::string role = fmt::format("{}", agent.rank);
        for (const Step& step : agent.steps) {
            if (step.kind == Step::Kind::move)
                role += fmt::format(" m{}/{}", step.reads.size() > 0, step.writes.size() > 0);
            else if (step.own)
                role += fmt::format(" {}{}", static_cast<int>(step.kind), step.word);
        }
        return role;
    }

    /// What each step finds, where calls come one after another.
    void find_contents() {
        std::vector<std::uint16_t> holds(model_.num_atoms, 0);
        for (const auto& [agent, step] : model_.record) {
            Step& of = model_.agents[agent].steps[step];
            for (const std::uint16_t atom : of.reads) of.found.push_back(holds[atom]);
            for (const std::uint16_t atom : of.writes) holds[atom] = of.number;
        }
    }

    void find_monotonic() {
        model_.monotonic.assign(model_.num_words, true);
        std::vector<std::uint32_t> holds(model_.num_words, 0);
        for (const auto& place : model_.record) {
            const Step& step = model_.at(place);
            if (model_.calls > 0 &&
                model_.agents[place.first].call == model_.calls + 1) {  // all is as new then
                if (step.kind == Step::Kind::store) holds[step.word] = step.value;
                for (std::size_t of = 0; step.kind == Step::Kind::clear && of < holds.size(); ++of) {
                    if (model_.owners[of] == static_cast<int>(step.word)) holds[of] = 0;
                }
                continue;
            }
            if (step.kind == Step::Kind::add) holds[step.word] += step.value;
            if (step.kind != Step::Kind::store) continue;
            if (step.value < holds[step.word]) model_.monotonic[step.word] = false;
            holds[step.word] = step.value;
        }
    }

    PlayedOp& op_;
    Model model_;
    std::vector<std::pair<std::size_t, std::size_t>> looks_;  ///< agent and step, in the order of the record
    std::map<int, bool> last_look_;                           ///< by fiber: of its last step, if that was one
    std::set<std::size_t> main_;                              ///< agents of ranks' own fibers
    std::map<int, std::vector<std::size_t>> agents_of_;       ///< by fiber that another one has started
    std::map<std::uint64_t, std::vector<int>> started_;       ///< by owner: fibers, in a run with a fault
    struct Struck {
        std::size_t look = 0;
        bool told = false;
        std::size_t seen = 0;
        int fiber = -1;
        std::size_t agent = 0;
        std::size_t moved = 0;  ///< the last step that moves
        bool has_come = false;
        bool over = false;
        Detour detour{};
        std::string wrong{};
    };
    Struck struck_;
    std::vector<std::vector<Touched>> touched_;  ///< by agent and step
    std::map<std::uint64_t, std::size_t> words_;
    std::map<std::size_t, std::uint32_t> done_;                   ///< by agent
    std::map<int, std::size_t> current_;                          ///< by fiber: its agent
    std::map<int, int> rank_of_;                                  ///< by fiber
    std::map<int, std::uint32_t> begun_;                          ///< by fiber
    std::map<int, std::uint64_t> owner_of_;                       ///< by fiber
    std::map<std::uint64_t, std::vector<std::size_t>> of_owner_;  ///< agents that nobody has joined
    std::map<std::size_t, int> last_;
};

}  // namespace

std::string Model::describe(std::size_t agent, std::size_t step) const {
    const Agent& of = agents[agent];
    std::string text = fmt::format("rank {}, call {}, agent {}, step {}: ", of.rank, of.call, agent, step);
    if (step >= of.steps.size()) return text + "end";
    const Step& at = of.steps[step];
    switch (at.kind) {
        case Step::Kind::wait: return text + fmt::format("wait for {} of {}", at.value, word_names[at.word]);
        case Step::Kind::store: return text + fmt::format("set {} to {}", word_names[at.word], at.value);
        case Step::Kind::add: return text + fmt::format("add {} to {}", at.value, word_names[at.word]);
        case Step::Kind::count:
            return text + fmt::format("count {} to {}, then {} posts", word_names[at.word], at.value,
                                      at.posts.size());
        case Step::Kind::look: return text + "look for a fault";
        case Step::Kind::clear: return text + fmt::format("clear the words of rank {}", at.word);
        case Step::Kind::move:
            return text + fmt::format("move: reads {} atoms, writes {}", at.reads.size(), at.writes.size());
    }
    return text;
}

Result<Model> record(const Case& played, int calls) {
    Result<std::unique_ptr<PlayedOp>> op =
        PlayedOp::make(played, {.deadline_ms = 1000});  // a fault says who waits for what
    if (!op) return op.error();
    SimulatedRanks ranks({.in_order = true});
    Recorder recorder(**op);
    recorder.observe(ranks);
    std::vector<int> ended(static_cast<std::size_t>((*op)->size()), 0);
    std::string failed;
    for (int rank = 0; rank < (*op)->size(); ++rank) {
        ranks.add_rank([&, rank] {
            for (int call = 1; call <= calls; ++call) {
                recorder.begin_call(rank, rank, call);  // a rank's main fiber has its number
                const Status done = (*op)->call(ranks, rank, static_cast<std::uint32_t>(call));
                if (!done) failed = done.error().to_string();
                ended[static_cast<std::size_t>(rank)] = done ? call : calls;
                ranks.changed();
                while (std::ranges::any_of(ended, [&](int other) { return other < call; })) ranks.pause();
            }
        });
    }
    if (!ranks.run()) return Error{played.name + ": nobody can go on, calls one after another"};
    if (!failed.empty()) return Error{played.name + ": " + failed};
    if (!(*op)->wrong().empty()) return Error{played.name + ": " + (*op)->wrong()};
    return recorder.take_model(played.name);
}

namespace {

/// So many calls of all ranks one after another, until one fails; then all go on, and make as many calls again as `more`
/// says. "" if nothing else fails.
std::string play(PlayedOp& op, SimulatedRanks& ranks, Recorder& recorder, int calls, GoesOn how, int more) {
    std::vector<int> ended(static_cast<std::size_t>(op.size()), 0);
    std::string failed;
    for (int rank = 0; rank < op.size(); ++rank) {
        ranks.add_rank([&, rank] {
            int& at = ended[static_cast<std::size_t>(rank)];
            const auto begin = [&](int call) {
                if (more > 0) recorder.begin_call(rank, rank, call);
            };
            const auto await_others = [&](int call) {
                ranks.changed();
                while (std::ranges::any_of(ended, [&](int other) { return other < call; })) ranks.pause();
            };
            for (int call = 1; call <= calls; ++call) {
                begin(call);
                const Status done = op.call(ranks, rank, static_cast<std::uint32_t>(call));
                recorder.end_call(rank);
                if (!done && more > 0) failed = done.error().to_string();
                at = done ? call : calls;
                await_others(call);
                if (!done) break;
            }
            begin(calls + 1);
            Status gone_on = Done{};
            if (how == GoesOn::reset) {
                gone_on = op.reset(rank);
            } else if (auto recovered = op.recover(rank, std::chrono::seconds(60)); !recovered) {
                gone_on = recovered.error();
            }
            if (!gone_on) failed = gone_on.error().to_string();
            at = calls + 1;
            await_others(calls + 1);
            for (int call = 1; call <= more; ++call) {
                begin(calls + 1 + call);
                const Status done = op.call(ranks, rank, static_cast<std::uint32_t>(call));
                if (!done) failed = done.error().to_string();
                at = calls + 1 + call;
                await_others(calls + 1 + call);
            }
        });
    }
    if (!ranks.run()) return "nobody can go on";
    return failed;
}

}  // namespace

Result<Model> record_with_faults(const Case& played, int calls, GoesOn how) {
    Result<std::unique_ptr<PlayedOp>> op = PlayedOp::make(played, {.deadline_ms = 1000});
    if (!op) return op.error();
    Recorder recorder(**op);
    recorder.take_faults(calls);
    const auto run = [&](const auto& observe, int more) {
        SimulatedRanks ranks({.in_order = true});
        observe(ranks);
        return play(**op, ranks, recorder, calls, how, more);
    };
    std::string wrong = run([&](SimulatedRanks& ranks) { recorder.observe(ranks); }, 1);
    if (wrong.empty()) wrong = run([](SimulatedRanks&) {}, 0);
    for (std::size_t look = 0; look < recorder.num_looks() && wrong.empty(); ++look) {
        for (const bool told : {false, true}) {
            wrong = run([&](SimulatedRanks& ranks) { recorder.observe_fault(ranks, look, told); }, 0);
            if (wrong.empty()) wrong = recorder.take_path();
            if (!wrong.empty()) wrong += fmt::format(" (look {} of {})", look, recorder.num_looks());
            if (!wrong.empty()) break;
        }
    }
    if (!wrong.empty()) return Error{played.name + ": " + wrong};
    return recorder.take_model(played.name);
}

}  // namespace syncopate::explore
