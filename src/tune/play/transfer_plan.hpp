// What plans of transfers before and after a product have in common: made for the simulation, and read back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// The chunk engine's: an op begins before the one before it has ended.
inline constexpr std::int32_t kEngineLanes = 2;

/// What the operator `op` sends around a product of the problem, one of its own or a block's. Scales are left
/// out: they are few bytes.
[[nodiscard]] Result<plan::Plan> plan_of(const Problem& problem, std::string op, const ProductShape& shape,
                                         const Strategy& strategy);
/// All that is open and not local goes by `backend`.
void send_all_by(plan::Plan& plan, plan::Backend backend);
/// One for each op, by rank.
[[nodiscard]] std::vector<std::vector<plan::OpTiming>> timings_for(const plan::Plan& plan);
/// µs at which the last op ends.
[[nodiscard]] double latest(const plan::Simulation& simulation);

}  // namespace syncopate::tune
