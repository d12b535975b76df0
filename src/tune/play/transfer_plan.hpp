// What plans of transfers before and after a product have in common: made for the simulation, and read back.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"

namespace syncopate::tune {

/// The chunk engine's: an op begins before the one before it has ended.
inline constexpr std::int32_t kEngineLanes = 2;

[[nodiscard]] plan::Mesh mesh_of(std::int32_t ranks);
/// All that is open and not local goes by `backend`.
void send_all_by(plan::Plan& plan, plan::Backend backend);
/// One for each op, by rank.
[[nodiscard]] std::vector<std::vector<plan::OpTiming>> timings_for(const plan::Plan& plan);
/// µs at which the last op ends.
[[nodiscard]] double latest(const plan::Simulation& simulation);

}  // namespace syncopate::tune
