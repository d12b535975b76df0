#include "explore/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

#include "explore/cases.hpp"
#include "explore/played_op.hpp"
#include "explore/simulated_ranks.hpp"

namespace syncopate::explore {
namespace {

constexpr std::int64_t kDeadline = 2000;  // milliseconds of simulated time
constexpr std::int64_t kSlack = 1500;
constexpr std::int64_t kToRecover = 8 * kDeadline;  ///< longer than a rank is ever stopped
constexpr const char* kHarms[] = {"no harm",
                                  "short stops",
                                  "a long stop",
                                  "a kill",
                                  "a kernel not launched",
                                  "a call given up",
                                  "a rank that leaves its call first"};
constexpr const char* kWays[] = {"the end", "recovery", "a reset"};

const std::vector<Case>& cases() {
    static const std::vector<Case> all = [] {
        std::vector<Case> made;
        for (const int ranks : {2, 3}) {
            for (auto* list : {&plan_cases, &operator_cases}) {
                for (Case& one : (*list)(ranks)) made.push_back(std::move(one));
            }
        }
        return made;
    }();
    return all;
}

class Simulation {
public:
    Simulation(const Case& played, std::uint64_t seed, int calls, bool harmless, AfterFault after)
        : random_(seed), calls_(calls), ranks_({.seed = random_()}), case_(&played), after_(after) {
        harm_ = static_cast<Harm>(random_() % (harmless ? 2 : kNumHarms));
        while (after_ != AfterFault::end && (harm_ == Harm::none || harm_ == Harm::stopped))
            harm_ = static_cast<Harm>(random_() % kNumHarms);
        while (after_ == AfterFault::end && harm_ == Harm::left)
            harm_ = static_cast<Harm>(random_() % kNumHarms);
        if (harm_ == Harm::killed && after_ == AfterFault::reset) after_ = AfterFault::recover;
        kills_later_ = after_ == AfterFault::recover && harm_ != Harm::killed && random_() % 4 == 0;
        const std::int64_t delays[] = {0, 20, 2000};
        timing_ = {.max_delay_us = delays[random_() % 3], .seed = random_(), .deadline_ms = kDeadline};
    }

    SimulationResult run() {
        result_.story = fmt::format("{}, {}, then {}{}, delays up to {} us", case_->name,
                                    kHarms[static_cast<int>(harm_)], kWays[static_cast<int>(after_)],
                                    kills_later_ ? " with a kill in it" : "", timing_.max_delay_us);
        Result<std::unique_ptr<PlayedOp>> made = PlayedOp::make(*case_, timing_);
        if (!made) {
            result_.wrong = made.error().to_string();
            return result_;
        }
        op_ = made->get();
        const auto size = static_cast<std::size_t>(op_->size());
        ended_.resize(size, 0);
        failed_at_.resize(size);
        done_.resize(size, false);
        went_on_.resize(size);
        later_turn_ = random_() % 150;
        victim_ = static_cast<int>(random_() % size);
        victim_call_ = 1 + static_cast<int>(random_() % static_cast<std::uint64_t>(calls_));
        harm_turn_ = random_() % 400;
        ranks_.observer = [this](const Event& event) { trace(event); };
        ranks_.each_turn = [this] { befall(); };
        for (int rank = 0; rank < op_->size(); ++rank) {
            ranks_.add_rank([this, rank] {
                make_calls(rank);
                done_[static_cast<std::size_t>(rank)] = true;
                ranks_.changed();
            });
        }
        if (!ranks_.run()) result_.wrong = "nobody can go on";
        judge();
        if (is_killed()) {
            ranks_.observer = {};
            op_->op(victim_).give_up();
            if (!ranks_.bury() && result_.wrong.empty())
                result_.wrong = "a rank whose op was given up does not end";
        }
        result_.trace ^= ranks_.turns();
        return result_;
    }

private:
    void make_calls(int rank) {
        const auto index = static_cast<std::size_t>(rank);
        for (int call = 1; call <= calls_ || !all_have_ended(rank); ++call) {
            if (call > calls_) {  // the others may still fail, and need this rank to go on
                --call;
                if (op_->op(rank).poll()) {
                    ranks_.pause();
                    continue;
                }
                if (!go_on(rank)) return;
                call = 0;
                continue;
            }
            if (rank == victim_) called_ = std::max(called_, call);
            const bool harmed = rank == victim_ && call == victim_call_ && !went_on_[index];
            if (harmed && harm_ == Harm::given_up) {
                harmed_at_ = ranks_.now();
                op_->op(rank).give_up();
            }
            const bool runs = !(harmed && harm_ == Harm::not_launched);
            if (!runs) harmed_at_ = ranks_.now();
            const Status done = op_->call(ranks_, rank, static_cast<std::uint32_t>(call), runs);
            if (!done) {
                failed_at_[index] = ranks_.now();
                message_ = done.error().message;
                ++result_.failed;
                if (op_->op(rank).check() && !is_buried())
                    fail(fmt::format("rank {} is told of a fault that check() does not see", rank));
                if (after_ == AfterFault::end || !go_on(rank)) return;
                call = 0;
                continue;
            }
            ended_[index] = call;
            ++result_.calls;
            ranks_.changed();
            if (!harmed || harm_ != Harm::left) continue;
            harmed_at_ = ranks_.now();
            if (!go_on(rank)) return;
            call = 0;
        }
    }
    [[nodiscard]] bool is_killed() const { return harm_ == Harm::killed || kills_later_; }
    [[nodiscard]] bool is_buried() const { return harmed_at_ && is_killed(); }

