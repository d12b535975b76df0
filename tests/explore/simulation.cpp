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
constexpr const char* kHarms[] = {"no harm", "short stops",           "a long stop",
                                  "a kill",  "a kernel not launched", "a call given up"};

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
    Simulation(const Case& played, std::uint64_t seed, int calls, bool harmless)
        : random_(seed), calls_(calls), ranks_({.seed = random_()}), case_(&played) {
        harm_ = static_cast<Harm>(random_() % (harmless ? 2 : kNumHarms));
        const std::int64_t delays[] = {0, 20, 2000};
        timing_ = {.max_delay_us = delays[random_() % 3], .seed = random_(), .deadline_ms = kDeadline};
    }

    SimulationResult run() {
        result_.story = fmt::format("{}, {}, delays up to {} us", case_->name,
                                    kHarms[static_cast<int>(harm_)], timing_.max_delay_us);
        Result<std::unique_ptr<PlayedOp>> made = PlayedOp::make(*case_, timing_);
        if (!made) {
            result_.wrong = made.error().to_string();
            return result_;
        }
        op_ = made->get();
        const auto size = static_cast<std::size_t>(op_->size());
        ended_.resize(size, 0);
        failed_at_.resize(size);
        victim_ = static_cast<int>(random_() % size);
        victim_call_ = 1 + static_cast<int>(random_() % static_cast<std::uint64_t>(calls_));
        harm_turn_ = random_() % 400;
        ranks_.observer = [this](const Event& event) { trace(event); };
        ranks_.each_turn = [this] { befall(); };
        for (int rank = 0; rank < op_->size(); ++rank) {
            ranks_.add_rank([this, rank] { make_calls(rank); });
        }
        if (!ranks_.run()) result_.wrong = "nobody can go on";
        judge();
        if (harm_ == Harm::killed) {
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
        for (int call = 1; call <= calls_; ++call) {
            if (rank == victim_) called_ = call;
            const bool harmed = rank == victim_ && call == victim_call_;
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
                return;
            }
            ended_[index] = call;
            ++result_.calls;
        }
    }
    [[nodiscard]] bool is_buried() const { return harmed_at_ && harm_ == Harm::killed; }

    /// At each turn.
    void befall() {
        if (harm_ == Harm::stopped && ranks_.now() >= next_stop_ && random_() % 256 == 0) {
            const std::chrono::milliseconds time(random_() % (kDeadline / 2));
            ranks_.stop(victim_, time);
            next_stop_ =
                ranks_.now() + time + std::chrono::milliseconds(kDeadline);  // so that no wait sees two
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

    void judge() {
        if (!op_->wrong().empty()) fail(op_->wrong());
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
    Harm harm_ = Harm::none;
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

SimulationResult simulate(std::uint64_t seed, int calls, bool harmless) {
    return simulate(cases()[seed * 0x9e37'79b9'7f4a'7c15U % cases().size()], seed, calls, harmless);
}

SimulationResult simulate(const Case& played, std::uint64_t seed, int calls, bool harmless) {
    return Simulation(played, seed, calls, harmless).run();
}

}  // namespace syncopate::explore
