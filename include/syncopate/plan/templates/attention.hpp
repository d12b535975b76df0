// Attention over a sequence that is sharded over ranks: what of Q, K, V and O moves where. The kernel is
// written for one GPU and the whole sequence; which of its tiles a rank runs follows from what the plan says
// that the rank makes of O (fuse/passes/run_tiles.hpp), and which rows a rank holds is `rows`, several runs of them
// if need be.
//
// Tensors: Q, O [B, H, S, D], K, V [B, HKV, S, D], L (log-sum-exp, fp32) [B, H, S].
//
//   all_gather   each rank pushes its rows of K and V to those that need them, the next rank first
//   ring         … passes them on round a ring
//   double_ring  … in rings of `inner` ranks, while an outer ring moves them from node to node
//   ulysses      `inner` ranks (0: all) exchange heads for rows: first Q, then K, then V, to ranks of a
//   group;
//                each then has all of the group's rows of its heads, and O and L go back as tiles make them.
//                Between groups, K and V go round as above (`circulation`):
//
//                    4 ranks, inner = 2         heads 0, 1   heads 2, 3
//                    group 0, its rows           rank 0   ⇄   rank 1         Q, K, V before, O, L after
//                    group 1, its rows           rank 2   ⇄   rank 3
//                                                 K, V ↕       K, V ↕
//
// A rank is sent only what rows of K and V its own rows attend to.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

using Rows = std::vector<Interval>;  ///< of the sequence: disjoint, rising, none empty
[[nodiscard]] std::int64_t num_rows(const Rows& rows);
[[nodiscard]] std::int64_t most_rows(const std::vector<Rows>& rows);  ///< that one of them has

enum class Circulation : std::uint8_t { all_gather, ring, double_ring };
[[nodiscard]] std::optional<Circulation> circulation_from(std::string_view name);

struct AttentionShape {
    std::int64_t batch = 1;
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1;
    std::int64_t length = 0;  ///< of the sequence, over all ranks
    std::int64_t head_dim = 0;
    DType dtype = DType::bf16;
};

struct AttentionOptions {
    Circulation circulation = Circulation::all_gather;
    std::int32_t ulysses = 1;  ///< ranks that exchange heads for rows; they are neighbours
    std::int32_t inner = 0;    ///< double_ring: ranks (after `ulysses`) of an inner ring; 0: half of them
    std::int32_t split = 1;    ///< chunks into which each run of rows is cut
    /// A member's heads of K and V go in so many parts, each with its Q.
    std::int32_t parts = 1;
    std::vector<Rows> rows;      ///< by rank
    std::vector<Rows> attended;  ///< by rank, rows of K and V that its rows attend to; empty: all
    bool only_kv = false;        ///< the plan has K and V alone: Q, O and L are each rank's own affair
    bool q_o_stay = false;       ///< Q and O stay where each rank has them: the plan has K, V and L
};

/// Fails (ErrorClass::usage) where rows are not each held once, ranks are no multiple of `ulysses` or
/// `inner`, heads no multiple of `ulysses` or of kv_heads, those of a member none of `parts`, or a split is below 1;
/// or where heads are to be exchanged by a plan without Q and O.
[[nodiscard]] Result<Plan> attention(const Mesh& mesh, const AttentionShape& shape,
                                     const AttentionOptions& options);

/// How a sequence is sharded.
enum class Sharding : std::uint8_t {
    contiguous,  ///< rank r has the r-th of `ranks` parts
    zigzag,      ///< … the r-th and the r-th from behind of 2 · `ranks` parts: alike much work under a causal
                 ///< mask
    documents,   ///< zigzag in each document
};
[[nodiscard]] std::optional<Sharding> sharding_from(std::string_view name);

struct Sequence {
    std::int64_t length = 0;
    std::vector<std::int64_t> documents{};  ///< where each begins, and the end of the last; empty: one
    bool causal = false;
    /// A row attends to so many rows up to itself (causal), or to either side; 0: all.
    std::int64_t window = 0;
};

/// The rows of each of `ranks` ranks, cut at multiples of `block` (so that no tile of so many rows is
/// shared). `group`: so many neighbours, which divide `ranks`, share tiles: only what a group holds is cut
/// so, and each of it gets alike many rows of that.
[[nodiscard]] std::vector<Rows> shard_rows(const Sequence& sequence, std::int32_t ranks, Sharding sharding,
                                           std::int64_t block, std::int32_t group = 1);

/// Whether `rows`, by rank, are cut at multiples of `block` or at the sequence's end, between groups of so
/// many neighbours.
[[nodiscard]] bool cut_at_tiles(const std::vector<Rows>& rows, std::int64_t length, std::int64_t block,
                                std::int32_t group = 1);

/// What `rows` attend to, as few runs as it takes, widened to whole blocks of `block` rows, as a kernel loads
/// them.
[[nodiscard]] Rows attended_by(const Sequence& sequence, const Rows& rows, std::int64_t block = 1);

}  // namespace syncopate::plan
