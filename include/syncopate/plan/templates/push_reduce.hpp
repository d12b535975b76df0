// Plans whose contributions go straight to where they are summed: what a GEMM that makes partial sums needs.
// Each rank's kernel produces its contribution to the whole tensor; a contribution is a push that reduces
// into its owner's shard, and the runtime stages and adds up in rank order (fuse/passes/lower.hpp), so the plan says
// no more.
//
// reduce-scatter (4 ranks, split = 1; rows in order of time, which is also the order in which tiles are
// made):
//
//     offset 1   1 => 1    2 => 2    3 => 3    0 => 0         p => p: the contribution to shard p, to rank p
//     offset 2   2 => 2    3 => 3    0 => 0    1 => 1
//     offset 3   3 => 3    0 => 0    1 => 1    2 => 2
//                rank 0    rank 1    rank 2    rank 3         own shard last: it leaves for nowhere
//
// all-reduce: the same, and each chunk of a shard then goes on to all other ranks as soon as it is summed.
//
// With `pull` the owners' lists hold the ops: at offset k rank p pulls the contribution of rank p + k to its
// own shard.
//
// all-reduce in one step (push_reduce_to_all): every rank sends all of its contribution to everyone, and
// each sums all of it by itself. One hop instead of two, and ranks times the bytes: where latency counts.
//
//     rank 0    C => D of ranks 1, 2, 3 and its own        D = sum of what came, in rank order, on each rank
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

struct PushReduceOptions {
    std::int32_t axis = 0;   ///< along which shards are cut
    std::int32_t split = 1;  ///< chunks per shard
    /// Along which shards are cut into chunks; by default `axis`. Chunks of columns let a GEMM whose weights
    /// are larger than the L2 cache read them once, where chunks of rows, made in turn, each read them again.
    std::optional<std::int32_t> split_axis{};
    Reduce reduce = Reduce::sum;  ///< sum or max
    bool all = false;             ///< all-reduce: every rank ends with the whole
    /// The first chunks of all shards, then the second ones, …; else shard by shard. So a chunk is summed,
    /// and in an all-reduce on its way to all, while later ones are made.
    bool by_part = false;
    /// By what the contributions to the next rank go, to the one after it, …; open past the end.
    std::vector<Backend> backends{};
    /// Owners pull the contributions; the chunk engine, or a sum by ldst_inline, adds them up where they are,
    /// and nothing is staged.
    bool pull = false;
};

/// `tensor` cut along `axis` by split_evenly over the ranks, each shard into `split` chunks; empty ones have
/// no op. Fails (ErrorClass::usage) on an axis or a split axis that the tensor has not, a split below 1, no
/// reduction, a mesh without ranks, or more than kMaxOps ops.
[[nodiscard]] Result<Plan> push_reduce(const Mesh& mesh, const Tensor& tensor,
                                       const PushReduceOptions& options = {});

struct PushReduceToAllOptions {
    /// Every rank ends with the whole; else with its even share of the first axis.
    bool all = true;
    /// Of the first axis so many are asked for; what comes behind pads it to whole tiles.
    std::optional<std::int64_t> rows{};
    std::int32_t split = 1;  ///< chunks, each sent and summed by itself
    std::int32_t split_axis = 0;
    Reduce reduce = Reduce::sum;  ///< sum or max
};

/// The all-reduce in one step, or a reduce-scatter that sends as much: each rank's kernel makes its
/// contribution to all of `from`, and every rank ends with what it is to have, reduced, in `to`, of the same
/// shape. Fails as push_reduce does.
[[nodiscard]] Result<Plan> push_reduce_to_all(const Mesh& mesh, const Tensor& from, const std::string& to,
                                              const PushReduceToAllOptions& options = {});

}  // namespace syncopate::plan