    /// Whether nobody will need this rank any more.
    [[nodiscard]] bool all_have_ended(int rank) const {
        if (after_ == AfterFault::end) return true;
        for (int other = 0; other < op_->size(); ++other) {
            const auto index = static_cast<std::size_t>(other);
            if (other != rank && !ranks_.is_dead(other) && !done_[index] && ended_[index] < calls_)
                return false;
        }
        return true;
    }

    /// After a fault: whether the rank makes all its calls again.
    [[nodiscard]] bool go_on(int rank) {
        const auto index = static_cast<std::size_t>(rank);
        ended_[index] = 0;
        failing_ = true;
        if (after_ == AfterFault::reset) {
            const Status reset = op_->reset(rank);
            if (!reset) fail(fmt::format("rank {} is not reset: {}", rank, reset.error().message));
            went_on_[index] = std::vector<int>{};
            if (reset) failed_at_[index].reset();
            return reset.ok();
        }
        const Result<runtime::Recovered> recovered =
            op_->recover(rank, std::chrono::milliseconds(kToRecover));
        if (!recovered) {
            if (!ranks_.is_dead(rank) && !is_killed())
                fail(fmt::format("rank {} does not go on: {}", rank, recovered.error().message));
            return false;
        }
        went_on_[index] = recovered->ranks;
        ++result_.recoveries;
        if (!recovered->renewed) {
            const Status retired = op_->op(rank).check();
            if (retired || retired.error().message.find("gone on with") == std::string::npos)
                fail(fmt::format("rank {} goes on with fewer, and its op does not say so", rank));
            return false;
        }
        failed_at_[index].reset();
        return true;
    }

    /// At each turn.
    void befall() {
        if (harm_ == Harm::stopped && ranks_.now() >= next_stop_ && random_() % 256 == 0) {
            const std::chrono::milliseconds time(random_() % (kDeadline / 2));
            ranks_.stop(victim_, time);
            next_stop_ =
                ranks_.now() + time + std::chrono::milliseconds(kDeadline);  // so that no wait sees two
        }
        if (kills_later_ && failing_ && later_turn_-- == 0) {
            harmed_at_ = ranks_.now();
            ranks_.kill(victim_);
        }
        const bool now = called_ >= victim_call_ && harm_turn_-- == 0;
        if (!now || harmed_at_) return;
        if (harm_ == Harm::killed) {
            harmed_at_ = ranks_.now();
            ranks_.kill(victim_);
        }
        if (harm_ == Harm::stopped_long) {
            harmed_at_ = ranks_.now();
            ranks_.stop(victim_, std::chrono::milliseconds(kDeadline / 2 + random_() % (3 * kDeadline)));
        }
    }

