#include "explore/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "explore/fault_paths.hpp"
#include "explore/recorded.hpp"
#include "explore/recorder.hpp"

namespace syncopate::explore {

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
    Recorded recorded(**op);
    Recorder recorder(recorded);
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
    return model_of(std::move(recorded), played.name);
}

namespace {

/// So many calls of all ranks one after another, until one fails; then all go on, and make as many calls again as `more`
/// says. "" if nothing else fails.
std::string play(PlayedOp& op, SimulatedRanks& ranks, Recorder& recorder, FaultPaths& paths, int calls,
                 GoesOn how, int more) {
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
                paths.end_call(rank);
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
    Recorded recorded(**op);
    recorded.model.calls = calls;
    Recorder recorder(recorded);
    FaultPaths paths(recorded);
    const auto run = [&](const auto& observe, int more) {
        SimulatedRanks ranks({.in_order = true});
        observe(ranks);
        return play(**op, ranks, recorder, paths, calls, how, more);
    };
    std::string wrong = run([&](SimulatedRanks& ranks) { recorder.observe(ranks); }, 1);
    if (wrong.empty()) wrong = run([](SimulatedRanks&) {}, 0);
    for (std::size_t look = 0; look < recorded.looks.size() && wrong.empty(); ++look) {
        for (const bool told : {false, true}) {
            wrong = run([&](SimulatedRanks& ranks) { paths.observe(ranks, look, told); }, 0);
            if (wrong.empty()) wrong = paths.take();
            if (!wrong.empty()) wrong += fmt::format(" (look {} of {})", look, recorded.looks.size());
            if (!wrong.empty()) break;
        }
    }
    if (!wrong.empty()) return Error{played.name + ": " + wrong};
    Model model = model_of(std::move(recorded), played.name);
    hand_on_paths(model);
    return model;
}

}  // namespace syncopate::explore
