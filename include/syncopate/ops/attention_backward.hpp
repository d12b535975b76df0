// The backward of attention over a sharded sequence: an operator like any other. How a kind is carried out, the
// plan (plan/templates/attention_backward.hpp), and the kernels with their tiles.
//
//     one stage     a tile is a block of K and V: it makes the block's dK and dV, and adds to dQ, which stays
//                   where it is
//     two stages    ranks exchange heads: the second one makes dQ of its sums (or, deterministic, of Q), and
//                   it leaves tile by tile
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/plan/templates/attention_backward.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// How the backward of a kind of attention is carried out.
struct BackwardKind {
    std::string kind;
    std::string why;  ///< not as the forward; "" where it is
};
/// Of what it is asked.
struct BackwardAsked {
    std::int32_t ranks = 1;
    std::int64_t kv_heads = 1;
    std::int32_t inner = 0;  ///< of ulysses_ring
    std::int32_t nodes = 1;
    bool deterministic = false;
    bool kept = false;
};
[[nodiscard]] BackwardKind backward_kind(std::string_view forward, const BackwardAsked& asked);

struct AttentionBackwardTask {
    /// Its kind as backward_kind has it; block_m rows of Q, block_n of K and V. `parts`: of heads, one after another; 0: where ranks
    /// exchange heads attention_backward_head_parts, else as many as keep what tiles read of Q in the cache, and then a run of rows is
    /// cut into `split` divided by them.
    AttentionTask forward;
    bool gluon = false;          ///< the kernel for Hopper; its parameters are called so
    bool deterministic = false;  ///< dQ by a kernel of its own, after the call; K and V stay for it
    bool kept = false;           ///< K and V are there, from the forward
};

struct AttentionBackwardOutline {
    plan::Plan plan;
    std::vector<Bindings> bindings;  ///< by stage
    bool exchanges = false;          ///< heads: each rank has some, of all rows of its group
    std::int32_t sharing = 1;        ///< ranks of a group
    std::int64_t together = 0;       ///< of a rank's heads of K, those that come in one part; 0: all
    std::optional<plan::AttentionPasses> passes;  ///< of `bounded`; none: K and V come at once
};

/// Fails as attention_outline does. With `bounded`, passes are as many as divide all runs of rows, so that no row
/// comes twice.
[[nodiscard]] Result<AttentionBackwardOutline> attention_backward_outline(const AttentionBackwardTask& task);

/// In how many parts ranks exchange heads, at most 4: a divisor of a rank's heads of K. More let tiles begin earlier, and each costs
/// transfers, one of each run of rows.
[[nodiscard]] std::int32_t attention_backward_head_parts(const plan::AttentionShape& shape,
                                                         const std::vector<plan::Rows>& rows);

/// The tiles of a backward kernel for heads of one size, as attention_tiles.
[[nodiscard]] std::optional<TileConfig> attention_backward_tiles(AttentionKernelName kernel,
                                                                 std::int64_t head_dim,
                                                                 const AttentionTarget& target);

/// Of the kernel that makes dQ in a fixed order, beside one with `tile`.
[[nodiscard]] TileConfig attention_backward_q_tile(const TileConfig& tile, std::int64_t head_dim, bool cuda);

/// Which backward kernel runs, and why it is not the one for Hopper, which masks scores before it scales them.
[[nodiscard]] AttentionKernel choose_backward_kernel(std::int64_t head_dim, plan::DType dtype, double scale,
                                                     const AttentionTarget& target);

/// Among how many to share out the work of each tile, which is `group` heads of Q with `rows` each, where `tiles` are few:
/// a divisor of `group`. Some multiprocessors else have none, or wait for those with the longest. `unequal`: tiles are
/// on average half as long as the longest, as a causal mask leaves them.
[[nodiscard]] std::int64_t attention_backward_parts(std::int64_t tiles, std::int64_t group, std::int64_t rows,
                                                    bool unequal, std::int64_t multiprocessors);

}  // namespace syncopate::ops
