// Simulation of a plan on a topology: when each op starts and ends, and what the machine's links carry.
//
// Discrete events. A rank's ops wait in line, one line for each engine (copy engine, SMs, network, library;
// one for each peer where the engine says so), in the order of its list; where that order would block for
// ever, in one topological order of `after`. The first in line starts when a lane is free and all that it is
// `after` has ended:
//
//     | start-up, wait | bytes, at the rate that links and engine leave them | post |  route's latency  |
//     ├──────────────────────── the lane is taken ──────────────────────────────────┤
//     start                                                                      end: the chunk has arrived
//
// Sharing. Transfers on a link at one time share it equally (what one of them cannot use is not given to
// others), and while there are several the link carries `contended` times its bandwidth in all. That is what
// H200s do: two senders to one receiver together are slower than one (docs/topologies.md has the
// measurements). A link serves at most kMaxSharers at once, more wait in line; this bounds the work of an
// event.
//
// Which engine: a transfer between nodes has `network`, if the topology has one; else one that reduces, or
// whose backend is made of SM copies (tma_*, ldst_*, nccl), has `sm`; all others the copy engine. A
// collective starts when all participants have come to it and is executed by a library: library_us, then the
// bytes of the busiest participant or cut at library_gbps or the bandwidth of its links, whichever is less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

inline constexpr std::size_t kMaxSharers = 16;

/// The line in which an op waits on its rank.
enum class EngineKind : std::uint8_t { copy_engine, sm, network, library };
inline constexpr std::size_t kNumEngineKinds = 4;
[[nodiscard]] std::string_view name_of(EngineKind engine);

struct OpTime {
    EngineKind engine = EngineKind::copy_engine;
    std::int32_t lane = 0;
    double start_us = 0;  ///< when it takes its lane
    double end_us = 0;    ///< when its chunk has arrived at the destination and others may see it
};

/// What no schedule of a plan with these `initial`, `produced` and `final` can go below on this topology.
struct Bound {
    double us = 0;
    std::string reason;  ///< "bytes into rank 3: 117 MB at 396 GB/s", "start-up and the longest way"
};

struct LinkLoad {
    std::int64_t bytes = 0;
    double utilisation = 0;  ///< share of what it could carry in the makespan
};

struct Simulation {
    double makespan_us = 0;
    Bound bound;
    std::vector<std::vector<OpTime>> ops;  ///< by rank and index
    std::vector<LinkLoad> links;           ///< by index in Topology::links
    std::int32_t busiest_link = -1;        ///< -1: no link carries anything
};

/// What is known of one op from elsewhere.
struct OpTiming {
    double ready_us = 0;   ///< it does not start before: when a kernel will have made what it sends
    double lasts_us = -1;  ///< how long it takes, whatever the machine's links carry; negative: not known
    /// It waits in the line of this number of its rank, of one lane; negative: in its engine's line.
    std::int32_t line = -1;
};

struct SimulateOptions {
    bool posts = true;                             ///< false: ops end with their last byte, without post_us
    std::vector<std::vector<OpTiming>> timings{};  ///< by rank and index of the op; empty: nothing is known
    bool times_only = false;  ///< the plan is known to be well formed, and nobody asks for its bound
};

/// Rank r runs on device r. Fails if the plan has more ranks than the topology has devices, an op is
/// malformed, ops wait for each other in a circle, or two ranks of a transfer have no way between them; with
/// rank and op. O(ops × (log ops + links on the way × kMaxSharers)): a million ops take seconds.
[[nodiscard]] Result<Simulation> simulate(const Plan& plan, const Topology& topology,
                                          const SimulateOptions& options = {});

/// The bound alone. For every device, every node, and both sides of some cuts of the machine (the first
/// ranks; the first ones of each row of a grid): the bytes that must come in and those that must go out, over
/// the bandwidth that crosses its border; all bytes that must move, over all devices' ingress; and one
/// start-up plus the latency of the longest way that some byte must take. The largest of these. A reduction
/// counts each contribution once, since it may be summed on its way.
[[nodiscard]] Bound lower_bound(const Plan& plan, const Topology& topology);

}  // namespace syncopate::plan
