// Kinds of attention (plan/templates/attention.hpp) that a problem allows, each a strategy.
#pragma once

#include <vector>

#include "syncopate/tune/play/attention.hpp"

namespace syncopate::tune {

/// All kinds, those that are possible first, the best of them by the estimate first of all; among equals the first
/// stays first. A strategy is a kind and its `inner`, or unfused.
[[nodiscard]] std::vector<Candidate> rank_attention(const AttentionProblem& problem, const Machine& machine);

/// Of one of them. A strategy without a kind is of the problem's, or an all-gather.
[[nodiscard]] Estimate estimate_attention(const AttentionProblem& problem, const Machine& machine,
                                          const Strategy& strategy);

}  // namespace syncopate::tune
