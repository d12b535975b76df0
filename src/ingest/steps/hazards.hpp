// The order of moves that touch the same memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ingest/steps/schedule.hpp"
#include "ingest/steps/step_order.hpp"

namespace syncopate::ingest {

/// Pairs (earlier move, later move), by number: for any two moves of which one writes what the other touches,
/// and which the schedule orders, there is a chain of pairs from one to the other. Two reductions into the
/// same rows need no order. The pairs are sorted, each once. Fails if the search for orders takes too long,
/// or if moves overlap in more than kMaxTouches places. The graph must have no cycle.
[[nodiscard]] Result<std::vector<std::pair<std::int32_t, std::int32_t>>> hazards(const Schedule& schedule,
                                                                                 StepOrder& order);

inline constexpr std::int64_t kMaxTouches = 200'000'000;
inline constexpr std::int64_t kMaxPairs = 16'000'000;

}  // namespace syncopate::ingest
