// A collective's plan by one way of synthesis: the tensor cut into chunks, the way of each of them, and the
// pushes that carry it out. synthesise() tries several ways and keeps the fastest plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/synthesise/match_chunks.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

inline constexpr std::int32_t kAlongTrees = 0;  ///< in place of a number of groups

struct SynthesisWay {
    std::int32_t groups = 1;  ///< all_reduce: of chunks, which go one after another; or kAlongTrees
    SecondCrossings second_crossings = SecondCrossings::sparing;
    /// Each chunk is cut in two, one half for the copy engines and one for the SMs, each searched for as if
    /// it had half of every link: what one of them leaves idle as it starts up, the other uses.
    bool both_engines = false;
    bool rounds = false;  ///< broadcast: in rounds (broadcast_rounds.hpp), not by search
    bool nodes = false;   ///< broadcast with both engines: over two nodes (broadcast_nodes.hpp)
};

/// By participant: its rank.
[[nodiscard]] std::vector<std::int32_t> participants(const Mesh& mesh, const SynthesiseOptions& options);

/// What synthesise() says of wrong arguments (ErrorClass::usage).
[[nodiscard]] Error synthesis_error(const SynthesiseOptions& options, const std::string& message);

/// `options` are valid, with at least one chunk. Fails as synthesise() does, or where the way does not fit
/// the topology.
[[nodiscard]] Result<Plan> synthesised_plan(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                                            const SynthesiseOptions& options, const SynthesisWay& way);

}  // namespace syncopate::plan
