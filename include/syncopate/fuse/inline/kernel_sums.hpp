// Kernel sums: sums that the fused kernel itself carries out. When a program has made its tiles it waits
// until all contributions have come, and adds up an even share of what its rank sums:
//
//      rank 0   program 0 | tiles, stored at their owners | wait | share 0 |
//               program 1 | tiles, stored at their owners | wait | share 1 |
//      rank 1   program 0 | tiles, …                             ↑ what all programs have stored
//
// For little data. A sum by anybody else begins with a launch, or a poll beside the kernel, and ends with
// another one; here the call is one kernel, and a contribution has one way to go. All programs of the kernel
// run at once, so none of them waits for one that has not started.
//
// Nothing guards what is staged: it has two places [P16].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

/// Of kernels that sum: one warp waits for all ranks' contributions, and tells all of them, one a lane.
inline constexpr std::int32_t kMostSummingRanks = 32;

/// The number of the region's first element among the tensor's, row-major.
[[nodiscard]] std::int64_t first_element(const plan::Tensor& tensor, const plan::Region& region);

/// What of a sum into `chunk` of rank `rank` the plan asks for at its end: rows that nobody wants are not
/// added up. The box of them, maybe empty.
[[nodiscard]] plan::Region asked_of_sum(const plan::Plan& plan, std::int32_t rank, const plan::Chunk& chunk);

/// Why the kernel of `program` (its plan lowered) cannot carry out the sum `ref`; empty if it can. It can if
/// it states that it sums, if contributions are staged, what is summed is one run of elements, and nothing
/// comes after it.
[[nodiscard]] std::string kernel_sum_objection(const BoundKernel& program, const Lowered& lowered,
                                               plan::OpRef ref);

/// Where there are such sums: fails, with rank and op, unless each rank has one, to which all ranks
/// contribute, kMostSummingRanks of them at most, and nothing else to do beside its kernel.
[[nodiscard]] Status check_kernel_sums(const plan::Plan& lowered, const Backends& backends);

/// The same of a schedule: nothing arrives for its tiles.
[[nodiscard]] Status check_kernel_sums(const Schedule& schedule);

[[nodiscard]] bool is_kernel_sum(const Transfer& transfer);
/// Whether the rank has such a sum; then it has no other transfers.
[[nodiscard]] bool sums_in_kernel(const RankSchedule& rank);
/// The tensors in which such sums find contributions: their places in the heap are two, for every other call.
[[nodiscard]] std::vector<std::int32_t> alternating_tensors(const Schedule& schedule);
/// How many summands such a sum has, what the rank itself contributes among them, at the most; 0: there is
/// none.
[[nodiscard]] std::int32_t kernel_summands(const Schedule& schedule);

}  // namespace syncopate::fuse
