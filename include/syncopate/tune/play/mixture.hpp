// A mixture of experts: how long a call is likely to take under a routing. Its stages follow one another:
//
//     count, layout   launches, and hand-overs between ranks                         fixed
//     dispatch        rows to the experts' ranks, over the link or within memory     exposed
//     up, down        tiles of the busiest rank, or reading its weights once         compute
//     back            beside `down`: exposed is what takes longer than that
//     combine         reading all rows that came back                                exposed
//
// Tensor parallel: tokens to all ranks, all experts' rows by a share of the columns, and parts of sums back.
#pragma once

#include <string_view>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

/// A routing as it is written: "random" (empty), "balanced" (as many rows an expert), "skewed" (half of all rows to one expert, the
/// others as many each), or what was measured: rows of each expert, "12,0,7,…", all T x topk x ranks of them. Fails (usage) for
/// other text, another number of experts, and other sums.
[[nodiscard]] Result<Routing> parse_routing(const Problem& problem, std::string_view text);

/// Of a complete strategy, in µs. A routing of another number of experts than the problem's is not looked at.
[[nodiscard]] Estimate estimate_mixture(const Problem& problem, const Machine& machine,
                                        const Strategy& strategy, const Routing& routing = {});

}  // namespace syncopate::tune
