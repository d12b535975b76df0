// Attention over a sharded sequence: which kind of plan (plan/templates/attention.hpp) is likely to be the
// quickest on a machine. Each kind's plan is simulated on the machine's links, and each rank then works off
// what has arrived:
//
//     rows of Q  ×  rows of K and V      a part of the work, there once both are
//     own           own                  from the start
//     own           from rank 1          when those K and V have come
//     from rank 1   own                  Ulysses: when that Q has come
//
// A rank takes parts in the order in which they come to be there, as its kernel does (`any_order`). The
// busiest rank counts. With Ulysses, O goes back as it is made, part by part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// The kernels that there are: a plain Triton one, which runs everywhere, and one in Gluon, for Hopper.
enum class AttentionKernelName : std::uint8_t { triton, gluon };
[[nodiscard]] std::string_view name_of(AttentionKernelName kernel);

/// A kernel with its tiles: block_m rows of Q, block_n rows of K and V at once, block_k the head's size.
struct AttentionKernel {
    AttentionKernelName name = AttentionKernelName::triton;
    TileConfig tile;
    std::string why;  ///< why not the Gluon one; "" where it is that
};

/// What a kernel runs on, and for what.
struct AttentionTarget {
    bool cuda = true;
    bool hopper = false;  ///< compute capability 9.x
};

/// The tiles of a kernel for heads of one size; none: it cannot do that size. On the host they are small, to
/// have several.
[[nodiscard]] std::optional<TileConfig> attention_tiles(AttentionKernelName kernel, std::int64_t head_dim,
                                                        bool cuda = true);

/// The least head size that has tiles and room for `head_dim` columns: what heads of another size are padded
/// to, by columns of zeros. None: they are too large.
[[nodiscard]] std::optional<std::int64_t> padded_head(std::int64_t head_dim, bool cuda = true);

/// The Gluon kernel where it may run: on Hopper, for 16-bit heads that it has tiles for, a scale above 0, and
/// sequences that leave each rank two tiles. Else the plain one, with the reason.
[[nodiscard]] AttentionKernel choose_attention_kernel(const plan::AttentionShape& shape, std::int32_t ranks,
                                                      double scale, const AttentionTarget& target);

struct AttentionProblem {
    plan::AttentionShape shape;
    plan::Sequence sequence;       ///< its length is the shape's
    std::vector<plan::Rows> rows;  ///< by rank, what it holds of the sequence
    AttentionKernel kernel;
    std::int32_t inner = 0;  ///< ranks of an inner ring, or of a group that exchanges heads; 0: any
};

struct AttentionCandidate {
    std::string kind;  ///< "all_gather", "ring", "double_ring", "ulysses", "ulysses_ring" or "unfused"
    std::int32_t inner = 0;
    Estimate estimate;   ///< µs
    std::string pruned;  ///< why the shape or the ranks do not allow it; "" where they do
};

/// All kinds, those that are possible first, the best of them by the estimate first of all; among equals
/// the first in the order above. "unfused" is the all-gather, then the kernel.
[[nodiscard]] std::vector<AttentionCandidate> rank_attention(const AttentionProblem& problem,
                                                             const Machine& machine);

/// What a problem "attention:S=…,H=…,…" is for so many ranks of a machine: one run of rows a rank, or as its
/// `sharding` says, and heads padded. Fails where the extents cannot be attention's.
[[nodiscard]] Result<AttentionProblem> attention_problem(const Problem& problem, const Machine& machine);

}  // namespace syncopate::tune
