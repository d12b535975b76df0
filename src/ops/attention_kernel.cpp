// Which of the library's attention kernels runs, and with which tiles.
#include <array>
#include <span>

#include <fmt/format.h>

#include "syncopate/ops/attention_kernel.hpp"

namespace syncopate::ops {
namespace {

struct Tiles {
    AttentionKernelName kernel;
    std::int64_t head_dim;
    TileConfig tile;
};

constexpr std::int32_t kHostBlock = 16;

TileConfig shaped(std::int32_t m, std::int32_t n, std::int64_t head_dim, std::int32_t stages,
                  std::int32_t warps) {
    return TileConfig{.block_m = m,
                      .block_n = n,
                      .block_k = static_cast<std::int32_t>(head_dim),
                      .stages = stages,
                      .warps = warps};
}

/// A plain kernel does best with tiles of 64 x 64; bench/attention/local.py measures the Gluon one's.
std::span<const Tiles> all_tiles() {
    using enum AttentionKernelName;
    static const std::array kAll{
        Tiles{triton, 64, shaped(64, 64, 64, 3, 4)},    Tiles{triton, 128, shaped(64, 64, 128, 3, 4)},
        Tiles{triton, 256, shaped(64, 64, 256, 2, 4)},  Tiles{gluon, 64, shaped(128, 128, 64, 4, 4)},
        Tiles{gluon, 128, shaped(128, 128, 128, 2, 4)}, Tiles{gluon, 256, shaped(128, 64, 256, 2, 4)}};
    return kAll;
}

}  // namespace

std::string_view name_of(AttentionKernelName kernel) {
    return kernel == AttentionKernelName::gluon ? "gluon" : "triton";
}

std::optional<TileConfig> attention_tiles(AttentionKernelName kernel, std::int64_t head_dim, bool cuda) {
    if (!cuda) {
        if (kernel == AttentionKernelName::gluon) return std::nullopt;
        return shaped(kHostBlock, kHostBlock, head_dim, 3, 4);
    }
    for (const Tiles& one : all_tiles()) {
        if (one.kernel == kernel && one.head_dim == head_dim) return one.tile;
    }
    return std::nullopt;
}

std::optional<std::int64_t> padded_head(std::int64_t head_dim, bool cuda) {
    constexpr std::int64_t kLeast = 16, kMost = 256;
    for (std::int64_t size = kLeast; size <= kMost; size *= 2) {
        if (size >= head_dim && attention_tiles(AttentionKernelName::triton, size, cuda)) return size;
    }
    return std::nullopt;
}

Result<plan::AttentionShape> attention_shape(const Problem& problem) {
    const std::int64_t head_dim = problem.extent("D");
    const std::optional<std::int64_t> padded = padded_head(head_dim);
    if (!padded)
        return usage_error(fmt::format("attention: D is {}: no kernel has tiles for such heads", head_dim));
    return plan::AttentionShape{.batch = problem.extent("B"),
                                .heads = problem.extent("H"),
                                .kv_heads = problem.extent("HKV"),
                                .length = problem.extent("S"),
                                .head_dim = *padded,
                                .dtype = problem.dtype};
}

AttentionKernel choose_attention_kernel(const plan::AttentionShape& shape, std::int32_t ranks, double scale,
                                        const AttentionTarget& target) {
    using enum AttentionKernelName;
    const std::optional<TileConfig> tile = attention_tiles(gluon, shape.head_dim, target.cuda);
    const auto why = [&]() -> std::string {
        if (!target.cuda) return "host ranks run a kernel in Triton's interpreter, which reads no Gluon";
        if (!target.hopper) return "the Gluon kernel is for Hopper";
        if (shape.dtype != plan::DType::bf16 && shape.dtype != plan::DType::fp16)
            return "the Gluon kernel takes bf16 and fp16";
        if (!tile) return fmt::format("the Gluon kernel has no tiles for D = {}", shape.head_dim);
        if (!(scale > 0)) return fmt::format("the Gluon kernel takes a scale above 0, not {}", scale);
        const std::int64_t least = 2 * std::int64_t{ranks} * tile->block_m;
        if (shape.length < least)
            return fmt::format(
                "the Gluon kernel's tiles have {} rows, and S = {} is less than two a rank, {}",
                tile->block_m, shape.length, least);
        return {};
    }();
    if (why.empty()) return {gluon, *tile, {}};
    const std::optional<TileConfig> plain = attention_tiles(triton, shape.head_dim, target.cuda);
    return {triton, plain.value_or(shaped(64, 64, shape.head_dim, 2, 4)), why};
}

}  // namespace syncopate::ops
