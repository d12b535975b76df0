// Launches: a user's kernels with what they are called with, and a plan: what is fused, before it is. Schema
// `syncopate.launches/1`: of a schedule file (artifact.hpp) "stages", "num_sms", "device" and "plan".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

struct Launches {
    std::vector<KernelLaunch> stages;  ///< at least one
    fuse::Device device = fuse::Device::host;
    plan::Plan plan;
};

[[nodiscard]] std::string to_json(const Launches& launches);

/// Strict. `file_name` is for messages.
[[nodiscard]] Result<Launches> launches_from_json(std::string_view text, const std::string& file_name = {});

}  // namespace syncopate::emit
