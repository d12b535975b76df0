// An error about an op of a plan.
#pragma once

#include <string>
#include <utility>

#include "syncopate/plan/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

[[nodiscard]] inline Error error_at(plan::OpRef ref, std::string message) {
    Error error{std::move(message)};
    error.location.rank = ref.rank;
    error.location.op = ref.index;
    return error;
}

}  // namespace syncopate::fuse
