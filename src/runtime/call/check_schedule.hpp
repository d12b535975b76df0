// Whether a schedule is one that the executors can run without checks of their own.
#pragma once

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

/// Everything that the executors of rank `rank` of `size` index by: ranks, signals, tensors, regions, sums.
/// Errors name the rank and the op.
Status check_schedule(const fuse::Schedule& schedule, int rank, int size);

}  // namespace syncopate::runtime
