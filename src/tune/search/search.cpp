#include "syncopate/tune/search/search.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace syncopate::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLater = 0.02;        // of its estimate: each contender that equals the one before it
constexpr double kIntakeShare = 0.6;   // of the budget, after which nothing new is made ready
constexpr double kHalvingShare = 0.8;  // after which the final begins
constexpr double kSlack = 1.6;         // times the best estimate: contenders beyond it are left out
constexpr std::size_t kMost = 64;      // contenders that are looked at
constexpr std::size_t kKept = 8;       // that stay ready after the intake
constexpr std::size_t kFinalists = 3;  // besides the baselines
constexpr double kNoise = 2.0;         // standard errors by which a winner has to be faster
constexpr std::int32_t kFewestRounds = 3;
constexpr std::int32_t kFinalRounds = 15;
constexpr std::int32_t kEagerRounds = 5;
constexpr double kEagerGain = 1.03;      // by calls of the host, from which on a difference is one
constexpr double kLeastError = 0.002;    // of a ratio: what rounds that happen to agree do not tell
constexpr double kMadToSigma = 1.4826;   // the median of absolute deviations, of a normal distribution
constexpr double kMedianError = 1.2533;  // the standard error of a median over that of a mean

/// Ratios of one contender to the reference, a round each.
struct Ratios {
    double middle = kInfinity;
    double error = 0;  ///< standard error of `middle`
};

Ratios ratios_of(const std::vector<double>& times, const std::vector<double>& reference) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < times.size(); ++round) {
        if (std::isfinite(reference[round])) ratios.push_back(times[round] / reference[round]);
    }
    if (ratios.empty()) return {};
    Ratios found{.middle = median(ratios)};
    if (!std::isfinite(found.middle)) return found;
    std::vector<double> away;
    for (const double ratio : ratios) away.push_back(std::abs(ratio - found.middle));
    found.error = kMedianError * kMadToSigma * median(away) / std::sqrt(static_cast<double>(ratios.size()));
    found.error = std::max(found.error, kLeastError);
    return found;
}

class Search {
public:
    Search(std::span<const Contender> contenders, const SearchOptions& options, const Measuring& measuring,
           std::span<const Trial> earlier)
        : contenders_(contenders),
          options_(options),
          measuring_(measuring),
          ready_(contenders.size(), false) {
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            Trial trial{.name = contenders[i].name,
                        .strategy = contenders[i].strategy,
                        .estimate_us = contenders[i].estimate_us};
            for (const Trial& old : earlier) {
                if (old.strategy == trial.strategy && (old.rounds > 0 || !old.refused.empty())) trial = old;
            }
            result_.trials.push_back(std::move(trial));
        }
    }

    Result<SearchResult> run() {
        Status done = baselines();
        if (done) done = intake();
        if (done) done = halving();
        if (done) done = final();
        for (std::size_t i = 0; i < contenders_.size(); ++i) release(i);
        if (!done) return done.error();
        return std::move(result_);
    }

