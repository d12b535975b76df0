// Lower: reducing transfers as what executors can do, in an order that never varies.
//
// A plan says "push, reduce sum, into C[0:128] of rank 0", once for each contributor, in any order. Adding
// each as it comes would give other bits in every run, and two that come at once would race. So a
// contribution is copied into a slot of its own in a staging tensor, and one sum (a local op with `reduce`,
// added at the end of the destination's list) reads all slots when they are there:
//
//      rank 1 ── push ─► staging[0] ─┐
//      rank 2 ── push ─► staging[1] ─┼─► sum: C = own + staging[0] + staging[1], in rank order
//      rank 0's kernel ─► C (own)  ──┘
//
// A sum begins when its own contributions have come, whatever else is under way: there is no barrier. An op that
// was `after` a reducing op is after the sum. Where a contribution was `after` a copy to the place that is summed,
// the sum waits for that copy, and the contribution does not. What the destination itself holds (produced, initial,
// or copied there by an op that a contribution is after) takes its place in the order of ranks.
//
// Where a plan adds to one place in rounds (a contribution is after another one to the same place), each
// round is a sum of its own, rounded to the tensor's type: plans that want the best sum leave the order to
// the runtime.
//
// A contribution that the destination's rank itself pulls by ldst_inline is not staged: the sum reads it where it
// is, and the pull is a part of the sum (`direct`). Such a sum is a kernel of its own, as a sum of staged
// contributions is, and may read some of each. Where the chunk engine pulls all contributions of a sum, none is
// staged either, and the engine sums them.
//
// The staging tensor of T is [slots, …extents]: the extents are those of the largest box around what one rank
// sums of T, so a reduce-scatter stages a shard from each other rank, not the whole tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// An op that is one side of a transfer between nodes.
struct ChannelSide {
    bool sends = false;
    plan::OpRef other;  ///< the other side, on the peer's rank
    plan::Chunk chunk;  ///< there
};

struct Lowered {
    /// As the plan, but only its sums reduce; ops keep their indices, sums come after them. It has more
    /// tensors.
    plan::Plan plan;
    /// By sum: how many slots come before what the destination itself holds; -1: it holds nothing yet.
    std::map<plan::OpRef, std::int32_t> own;
    /// By sum that reads contributions where they are: the pulls, in the order of adding. They stay ops of
    /// the plan, with all that they come after, but are done with the sum.
    std::map<plan::OpRef, std::vector<plan::OpRef>> direct;
    /// By such a sum: where all its contributions are, in the order of adding; of a staged one its slot of
    /// the staging tensor, a region of one axis more.
    std::map<plan::OpRef, std::vector<Source>> sources;
    std::map<plan::OpRef, plan::OpRef> done_with;  ///< by such a pull: its sum
    /// By sum all of whose contributions the chunk engine brings: by which of its backends (Contributions).
    std::map<plan::OpRef, plan::Backend> engine;
    /// By send and by receive (channel.hpp).
    std::map<plan::OpRef, ChannelSide> channel;
    std::size_t num_tensors = 0;  ///< those in memory, which come first; behind them what channels carry
};

struct LowerOptions {
    plan::Backend preferred = plan::Backend::automatic;  ///< as for assign
    /// The disjoint boxes, together the chunk, whose sums are ops of their own (sum_parts.hpp); null: the sum
    /// of a chunk is one. `rank`: that sums it. Not asked where the chunk engine sums.
    std::function<std::vector<plan::Region>(std::int32_t rank, const plan::Chunk&)> parts_of;
};

/// The plan of `lowered` as plan::simulate takes it, each op by its backend of `backends` (assign.hpp), if there are any: what is staged, and what a sum
/// adds up, has the extents of where it ends up, so that each op's two sides are of one size; and a sum has its
/// summands in another tensor, also where it reads them at other ranks.
[[nodiscard]] plan::Plan transfers_of(const Lowered& lowered,
                                      const std::vector<std::vector<plan::Backend>>& backends = {});

/// Whether sums of this type are carried out: bf16 and fp16 (added as fp32), fp32, int32.
[[nodiscard]] bool can_reduce(plan::DType dtype);

/// `plan` must be well formed (plan::check). Fails, with rank and op, on a dtype that cannot be reduced, on
/// ops that reduce into overlapping regions that are not the same or in different ways, and where the
/// destination holds a part of the region only.
[[nodiscard]] Result<Lowered> lower(const plan::Plan& plan, const LowerOptions& options = {});

struct Options;
struct StagedProgram;
/// The same for a program: what its kernels make is summed in parts (sum_parts.hpp).
[[nodiscard]] Result<Lowered> lower(const StagedProgram& program, const Options& options);

}  // namespace syncopate::fuse