    /// All that have gone on are in one group, and have made all their calls if it is as large as it was.
    void judge_those_who_went_on() {
        std::optional<std::vector<int>> group;
        for (int rank = 0; rank < op_->size(); ++rank) {
            const auto index = static_cast<std::size_t>(rank);
            if (ranks_.is_dead(rank)) continue;
            if (harmed_at_ && !went_on_[index] && ended_[index] < calls_)
                fail(fmt::format("rank {} has not gone on", rank));
            if (!went_on_[index]) continue;
            if (group && *group != *went_on_[index]) fail(fmt::format("rank {} is in another group", rank));
            group = went_on_[index];
            const bool whole = group->empty() || group->size() == static_cast<std::size_t>(op_->size());
            if (whole && ended_[index] < calls_ && !is_killed())
                fail(fmt::format("rank {} ends in call {} after it has gone on", rank, ended_[index] + 1));
        }
    }

    void judge() {
        if (!op_->wrong().empty()) fail(op_->wrong());
        if (after_ != AfterFault::end) return judge_those_who_went_on();
        const bool may_fail = harm_ != Harm::none && harm_ != Harm::stopped;
        const int last = *std::ranges::min_element(ended_);
        for (int rank = 0; rank < op_->size(); ++rank) {
            const auto& failed = failed_at_[static_cast<std::size_t>(rank)];
            const int ended = ended_[static_cast<std::size_t>(rank)];
            if (failed && !may_fail)
                fail(fmt::format("rank {} fails in call {}: {}", rank, ended + 1, message_));
            if (ranks_.is_dead(rank)) continue;
            if (!failed && ended < calls_) fail(fmt::format("rank {} is silent in call {}", rank, ended + 1));
            // Who exchanges anything with a rank is at most two calls ahead of it; in a chain of ranks these add up.
            if (ended > last + 2 * (op_->size() - 1))
                fail(fmt::format("rank {} has ended call {}, another one only {}", rank, ended, last));
            if (!failed || !harmed_at_ || harm_ == Harm::stopped_long) continue;
            const auto late =
                std::chrono::duration_cast<std::chrono::milliseconds>(*failed - *harmed_at_).count();
            if (late > kDeadline + kSlack) fail(fmt::format("rank {} is told after {} ms", rank, late));
        }
    }

    void fail(std::string what) {
        if (result_.wrong.empty()) result_.wrong = std::move(what);
    }

    void trace(const Event& event) {
        const auto mix = [this](std::uint64_t value) {
            result_.trace = (result_.trace ^ value) * 0xbf58'476d'1ce4'e5b9U;
            result_.trace ^= result_.trace >> 31;
        };
        mix(static_cast<std::uint64_t>(event.kind));
        mix(static_cast<std::uint64_t>(event.fiber));
        if (event.kind != Event::Kind::start) mix(event.value);
    }

    std::mt19937_64 random_;
    int calls_;
    SimulatedRanks ranks_;
    const Case* case_ = nullptr;
    AfterFault after_ = AfterFault::end;
    Harm harm_ = Harm::none;
    bool kills_later_ = false;  ///< the victim, while ranks go on
    bool failing_ = false;      ///< some rank has a fault
    std::uint64_t later_turn_ = 0;
    std::vector<bool> done_;                                ///< by rank
    std::vector<std::optional<std::vector<int>>> went_on_;  ///< by rank: with whom
    PlayedOp::Timing timing_;
    PlayedOp* op_ = nullptr;
    int victim_ = 0;
    int victim_call_ = 0;
    int called_ = 0;  ///< by the victim
    std::uint64_t harm_turn_ = 0;
    runtime::Turns::Clock::time_point next_stop_{};
    std::optional<runtime::Turns::Clock::time_point> harmed_at_;
    std::vector<int> ended_;
    std::vector<std::optional<runtime::Turns::Clock::time_point>> failed_at_;
    std::string message_;
    SimulationResult result_;
};

}  // namespace

SimulationResult simulate(std::uint64_t seed, int calls, bool harmless, AfterFault after) {
    return simulate(cases()[seed * 0x9e37'79b9'7f4a'7c15U % cases().size()], seed, calls, harmless, after);
}

SimulationResult simulate(const Case& played, std::uint64_t seed, int calls, bool harmless,
                          AfterFault after) {
    return Simulation(played, seed, calls, harmless, after).run();
}

}  // namespace syncopate::explore
