// A strategy: everything that may be chosen for a problem, as one value. It names no problem, so one strategy
// serves many shapes.
//
//     placement     fused | unfused | apart                where the transfers are to the product
//     plan          rows, slices, split, pull, stored, …    options of the operator's template
//     backend       copy_engine, tma_dedicated, …           of all transfers that the plan leaves open
//     kernel        plain | gluon                           what makes the products
//     tiles         which tiles cover each product, and how one is made
//     kind          of attention: the plan's                inner, head_parts: its options
//
// A field that is not set is open: complete() (choose.hpp) fills it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// Where an operator's transfers are to its product.
enum class Placement : std::uint8_t {
    fused,    ///< tiles wait for chunks, or chunks leave as their tiles are made
    unfused,  ///< the vendors' libraries: a product, and a collective before or after it
    apart,    ///< a block as two operators, one after the other, each by a strategy of its own
};
inline constexpr std::size_t kNumPlacements = 3;
[[nodiscard]] std::string_view name_of(Placement placement);

/// Which of the library's kernels makes the products.
enum class ProductKernel : std::uint8_t {
    plain,  ///< Triton: every device, the host, every dtype
    gluon,  ///< kernels/gluon_matmul.py: products of 16 bits and fp8 on Hopper; elsewhere complete() takes
            ///< the plain one
};
[[nodiscard]] std::string_view name_of(ProductKernel kernel);

/// Which tiles cover a product [m, n], and how one is made.
struct TileConfig {
    std::int32_t block_m = 128;
    std::int32_t block_n = 256;
    std::int32_t block_k = 64;
    std::int32_t stages = 4;         ///< of the pipeline of loads
    std::int32_t warps = 0;          ///< 0: as many as the kernel takes for such a tile
    std::int32_t split_k = 1;        ///< programs that share the reduction of one tile
    std::int32_t num_wide = -1;      ///< columns of wide tiles, the rest half as wide; -1: one tile shape
    std::int32_t group_m = 8;        ///< rows of tiles that the kernel's own order walks together
    std::string precision = "tf32";  ///< of fp32 products: "tf32" or "ieee"
    bool operator==(const TileConfig&) const = default;
};

/// With which a small problem has several tiles, for Triton's interpreter.
[[nodiscard]] inline TileConfig small_tile() {
    return {.block_m = 32, .block_n = 32, .block_k = 32, .stages = 2, .group_m = 2, .precision = "ieee"};
}

/// How a shard, or a block for another rank, is cut and sent, where transfers come before the product.
struct Chunking {
    std::int32_t rows = 1;             ///< chunks along M
    std::vector<std::int64_t> slices;  ///< extents along K of the slices of each; empty: num_slices
    std::int32_t num_slices = 1;       ///< equal ones, where `slices` is empty
    bool peer_by_peer = false;         ///< all slices to one peer before the next peer's
    bool operator==(const Chunking&) const = default;
};

struct Strategy {
    Placement placement = Placement::fused;
    std::optional<ProductKernel> kernel = ProductKernel::plain;  ///< open: the quicker; with tiles, plain
    std::vector<TileConfig> tiles;           ///< of each product; one may stand for all; empty: open
    std::optional<std::int32_t> programs;    ///< of each kernel's grid, at most
    Chunking chunking;                       ///< of what comes before a product
    std::optional<std::int32_t> split;       ///< chunks of each shard that a product makes
    std::optional<std::int32_t> split_axis;  ///< the axis that `split` cuts; open: the plan's own
    bool pull = false;                       ///< receivers fetch; of sums: owners read contributions
    std::int32_t stored = 0;                 ///< contributions, the last made, stored tile by tile
    bool one_step = false;                   ///< of sums: every rank sends all that it makes to all
    bool kernel_sums = false;                ///< the product's programs add up what arrives
    bool together = false;                   ///< all tiles wait for what arrives, also those of own rows
    plan::Backend backend = plan::Backend::automatic;
    std::optional<std::int32_t> engine_blocks;  ///< multiprocessors of the chunk engine
    std::vector<Strategy> parts;  ///< of the operators of a block that are apart; then nothing else counts
    std::string kind;        ///< of attention: how K and V, or heads, go around (attention.hpp); "": open
    std::int32_t inner = 0;  ///< likewise: ranks of an inner ring, or that exchange heads; 0: open
    std::int32_t head_parts = 0;  ///< likewise: of the heads, which are sent one after another; 0: open

    bool operator==(const Strategy&) const = default;
};

/// A short readable name. Strategies that are carried out differently have different names; what is as by
/// default is not said: "unfused", "apart[copy_engine + unfused]", "copy_engine/rows=2/128x256x64s4".
[[nodiscard]] std::string name_of(const Strategy& strategy);

/// As one line of JSON; what is as by default is left out, but a plain kernel without tiles is not: there its
/// absence means that it is open. strategy_from_json gives an equal one back.
[[nodiscard]] std::string to_json(const Strategy& strategy);
/// Strict: an unknown key, a wrong type or a figure out of range is an error that names its path.
[[nodiscard]] Result<Strategy> strategy_from_json(std::string_view text, const std::string& file_name = {});

}  // namespace syncopate::ops
