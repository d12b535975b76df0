// Which of the library's attention kernels runs, and with which tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

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
/// Of a problem "attention:S=…,H=…,…", with its heads padded. Fails (usage) where they are too large.
[[nodiscard]] Result<plan::AttentionShape> attention_shape(const Problem& problem);

/// The Gluon kernel where it may run: on Hopper, for 16-bit heads that it has tiles for, a scale above 0, and
/// sequences that leave each rank two tiles. Else the plain one, with the reason.
[[nodiscard]] AttentionKernel choose_attention_kernel(const plan::AttentionShape& shape, std::int32_t ranks,
                                                      double scale, const AttentionTarget& target);

}  // namespace syncopate::ops
