// Templates: functions that write the plan of a well-known collective. They use nothing but the public plan
// types, so a user's own template is a function like these.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// [begin, end) cut into `parts` >= 1 consecutive intervals whose sizes differ by at most one; the first
/// (end - begin) % parts of them are the longer ones. With fewer elements than parts the last ones are empty.
[[nodiscard]] std::vector<Interval> split_evenly(std::int64_t begin, std::int64_t end, std::int32_t parts);

struct AllGatherOptions {
    std::int32_t axis = 0;         ///< the tensor axis along which ranks hold shards
    std::int32_t split = 1;        ///< chunks per shard, along `axis`
    bool pull = false;             ///< the destination reads, instead of the source writing
    std::int32_t minor_axis = -1;  ///< a second axis to cut along, e.g. K of a GEMM; -1: none
    std::int32_t minor_split = 1;  ///< slices along minor_axis
    std::int32_t engine_peers =
        0;  ///< so many of each rank's peers, its last ones, have ldst_dedicated as backend
};

/// Every rank holds one shard of `tensor` along `options.axis` and ends with the whole of it. Direct: each
/// shard goes straight from its owner to each other rank, in place (nobody copies its own shard), with no op
/// after another.
///
/// Rank r owns the r-th interval of split_evenly over the axis; each shard is cut again into `split` chunks.
/// Shards or chunks that come out empty (an axis shorter than ranks × split) have no op.
///
/// The list of a rank goes round the ring of ranks from itself, so that at each moment no two ranks aim at
/// the same destination and all chunks of one source arrive together (P = 4, split = 2; rows in order of
/// time):
///
///     push                rank 0      rank 1      rank 2      rank 3
///     offset 1, chunk 0   0.0 -> 1    1.0 -> 2    2.0 -> 3    3.0 -> 0        r.s: chunk s of rank r's shard
///     offset 1, chunk 1   0.1 -> 1    1.1 -> 2    2.1 -> 3    3.1 -> 0
///     offset 2, chunk 0   0.0 -> 2    1.0 -> 3    2.0 -> 0    3.0 -> 1
///     offset 2, chunk 1   0.1 -> 2    1.1 -> 3    2.1 -> 0    3.1 -> 1
///     offset 3, chunk 0   0.0 -> 3    1.0 -> 0    2.0 -> 1    3.0 -> 2
///     offset 3, chunk 1   0.1 -> 3    1.1 -> 0    2.1 -> 1    3.1 -> 2
///
/// With `pull`, rank r reads from r+1, r+2, … instead: row "offset d, chunk s" of rank r is (r+d).s -> r.
/// With `minor_split` > 1 the table is run through once per minor slice, so that every peer's first slice
/// comes before any peer's second.
///
/// Fails (ErrorClass::usage) if an axis is not one of the tensor's, both are the same, a split is below 1 or
/// cuts no axis, the mesh has no ranks or more than kMaxRanks, or the plan would have more than kMaxOps ops.
[[nodiscard]] Result<Plan> all_gather(const Mesh& mesh, const Tensor& tensor,
                                      const AllGatherOptions& options = {});

}  // namespace syncopate::plan
