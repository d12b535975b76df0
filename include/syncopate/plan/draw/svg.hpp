// A simulated run as a picture: ranks from top to bottom, time from left to right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {

struct SvgOptions {
    std::int32_t max_ranks = 64;  ///< ranks drawn, from rank 0; the others are counted
    std::size_t max_arrows =
        600;  ///< with more `after` edges than this none is drawn, and the picture says so
    std::size_t max_bars =
        400;  ///< of one row; a row with more is drawn as its share of time for each origin
};

/// An SVG document. Each lane of an engine of a rank is a row, each op a bar in it, from its start until its
/// chunk has arrived, in the colour of the rank that the chunk comes from (of a reduction: where the sum is
/// made). Arrows are `after`. Pointing at a bar tells op, chunk, bytes and times.
[[nodiscard]] std::string to_svg(const Plan& plan, const Topology& topology, const Simulation& simulation,
                                 const SvgOptions& options = {});

}  // namespace syncopate::plan
