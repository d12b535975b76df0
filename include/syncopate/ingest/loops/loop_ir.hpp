// Loop IR: what compilers that communicate inside a loop nest hold (Mercury; ring attention). Each rank runs
// the same nest; in an iteration it works on the shard that its coordinates, shifted by the iteration, name;
// at communication points shards move on to the rank that works on them next. Schema `syncopate.loop/1`,
// docs/ingest_hlo.md:
//
//     {"schema": "syncopate.loop/1",
//      "mesh": [["gpu", 4]],
//      "tensors": {"K": {"shape": [16384, 32, 128], "dtype": "bf16", "shard": [["gpu"], [], []]}},
//      "loops": [{"name": "step", "over": "gpu", "shift": -1},
//                {"name": "block", "tile": {"K": 0}, "size": 256}],
//      "communicate": [{"tensor": "K", "at": "step", "chunk": {"block": 8}}]}
//
// Ring attention on 4 ranks with shift -1: rank r works on shard r - step; shards move to the next rank.
//
//     step      rank 0      rank 1      rank 2      rank 3
//     0         K0          K1          K2          K3
//        pass   0 -> 1      1 -> 2      2 -> 3      3 -> 0
//     1         K3          K0          K1          K2
//        pass   …
//
// Double ring, [["node", 2], ["gpu", 2]], K cut over node, gpu; loops outer over node, inner over gpu, both
// -1: the inner ring turns once around the node while the shard that it began with crosses to the next node.
//
//     outer, inner    0.0     0.1     1.0     1.1          (node.gpu)
//     0, 0            K0.0    K0.1    K1.0    K1.1
//     0, 1            K0.1    K0.0    K1.1    K1.0          inner: from the neighbour in the node
//     1, 0            K1.0    K1.1    K0.0    K0.1          outer: from the other node's same place, at its
//     (0, 0) 1, 1            K1.1    K1.0    K0.1    K0.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ingest/ingest.hpp"
#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// A tensor whose shards go round; or, with `carry`, whose partial results do.
struct LoopTensor {
    plan::Tensor tensor;
    std::vector<std::vector<std::int32_t>> shard;  ///< per tensor axis the mesh axes it is cut over
    /// sum or max: every rank contributes to each shard it works on, and passes the shard on with what was
    /// contributed to it so far. none: the shards are read.
    plan::Reduce carry = plan::Reduce::none;
};

/// Either a loop over shifted shards, or one over the blocks of a shard.
struct Loop {
    std::string name;
    std::int32_t over = -1;  ///< mesh axis whose coordinate is shifted; -1: a loop over blocks
    std::int64_t shift = 0;  ///< iteration t works on coordinate c + start + shift * t (mod the axis' size)
    std::int64_t start = 0;
    std::int64_t steps = 1;
    std::vector<std::pair<std::int32_t, std::int32_t>> tiles;  ///< blocks: tensor and its axis
    std::int64_t size = 0;                                     ///< blocks: elements of one along the axis
};

/// Where a tensor moves on: at every step but the first of loop `at`.
struct CommunicationPoint {
    std::int32_t tensor = -1;
    std::int32_t at = -1;
    /// Loops over blocks, and how many of their iterations make one chunk; others: all of them.
    std::vector<std::pair<std::int32_t, std::int64_t>> chunk;
};

struct LoopNest {
    plan::Mesh mesh;
    std::vector<LoopTensor> tensors;
    std::vector<Loop> loops;  ///< outermost first
    std::vector<CommunicationPoint> points;
    Uneven uneven = Uneven::ceiling;
};

/// Fails with line, column and JSON path of what is wrong, such as a tensor whose shard a loop shifts and for
/// which no communication point moves it.
[[nodiscard]] Result<LoopNest> read_loop_nest(std::string_view text, const std::string& file_name);

/// The plan: each chunk is pushed by the rank that worked on it before to the one that works on it next,
/// after it has arrived there; a rank that has had a shard already does not get it again. The ops of a rank
/// are in the order of the iterations. Tensors that are read are `initial` and every shard that a rank worked
/// on is `final`; those carried are `produced`, and `final` where their last iteration leaves them.
///
/// Fails if a carried shard would pass a rank twice (its contribution would count twice), or if the plan
/// would have more than kMaxPlannedOps ops. Time is linear in ranks × iterations × tensors (at most
/// kMaxVisits) and in the ops.
[[nodiscard]] Result<plan::Plan> plan_of(const LoopNest& nest);

/// read_loop_nest and plan_of. ImportOptions are not used.
[[nodiscard]] Result<Import> import_loop_nest(std::string_view text, const std::string& file_name,
                                              const ImportOptions& options = {});

inline constexpr std::int64_t kMaxVisits = std::int64_t{1} << 22;      ///< of a shard by a rank
inline constexpr std::int64_t kMaxIterations = std::int64_t{1} << 20;  ///< of the shifting loops together

}  // namespace syncopate::ingest
