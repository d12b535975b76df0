// A simulated run as a picture: ranks from top to bottom, time from left to right.
#pragma once

#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {

/// An SVG document. Each lane of an engine of a rank is a row, each op a bar in it, from its start until its
/// chunk has arrived, in the colour of the rank that the chunk comes from (of a reduction: where the sum is
/// made). Arrows are `after`. Pointing at a bar tells op, chunk, bytes and times. Large plans are drawn in
/// part: the first 64 ranks, a row of over 400 ops as its share of time for each origin, no arrows beyond
/// 600; the picture says so.
[[nodiscard]] std::string to_svg(const Plan& plan, const Topology& topology, const Simulation& simulation);

}  // namespace syncopate::plan
