// An executor for tests, independent of check(): it runs a plan's ops on small arrays, in a random order that
// `after` allows, and compares with the mathematical result. And a search for races, pair by pair.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan::test {

/// The value of an element, or a rank's contribution to it (rank >= 0). `element`: row-major index in the
/// tensor.
using Fill = std::function<float(std::int32_t tensor, std::int64_t element, std::int32_t rank)>;

/// Small integers, all different for different elements nearby; sums of 64 of them are exact.
[[nodiscard]] float small_integer(std::int32_t tensor, std::int64_t element, std::int32_t rank);
/// Numbers of very different magnitudes: sums in different orders differ.
[[nodiscard]] float rough_number(std::int32_t tensor, std::int64_t element, std::int32_t rank);

/// Memory of all ranks: one row-major array per rank and tensor.
using Memory = std::vector<std::vector<std::vector<float>>>;

/// Runs all ops and returns the memory at the end; what nothing was written to holds NaN. Each op reads its
/// source when it starts and writes when it ends, and others come between at random. Collectives are carried
/// out as plan/check/check.hpp describes them. Ops that never become ready are left out.
[[nodiscard]] Memory execute(const Plan& plan, const Fill& fill, std::uint32_t seed);

/// What is wrong with `memory` where `final` asks for something; "" if nothing is. Reductions are sums in the
/// order of their ranks.
[[nodiscard]] std::string compare(const Plan& plan, const Memory& memory, const Fill& fill);

/// "0:1 and 2:0 …" for the first pair of ops without an order between them of which one writes what the other
/// touches, unless both are reductions of one kind; "" if there is none. Quadratic: for small plans.
[[nodiscard]] std::string race(const Plan& plan);

}  // namespace syncopate::plan::test
