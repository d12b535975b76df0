// Partition IR: what compilers that divide tensors over a mesh hold (GSPMD, Alpa, Domino, PyTorch's DTensor).
// Per tensor its placement before and after; how the data gets from one to the other is inferred. Schema
// `syncopate.partition/1`, docs/ingest_hlo.md:
//
//     {"schema": "syncopate.partition/1",
//      "mesh": [["node", 2], ["gpu", 4]],
//      "uneven": "ceiling",
//      "tensors": {
//        "A": {"shape": [512, 256], "dtype": "bf16",
//              "before": {"shard": [["node", "gpu"], []]},
//              "after": {"shard": [[], ["gpu"]]},
//              "split": 2},
//        "C": {"shape": [512, 256], "dtype": "bf16", "produced": true,
//              "before": {"shard": [[], []], "partial": {"over": ["gpu"], "reduce": "sum"}},
//              "after": {"shard": [["gpu"], []]}}}}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ingest/ingest.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// How a tensor lies on a mesh. Mesh axes named nowhere hold replicas.
struct Placement {
    /// Per tensor axis the mesh axes (by index) that it is cut over, the first the coarsest.
    std::vector<std::vector<std::int32_t>> shard;
    std::vector<std::int32_t> partial;  ///< mesh axes whose ranks each hold a contribution to the value
    plan::Reduce reduce =
        plan::Reduce::none;  ///< that makes the value of the contributions; none without any
};

/// Which parts an axis falls into when its size is no multiple.
enum class Uneven : std::uint8_t {
    ceiling,   ///< all but the last ones ceil(size / parts) long, as torch.chunk, DTensor and GSPMD do
    balanced,  ///< sizes differ by at most one, as plan::split_evenly and the templates do
};

struct Conversion {
    plan::Tensor tensor;
    Placement before, after;
    std::int32_t split = 1;  ///< chunks into which each piece that moves is cut
    bool produced = false;   ///< a kernel writes what is there before, tile by tile
};

struct PartitionProgram {
    plan::Mesh mesh;
    std::vector<Conversion> conversions;
    Uneven uneven = Uneven::ceiling;
};

/// Of a rank, along each axis of the mesh.
[[nodiscard]] std::vector<std::int32_t> coordinates_of(const plan::Mesh& mesh, std::int32_t rank);

/// The part of `tensor` that `rank` holds; empty where there are more ranks than elements. Nested cuts: the
/// part along the first mesh axis is cut again along the second.
[[nodiscard]] plan::Region region_of(const plan::Mesh& mesh, const plan::Tensor& tensor,
                                     const Placement& placement, std::int32_t rank, Uneven uneven);

/// "all_gather over node, gpu (axis 0)", "reduce_scatter over gpu (axis 1)", …: what a library would be asked
/// for, mesh axis by mesh axis; "nothing moves" if that is so. For people; the plan does not follow it.
[[nodiscard]] std::string conversion_name(const plan::Mesh& mesh, const Conversion& conversion);

inline constexpr std::int64_t kMaxPlannedOps = std::int64_t{1}
                                               << 20;  ///< of a plan from partition or loop IR
inline constexpr std::int64_t kMaxComparisons = std::int64_t{1} << 26;  ///< of two regions, for one program

/// Fails with line, column and JSON path of what is wrong; also if a placement cannot be reached by moving
/// and reducing: contributions out of a value, contributions along another mesh axis, another reduction.
[[nodiscard]] Result<PartitionProgram> read_partition(std::string_view text, const std::string& file_name);

/// The plan that converts every tensor, by pushes in place. Each rank gets each element that it lacks exactly
/// once, from the nearest rank that has it (that shares the most outer mesh coordinates), the load spread;
/// what a rank holds already is not moved. Where contributions are reduced, each piece is summed at one rank
/// of those that want it (two-shot: n-1 of n parts sent, and again to the others that want it): the fewest
/// bytes there are without forwarding. The ops of a rank go round the ring of ranks from itself.
///
/// Fails if the plan would have more than kMaxPlannedOps ops, or if finding it would take more than some
/// seconds (kMaxComparisons of two regions). Time is linear in ranks × shards, and in the ops.
[[nodiscard]] Result<plan::Plan> plan_of(const PartitionProgram& program);

/// read_partition, plan_of, and what the conversions are called. ImportOptions are not used.
[[nodiscard]] Result<Import> import_partition(std::string_view text, const std::string& file_name,
                                              const ImportOptions& options = {});

}  // namespace syncopate::ingest
