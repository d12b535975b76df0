// Call fit: figures that only whole calls show (what a fused call takes more than its parts, what copies and
// sums take beside a product), from the times of operators' calls.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// A call that was timed between two events of the device, and the figure that its time gives.
struct TimedCall {
    std::string figure;  ///< a name in machine_figures() that is no table
    Problem problem;
    Strategy strategy;  ///< complete, one that the runtime can carry out
    double us = 0;
};

struct CallFit {
    double value = 0;
    std::string source;
};

/// By name of the figures. Each call in turn sets its figure such that the estimate takes the call's time,
/// with what the calls before have set. A figure stays between a quarter of what `start` has and four times
/// that. Where no such figure gives the time, or the estimate does not change with it, the source says by how
/// much the nearest one misses it.
[[nodiscard]] std::map<std::string, CallFit, std::less<>> fit_calls(const std::vector<TimedCall>& timed,
                                                                    Machine start);

}  // namespace syncopate::tune
