// Search: the fastest of a problem's strategies on this machine, found by measuring within a time budget.
//
//     intake    the best by the estimate, a few at a time: made ready, checked, and measured a few rounds
//     halving   the better half goes on with twice the rounds, until few are left (successive halving,
//               Jamieson and Talwalkar 2016)
//     final     these and the baselines anew, in many rounds; only a contender that is faster than both
//               baselines beyond the noise of its rounds wins, else the faster baseline does
//
//     round     default  unfused  c1  c2  c3 │ c3  c2  c1  unfused  default │ default  unfused …
//
// Within a round each candidate is measured once, and what counts is its ratio to the reference in the same
// round: so a clock that drifts from round to round drifts for all alike, and every other round runs
// backwards. The baselines (the default strategy and the unfused pair) are in every round, so tuning makes
// nothing slower, but for this:
//
// An unfused winner that takes the host longer than the fastest fused one (`eager`) wins only where it gains more as
// a CUDA graph than it loses by calls of the host: nobody knows which ones are to come.
//
// All ranks run the same search in lockstep. Whatever a rank finds by itself (its times, its clock, what
// failed) goes through `agree`, which gives all ranks the same answer; so they decide alike.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/store/results.hpp"

namespace syncopate::tune {

/// A strategy that takes part.
struct Contender {
    std::string name;        ///< for people
    std::string strategy;    ///< JSON; two contenders differ in it
    double estimate_us = 0;  ///< 0: unknown
    bool baseline = false;   ///< a finalist whatever it takes; the first one is the reference
};

/// What a search needs of the one who measures. All ranks call these in the same order, with the same
/// arguments.
struct Measuring {
    /// Compiles the contender and checks its results. "" or why it cannot run on this rank.
    std::function<std::string(std::size_t contender)> prepare;
    /// Measures one call of each, one after another, in this order: µs on this rank; infinity for what
    /// failed.
    std::function<std::vector<double>(std::span<const std::size_t> contenders)> measure;
    /// The same of calls by the host, one behind another, with the time that it takes. May be empty: nobody asks.
    std::function<std::vector<double>(std::span<const std::size_t> contenders)> eager;
    /// Frees what `prepare` made.
    std::function<void(std::size_t contender)> release;
    /// The maximum over ranks of each value, the same on all of them.
    std::function<Result<std::vector<double>>(const std::vector<double>& values)> agree;
    /// Seconds since the search began, on this rank.
    std::function<double()> seconds;
    /// What the search has found of a contender so far. May be empty.
    std::function<void(const Trial& trial)> record;
    /// How far it is, 0 to 1, and what it does. May be empty.
    std::function<void(double share, const std::string& what)> progress;
};

struct SearchOptions {
    double budget = 60;           ///< seconds; a round that has begun is ended
    std::size_t batch = 4;        ///< contenders that are made ready at a time
    std::ptrdiff_t unfused = -1;  ///< the place of the unfused pair among them
};

struct SearchResult {
    std::size_t winner = 0;           ///< a contender's index
    double us = 0;                    ///< its median in the final
    std::vector<double> baseline_us;  ///< of each baseline, in their order, in the final; 0: it does not run
    std::vector<Trial> trials;        ///< of each contender, in their order; rounds 0: not looked at
    bool in_time = true;              ///< whether all that should be looked at was
    std::string instead{};            ///< why the unfused pair is not the winner; "" where its times say so
};

/// `earlier`: trials of a search that was interrupted. What it refused is not tried again, and what it
/// measured takes no part in the intake. Fails if no baseline runs here, or `agree` fails.
[[nodiscard]] Result<SearchResult> find_fastest(std::span<const Contender> contenders,
                                                const SearchOptions& options, const Measuring& measuring,
                                                std::span<const Trial> earlier = {});

/// The median of measured values; 0 of none. Infinity sorts last.
[[nodiscard]] double median(std::vector<double> values);

/// A line that shows how far something is: "[########        ]  50 %  what".
[[nodiscard]] std::string progress_line(double share, const std::string& what, std::size_t width = 80);

}  // namespace syncopate::tune
