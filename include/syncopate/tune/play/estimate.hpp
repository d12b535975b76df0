// Estimate: how long a strategy is likely to take for a problem on a machine, and of what that consists. One
// model for all: the plan, simulated on the machine's links (plan/simulate), and the product's tiles, played
// on its multiprocessors, each waiting for the chunks that it reads, or letting those go that it completes.
//
//     call │ launch │ tiles, and transfers beside them           │ what is left when the tiles have ended │
//          │  fixed │ compute                                    │ exposed                                │
//
// The model orders strategies; a search measures the best of them. docs/tuning.md says how good it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// In µs. `us` is about fixed + compute + exposed, of a call whose caller gives a tensor of its own for the result.
struct Estimate {
    double us = 0;           ///< a replayed call, between two events of the device
    double compute = 0;      ///< the products' tiles as if all that they need were there
    double communicate = 0;  ///< the transfers and sums as if nothing else ran
    double exposed = 0;      ///< of those, what the product does not hide
    double fixed = 0;        ///< launches, signals, and the ends of a call
    double copied = 0;  ///< of exposed: a caller that takes the result where it was made has so much less
};

/// By expert, rows that all ranks send it, as many of each rank's. Empty: a random one, by its averages.
using Routing = std::vector<std::int64_t>;

/// Of a complete strategy (choose.hpp) that the runtime can carry out (strategy_objection). A problem without
/// products is estimated at 0.
[[nodiscard]] Estimate estimate(const Problem& problem, const Machine& machine, const Strategy& strategy);

/// In place of a time: the machine's figures cannot tell it. A rate is 0, or links lead nowhere.
inline constexpr double kUnknownUs = 1e12;

/// Why a problem is not estimated: the machine knows no network between nodes, or the ranks of one are too many for
/// simulating all of their transfers for each strategy. "" where it is.
[[nodiscard]] std::string estimate_objection(const Problem& problem, const Machine& machine);

/// A strategy among others for one problem.
struct Candidate {
    std::string name;  ///< name_of(strategy)
    Strategy strategy;
    Estimate estimate;
    std::string pruned;  ///< why it is not to be tried; "" where it is

    /// Pruned where it cannot be estimated.
    void take(const Result<Estimate>& made);
};
/// One that is not estimated yet.
[[nodiscard]] Candidate candidate_of(Strategy strategy);
/// Those that are not pruned first, the quickest first of all; equals stay in their order.
void best_first(std::vector<Candidate>& candidates);

/// All strategies that are legal for the problem, best first, then those that are pruned. One of them is
/// unfused, and one is the default strategy, completed. `routing`: of a mixture of experts. Of several nodes that the
/// machine knows no network between none is estimated, and the order is that of candidates(); what else
/// estimate_objection names takes minutes.
[[nodiscard]] std::vector<Candidate> rank_candidates(const Problem& problem, const Machine& machine,
                                                     const Routing& routing = {});

}  // namespace syncopate::tune
