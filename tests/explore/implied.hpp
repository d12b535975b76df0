// What keeps steps apart where a wait has been taken away: computed from the model alone, as paths from step to step; the
// explorer knows nothing of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "explore/model.hpp"

namespace syncopate::explore {

using AgentStep = std::pair<std::uint32_t, std::uint32_t>;  ///< agent and step

/// Of waits that are left out in `model`: the words by whose waits the steps are still in order that touch the same
/// memory, one before what was awaited and one after the wait. "" if some are not.
[[nodiscard]] std::string implied_by(const Model& model, const std::vector<AgentStep>& left_out);

/// Two steps that touch the same memory, one of them writing, without an order between them; "" if there are none.
[[nodiscard]] std::string race(const Model& model);

}  // namespace syncopate::explore