private:
    using Times = std::vector<std::vector<double>>;  // by place in the list of who is measured, then by round

    Status baselines() {
        std::string why;
        for (std::size_t i = 0; i < contenders_.size(); ++i) {
            if (!contenders_[i].baseline) continue;
            result_.trials[i].refused.clear();  // a baseline is tried again: something may have been mended
            say(0, "making " + contenders_[i].name);
            const Status done = prepare(i);
            if (!done) return done.error();
            all_baselines_.push_back(i);
            if (result_.trials[i].refused.empty()) {
                baselines_.push_back(i);
            } else if (why.empty()) {
                why = contenders_[i].name + ": " + result_.trials[i].refused;
            }
        }
        if (!baselines_.empty()) return Done{};
        return machine_error("neither the default strategy nor the unfused pair runs here: " +
                             (why.empty() ? "there is none" : why));
    }

    /// Contenders, best by the estimate first. Those that it does not tell apart (orders of tiles, say) come
    /// a little later each, so that a short search sees strategies that differ.
    [[nodiscard]] std::vector<std::size_t> by_estimate() const {
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < contenders_.size(); ++i) {
            if (!contenders_[i].baseline) order.push_back(i);
        }
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return contenders_[a].estimate_us < contenders_[b].estimate_us;
        });
        std::vector<double> place(contenders_.size());
        std::size_t equals = 0;
        for (std::size_t k = 0; k < order.size(); ++k) {
            const double us = contenders_[order[k]].estimate_us;
            equals = k > 0 && us == contenders_[order[k - 1]].estimate_us ? equals + 1 : 0;
            place[order[k]] = us * (1 + kLater * static_cast<double>(equals));
        }
        std::ranges::stable_sort(order, {}, [&](std::size_t i) { return place[i]; });
        if (order.size() > kMost) order.resize(kMost);
        return order;
    }

    /// Whether the estimate is not far beyond the best one of what runs here, as far as that is known.
    [[nodiscard]] bool is_likely(std::size_t contender) const {
        double best = kInfinity;
        for (std::size_t i = 0; i < contenders_.size(); ++i) {
            const double us = contenders_[i].estimate_us;
            if (us > 0 && result_.trials[i].refused.empty()) best = std::min(best, us);
        }
        return contenders_[contender].estimate_us <= kSlack * best;
    }

    Status intake() {
        std::vector<std::size_t> fresh;
        for (const std::size_t i : by_estimate()) {
            const Trial& trial = result_.trials[i];
            if (!trial.refused.empty()) continue;
            if (trial.rounds > 0) {
                alive_.push_back(i);  // of an earlier search
            } else {
                fresh.push_back(i);
            }
        }
        keep_best(kKept);
        double longest = 0;  // that a batch took, seconds
        Result<double> now = elapsed();
        for (std::size_t begin = 0; begin < fresh.size() && now && is_likely(fresh[begin]);
             begin += options_.batch) {
            if (*now + longest > kIntakeShare * options_.budget) {
                result_.in_time = false;
                break;
            }
            const std::size_t end = std::min(fresh.size(), begin + options_.batch);
            std::vector<std::size_t> batch;
            for (std::size_t at = begin; at < end && is_likely(fresh[at]); ++at) {
                const double share = static_cast<double>(at) / static_cast<double>(fresh.size());
                say(kIntakeShare * share, "making " + contenders_[fresh[at]].name);
                SYNCOPATE_TRY(prepare(fresh[at]));
                if (ready_[fresh[at]]) batch.push_back(fresh[at]);
            }
            SYNCOPATE_TRY(measure(batch, kFewestRounds));
            alive_.insert(alive_.end(), batch.begin(), batch.end());
            keep_best(kKept);
            const double before = *now;
            now = elapsed();
            if (now) longest = std::max(longest, *now - before);
        }
        return now ? Status(Done{}) : Status(now.error());
    }

    Status halving() {
        std::int32_t rounds = kFewestRounds;
        while (alive_.size() > kFinalists) {
            SYNCOPATE_TAKE(const double now, elapsed());
            if (now > kHalvingShare * options_.budget) break;
            rounds = affordable(2 * rounds, alive_.size(), kHalvingShare * options_.budget - now);
            say(kIntakeShare + 0.05, "measuring the best " + std::to_string(alive_.size()));
            const Status done = measure(alive_, rounds);
            if (!done) return done.error();
            keep_best(std::max(kFinalists, (alive_.size() + 1) / 2));
        }
        keep_best(kFinalists);
        return Done{};
    }

    Status final() {
        say(kHalvingShare, "measuring the finalists again");
        SYNCOPATE_TAKE(const double now, elapsed());
        const std::int32_t rounds = affordable(kFinalRounds, alive_.size(), options_.budget - now);
        SYNCOPATE_TAKE(const Times measured, rounds_of(alive_, rounds));
        const std::vector<std::size_t>& all = measured_;
        std::vector<Ratios> ratios;
        for (const std::vector<double>& times : measured)
            ratios.push_back(ratios_of(times, reference(measured)));
        // The faster baseline, then the contender that is faster than it beyond the noise.
        std::size_t best = 0;
        for (std::size_t at = 1; at < baselines_.size(); ++at) {
            if (ratios[at].middle < ratios[best].middle) best = at;
        }
        const std::vector<double> against = measured[best];
        std::size_t winner = best;
        double lead = 1;
        for (std::size_t at = baselines_.size(); at < all.size(); ++at) {
            const Ratios own = ratios_of(measured[at], against);
            if (own.middle + kNoise * own.error < 1 && own.middle < lead) {
                lead = own.middle;
                winner = at;
            }
        }
        for (std::size_t at = 0; at < all.size(); ++at) note(all[at], measured[at], ratios[at]);
        SYNCOPATE_TAKE(winner, safe(winner, measured));
        result_.winner = all[winner];
        result_.us = median(measured[winner]);
        for (const std::size_t i : all_baselines_) {
            const auto at = std::find(baselines_.begin(), baselines_.end(), i) - baselines_.begin();
            const auto place = static_cast<std::size_t>(at);
            result_.baseline_us.push_back(place < baselines_.size() ? median(measured[place]) : 0);
        }
        if (!std::isfinite(result_.us)) {
            return machine_error("neither the default strategy nor the unfused pair could be measured");
        }
        say(1, "done");
        return Done{};
    }

    /// The winner, or in the place of an unfused one the fastest fused one, if that gains more by calls of the host than it loses as a
    /// CUDA graph. Both by their places in measured_.
    Result<std::size_t> safe(std::size_t winner, const Times& times) {
        if (!measuring_.eager || static_cast<std::ptrdiff_t>(measured_[winner]) != options_.unfused)
            return winner;
        std::size_t fused = winner;
        for (std::size_t at = 0; at < measured_.size(); ++at) {
            const double us = median(times[at]);
            if (at != winner && std::isfinite(us) && (fused == winner || us < median(times[fused])))
                fused = at;
        }
        if (fused == winner) return winner;
        const std::vector<std::size_t> both{measured_[winner], measured_[fused]};
        std::vector<double> mine;
        for (std::int32_t round = 0; round < kEagerRounds; ++round) {
            std::vector<double> each = measuring_.eager(both);
            each.resize(both.size(), kInfinity);
            mine.insert(mine.end(), each.begin(), each.end());
        }
        SYNCOPATE_TAKE(const std::vector<double> all, measuring_.agree(mine));
        std::vector<double> of_winner, of_fused;
        for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
            of_winner.push_back(all[i]);
            of_fused.push_back(all[i + 1]);
        }
        const double graph = median(times[winner]), graph_fused = median(times[fused]);
        const double host = median(of_winner), host_fused = median(of_fused);
        if (!std::isfinite(host_fused) || host / host_fused <= std::max(kEagerGain, graph_fused / graph))
            return winner;
        result_.instead = fmt::format(
            "unfused takes {:.1f} us as a CUDA graph and {:.1f} by calls of the host, {} {:.1f} and {:.1f}",
            graph, host, contenders_[measured_[fused]].name, graph_fused, host_fused);
        return fused;
    }

    /// Makes a contender ready on all ranks, or says why not in its trial.
    Status prepare(std::size_t i) {
        if (ready_[i]) return Done{};
        const std::string why = measuring_.prepare(i);
        SYNCOPATE_TAKE(const std::vector<double> refused, measuring_.agree({why.empty() ? 0.0 : 1.0}));
        ready_[i] = true;
        if (refused.front() == 0) return Done{};
        release(i);
        result_.trials[i].refused = why.empty() ? "another rank cannot run it" : why;
        if (measuring_.record) measuring_.record(result_.trials[i]);
        return Done{};
    }

    void release(std::size_t i) {
        if (ready_[i]) measuring_.release(i);
        ready_[i] = false;
    }

    /// Measures these and the baselines, and notes what was found of these.
    Status measure(const std::vector<std::size_t>& who, std::int32_t rounds) {
        SYNCOPATE_TAKE(const Times times, rounds_of(who, rounds));
        for (std::size_t at = 0; at < measured_.size(); ++at) {
            note(measured_[at], times[at], ratios_of(times[at], reference(times)));
        }
        return Done{};
    }

    /// So many rounds of the baselines and `who` (afterwards in measured_, in that order); what was released
    /// is made ready again, and what no longer can be is left out. Times are maxima over ranks.
    Result<Times> rounds_of(const std::vector<std::size_t>& who, std::int32_t rounds) {
        measured_ = baselines_;
        for (const std::size_t i : who) {
            SYNCOPATE_TRY(prepare(i));
            if (ready_[i]) measured_.push_back(i);
        }
        SYNCOPATE_TAKE(const double begin, elapsed());
        std::vector<double> mine;
        std::vector<std::size_t> order = measured_;
        for (std::int32_t round = 0; round < rounds; ++round) {
            std::vector<double> times = measuring_.measure(order);
            times.resize(order.size(), kInfinity);
            if (round % 2 == 1) std::reverse(times.begin(), times.end());
            for (double& us : times) us = std::isfinite(us) && us > 0 ? us : kInfinity;
            mine.insert(mine.end(), times.begin(), times.end());
            std::reverse(order.begin(), order.end());
        }
        SYNCOPATE_TAKE(const std::vector<double> all, measuring_.agree(mine));
        SYNCOPATE_TAKE(const double end, elapsed());
        seconds_a_call_ = (end - begin) / (static_cast<double>(measured_.size()) * rounds);
        Times times(measured_.size());
        for (std::size_t at = 0; at < all.size(); ++at) times[at % measured_.size()].push_back(all[at]);
        return times;
    }

    /// Of measured times: those of the first baseline that did not fail.
    [[nodiscard]] const std::vector<double>& reference(const Times& times) const {
        for (std::size_t at = 0; at < baselines_.size(); ++at) {
            if (std::isfinite(median(times[at]))) return times[at];
        }
        return times.front();
    }

    /// `rounds` of the baselines and so many contenders, or as many as these seconds are likely to be enough
    /// for.
    [[nodiscard]] std::int32_t affordable(std::int32_t rounds, std::size_t contenders, double seconds) const {
        const double one = seconds_a_call_ * static_cast<double>(contenders + baselines_.size());
        if (one <= 0) return rounds;
        return static_cast<std::int32_t>(
            std::clamp<double>(std::floor(seconds / one), std::min(rounds, kFewestRounds), rounds));
    }

    void note(std::size_t i, const std::vector<double>& times, const Ratios& ratios) {
        Trial& trial = result_.trials[i];
        if (std::isfinite(ratios.middle)) {
            trial.us = median(times);
            trial.ratio = ratios.middle;
            trial.rounds += static_cast<std::int32_t>(times.size());
        } else {
            trial.refused = "it failed while it was measured";
        }
        if (measuring_.record) measuring_.record(trial);
    }

    /// Leaves the so many fastest alive, by what was last measured.
    void keep_best(std::size_t count) {
        const auto place = [&](std::size_t i) {
            return result_.trials[i].refused.empty() ? result_.trials[i].ratio : kInfinity;
        };
        std::stable_sort(alive_.begin(), alive_.end(),
                         [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
        while (!alive_.empty() && (alive_.size() > count || !std::isfinite(place(alive_.back())))) {
            release(alive_.back());
            alive_.pop_back();
        }
    }

    /// Seconds since the search began, the same on all ranks.
    Result<double> elapsed() {
        SYNCOPATE_TAKE(const std::vector<double> seconds, measuring_.agree({measuring_.seconds()}));
        return seconds.front();
    }

    void say(double share, const std::string& what) const {
        if (measuring_.progress) measuring_.progress(share, what);
    }

    std::span<const Contender> contenders_;
    const SearchOptions& options_;
    const Measuring& measuring_;
    SearchResult result_;
    std::vector<bool> ready_;
    std::vector<std::size_t> all_baselines_;
    std::vector<std::size_t> baselines_;  // those that run
    std::vector<std::size_t> alive_;      // contenders that are still in it
    std::vector<std::size_t> measured_;   // of the last rounds
    double seconds_a_call_ = 0;           // in them, with all that goes with measuring it
};

}  // namespace

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string progress_line(double share, const std::string& what, std::size_t width) {
    constexpr std::size_t kBar = 24;
    share = std::clamp(share, 0.0, 1.0);
    const auto full = static_cast<std::size_t>(std::lround(share * static_cast<double>(kBar)));
    const std::string percent = std::to_string(std::lround(share * 100));
    std::string line = "[" + std::string(full, '#') + std::string(kBar - full, ' ') + "] " +
                       std::string(3 - std::min<std::size_t>(3, percent.size()), ' ') + percent + " %  " +
                       what;
    if (line.size() > width) line.resize(width);
    return line;
}

Result<SearchResult> find_fastest(std::span<const Contender> contenders, const SearchOptions& options,
                                  const Measuring& measuring, std::span<const Trial> earlier) {
    return Search(contenders, options, measuring, earlier).run();
}

}  // namespace syncopate::tune
