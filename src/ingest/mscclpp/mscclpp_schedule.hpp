// From a resolved MSCCL++ plan to steps, the edges that signals, barriers, semaphores and packets make, and
// moves.
#pragma once

#include <string>

#include "ingest/mscclpp/mscclpp_plan.hpp"
#include "ingest/steps/buffers.hpp"
#include "ingest/steps/schedule.hpp"

namespace syncopate::ingest {

/// Every op is a step of its threadblock. Fails, at the op, for chunks outside their buffer, sources and
/// destinations that do not fit each other, and waits that nothing ends. May add to `warnings`.
[[nodiscard]] Result<Schedule> mscclpp_schedule(const MscclppPlan& plan, const Buffers& buffers,
                                                const std::string& file_name,
                                                std::vector<std::string>& warnings);

}  // namespace syncopate::ingest
