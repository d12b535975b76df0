// Time that a test may hold against a bound: a busy machine does not lengthen it, as it does the time of a
// clock.
#pragma once

#include <ctime>

namespace syncopate::test {

/// CPU seconds that this process has used so far, of all its threads.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace syncopate::test
