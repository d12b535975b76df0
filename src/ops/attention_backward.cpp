#include "syncopate/ops/attention_backward.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "ops/attention_task.hpp"
#include "ops/product.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int32_t kHostBlock = 16;

plan::AttentionBackwardOptions options_of(const AttentionBackwardTask& task) {
    const AttentionTask& forward = task.forward;
    plan::AttentionBackwardOptions made{.moved = moved_by(forward)};
    made.moved.rows = forward.rows;
    for (const plan::Rows& rows : forward.rows)
        made.moved.attended.push_back(plan::attended_by(forward.sequence, rows, forward.tile.block_n));
    made.kept = task.kept;
    made.stays = task.deterministic && !task.kept;
    return made;
}

/// As few as leave at most so many rows at once, but as many as divide each rank's runs.
Result<plan::AttentionPasses> passes_of(const AttentionTask& task) {
    std::int64_t common = 0;
    for (const plan::Rows& rows : task.rows) {
        for (const plan::Interval& run : rows) common = std::gcd(common, run.size());
    }
    SYNCOPATE_TAKE(const std::int32_t least, least_passes(task));
    std::int64_t number = least;
    while (number <= common && common % number != 0) ++number;
    if (number > common)
        return usage(fmt::format(
            "bounded: runs of rows are cut into equal slices in the backward, and {} rows at once ask for {} "
            "slices of runs that have only a divisor of {}",
            most_at_once(task), least, common));
    return plan::attention_passes(task.rows, static_cast<std::int32_t>(number));
}

std::vector<Bindings> bindings_of(const AttentionBackwardTask& task, bool exchanges) {
    const std::string heads = exchanges ? ".heads" : "";
    Bindings first{
        {"k_desc", "K" + heads}, {"v_desc", "V" + heads}, {"dk_ptr", "DK" + heads}, {"dv_ptr", "DV" + heads}};
    if (!exchanges) return {first};
    const Bindings rows{{"q_desc", "Q.heads"},
                        {"do_desc", "DO.heads"},
                        {task.gluon ? "lse_desc" : "lse_ptr", "LSE.heads"},
                        {task.gluon ? "delta_desc" : "delta_ptr", "DELTA.heads"}};
    first.insert(rows.begin(), rows.end());
    if (!task.deterministic) return {first, {{"dq_ptr", "DQ.heads"}}};
    return {first,
            {{"q_desc", "Q.heads"},
             {"do_desc", "DO.heads"},
             {"k_desc", "K.heads"},
             {"v_desc", "V.heads"},
             {"lse_ptr", "LSE.heads"},
             {"delta_ptr", "DELTA.heads"},
             {"dq_ptr", "DQ.heads"}}};
}

/// Ranks that exchange heads; 1: none.
std::int32_t sharing_of(const AttentionTask& task) {
    const auto ranks = static_cast<std::int32_t>(task.rows.size());
    return task.kind == "ulysses" ? ranks : task.kind == "ulysses_ring" ? std::max(task.inner, 1) : 1;
}

/// In how many parts heads of K and V and their gradients go where no rank exchanges any: tiles of a part run together, so that its Q,
/// dO and dQ's sums stay in the cache, and while the next part's run its gradients are on their way. As many heads go together as the
/// kernel by itself takes (gluon_attention_backward_tiles.py), or more, as each part has sums beside the kernel: two H200s, 32 heads,
/// causal, of 4,096 rows a rank, take 1,534 and 1,555 us in two and four parts, 1,712 in eight; of 8,192 rows 5,343 in one, 5,268, 5,146
/// and 5,189 in two, four and eight (bench/results/attention_backward_parts_2xH200.csv).
std::int32_t parts_of_circulation(const AttentionBackwardTask& task) {
    constexpr std::int64_t kCache = 24 << 20, kTiles = 264, kLeastBytes = 3 << 18, kMost = 4;
    const AttentionTask& forward = task.forward;
    const plan::AttentionShape& shape = forward.shape;
    const bool whole = forward.sequence.window == 0 && forward.sequence.documents.empty();
    if (!task.gluon || !forward.sequence.causal || !whole || forward.bounded || forward.kind != "all_gather")
        return 1;
    const std::int64_t queries = plan::most_rows(forward.rows);
    std::int64_t shortest = shape.length;
    for (const plan::Rows& rows : forward.rows)
        for (const plan::Interval& run : rows) shortest = std::min(shortest, run.size());
    const auto group = shape.heads / shape.kv_heads;
    const auto blocks = (shape.length + forward.tile.block_n - 1) / forward.tile.block_n;
    const std::int64_t cached = kCache / (8 * shape.head_dim * std::max<std::int64_t>(queries, 1)) / group;
    const std::int64_t tiles = (kTiles + blocks - 1) / blocks;
    const std::int64_t row_bytes = shape.head_dim * static_cast<std::int64_t>(plan::size_of(shape.dtype));
    const std::int64_t sent = kLeastBytes / std::max<std::int64_t>(shortest * row_bytes, 1);
    const std::int64_t together = std::max({cached, tiles, sent, shape.batch}) / shape.batch;
    std::int64_t parts = std::min<std::int64_t>(shape.kv_heads, kMost);
    while (parts > 1 && (shape.kv_heads % parts != 0 || shape.kv_heads / parts < together)) --parts;
    return static_cast<std::int32_t>(parts);
}

/// Rows of LSE.heads and DELTA.heads: whole blocks of Q.
std::int64_t padded_rows(const AttentionTask& task) {
    std::int64_t most = 0;
    const auto sharing = static_cast<std::size_t>(sharing_of(task));
    for (std::size_t first = 0; first < task.rows.size(); first += sharing) {
        std::int64_t held = 0;
        for (std::size_t rank = first; rank < first + sharing; ++rank)
            held += plan::num_rows(task.rows[rank]);
        most = std::max(most, held);
    }
    return static_cast<std::int64_t>(
        round_up(static_cast<std::uint64_t>(most), static_cast<std::uint64_t>(task.tile.block_m)));
}

}  // namespace

BackwardKind backward_kind(std::string_view forward, const BackwardAsked& asked) {
    const auto not_shared = [&](std::int32_t group) {
        return fmt::format("{} heads of K and V are not shared out over {} ranks", asked.kv_heads, group);
    };
    if (forward == "ulysses_ring") {
        const std::string around = ": K and V go around";
        if (asked.nodes > 1)
            return {"ring", "over nodes groups that exchange heads have no backward of their own" + around};
        if (asked.deterministic)
            return {"ring", "dQ of groups that exchange heads is made in no fixed order" + around};
        if (asked.kept) return {"ring", "K and V of the forward are of a rank's own heads" + around};
        if (asked.kv_heads % std::max(asked.inner, 1) != 0) return {"ring", not_shared(asked.inner)};
    }
    if (forward == "ulysses" && asked.kv_heads % std::max(asked.ranks, 1) != 0)
        return {"all_gather", not_shared(asked.ranks)};
    return {std::string(forward), {}};
}

Result<AttentionBackwardOutline> attention_backward_outline(const AttentionBackwardTask& task) {
    const AttentionTask& forward = task.forward;
    const auto ranks = static_cast<std::int32_t>(forward.rows.size());
    if (const std::string why = attention_objection(forward.kind, ranks, forward.shape.heads, forward.inner);
        !why.empty())
        return usage(fmt::format("kind '{}': {}", forward.kind, why));
    const BackwardAsked asked{.ranks = ranks,
                              .kv_heads = forward.shape.kv_heads,
                              .inner = forward.inner,
                              .nodes = forward.nodes,
                              .deterministic = task.deterministic,
                              .kept = task.kept};
    if (const BackwardKind kind = backward_kind(forward.kind, asked); !kind.why.empty())
        return usage(
            fmt::format("kind '{}' of the backward: {}; take '{}'", forward.kind, kind.why, kind.kind));
    const bool exchanges = sharing_of(forward) > 1;
    if (task.kept && exchanges)
        return usage("kept: where ranks exchange heads, K and V of the forward are of a rank's own heads");
    plan::AttentionBackwardOptions options = options_of(task);
    plan::AttentionShape shape = forward.shape;
    const bool all_exchange = exchanges && sharing_of(forward) == ranks;
    if (forward.parts > 1 && (forward.bounded || exchanges != all_exchange))
        return usage(
            "parts: in the backward heads come in parts neither in passes nor where groups exchange them");
    if (exchanges) options.padded = padded_rows(forward);
    // A program of two stages runs alike many tiles on all ranks: those that a mask hides from a group make zeros.
    if (exchanges && !all_exchange) options.moved.attended.clear();
    if (forward.parts > 0) {
        options.moved.parts = forward.parts;
    } else if (all_exchange) {
        options.moved.parts = attention_backward_head_parts(shape, forward.rows);
    } else if (!exchanges) {  // instead of pieces of runs of rows
        options.moved.parts = parts_of_circulation(task);
        options.moved.split = std::max(1, options.moved.split / options.moved.parts);
    }
    std::optional<plan::AttentionPasses> passes;
    if (forward.bounded) {
        if (exchanges || task.kept)
            return usage(
                "bounded: K and V come in passes where neither heads are exchanged nor they are kept");
        SYNCOPATE_TAKE(plan::AttentionPasses made, passes_of(forward));
        passes = std::move(made);
        shape.length = passes->width;
        options.moved.rows = passes->places;
        options.moved.attended.clear();
    }
    SYNCOPATE_TAKE(plan::Plan plan, plan::attention_backward(mesh_of(forward), shape, options));
    const std::int32_t parts = options.moved.parts;
    return AttentionBackwardOutline{.plan = std::move(plan),
                                    .bindings = bindings_of(task, exchanges),
                                    .exchanges = exchanges,
                                    .sharing = sharing_of(forward),
                                    .together = parts > 1 ? shape.kv_heads / sharing_of(forward) / parts : 0,
                                    .passes = std::move(passes)};
}

std::int32_t attention_backward_head_parts(const plan::AttentionShape& shape,
                                           const std::vector<plan::Rows>& rows) {
    // Bytes that go meanwhile to a rank, of what a transfer of each run of rows costs by the tiles' wait for it. On four H200s, 32 heads
    // (bench/results/attention_kinds_4xH200.csv), causal: of 2,048 rows a rank two parts take 1,268 µs, one 1,312; of 4,096 rows two take
    // 3,115, four 3,365; of 8,192 rows four take 10,453, eight 10,839. Without a mask, 2,048 rows in one run: two take 1,676, one 1,731.
    constexpr double kTransfer = 0.75 * (1 << 20);
    constexpr std::int32_t kMost = 4;
    const auto ranks = static_cast<std::int64_t>(rows.size());
    if (ranks < 2 || shape.kv_heads % ranks != 0) return 1;
    std::size_t runs = 1;  // each is sent by itself
    for (const plan::Rows& own : rows) runs = std::max(runs, own.size());
    const std::int64_t share = shape.kv_heads / ranks, held = shape.length / ranks;
    const auto whole = static_cast<double>(shape.batch * share * held * shape.head_dim *
                                           static_cast<std::int64_t>(plan::size_of(shape.dtype)));
    // Tiles begin when the first part has come, and pay for each.
    const auto cost = [&](std::int32_t parts) {
        return whole / parts + parts * kTransfer * static_cast<double>(runs);
    };
    std::int32_t best = 1;
    for (std::int32_t parts = 2; parts <= kMost; ++parts)
        if (share % parts == 0 && cost(parts) < cost(best)) best = parts;
    return best;
}

std::optional<TileConfig> attention_backward_tiles(AttentionKernelName kernel, std::int64_t head_dim,
                                                   const AttentionTarget& target) {
    const auto shaped = [&](std::int32_t m, std::int32_t n, std::int32_t stages, std::int32_t warps) {
        return TileConfig{.block_m = m,
                          .block_n = n,
                          .block_k = static_cast<std::int32_t>(head_dim),
                          .stages = stages,
                          .warps = warps};
    };
    if (kernel == AttentionKernelName::gluon) {
        if (!target.cuda) return std::nullopt;
        if (head_dim == 256) return shaped(64, 64, 2, 8);
        if (head_dim == 128) return shaped(64, 128, 2, 4);
        if (head_dim == 64) return shaped(128, 128, 2, 8);
        return std::nullopt;
    }
    if (!target.cuda) return shaped(kHostBlock, kHostBlock, 1, 4);
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) return std::nullopt;
    // A second stage would halve the time of heads of 256, and takes 145 KB: not all GPUs have it.
    return head_dim == 256 ? shaped(32, 64, 1, 8) : shaped(64, 64, 2, 4);
}

TileConfig attention_backward_q_tile(const TileConfig& tile, std::int64_t head_dim, bool cuda) {
    TileConfig made = tile;
    // dQ, Q and dO of 64 rows of 256 are more than the registers hold; on host, that blocks differ is seen there, too.
    if (head_dim == 256) made.block_m = std::min(tile.block_m, cuda ? 32 : kHostBlock / 2);
    return made;
}

AttentionKernel choose_backward_kernel(std::int64_t head_dim, plan::DType dtype, double scale,
                                       const AttentionTarget& target) {
    using enum AttentionKernelName;
    const std::optional<TileConfig> tile = attention_backward_tiles(gluon, head_dim, target);
    const auto why = [&]() -> std::string {
        if (!target.cuda) return "host ranks run a kernel in Triton's interpreter, which reads no Gluon";
        if (!target.hopper) return "the Gluon kernel is for Hopper";
        if (dtype != plan::DType::bf16 && dtype != plan::DType::fp16)
            return "the Gluon kernel takes bf16 and fp16";
        if (!tile) return fmt::format("the Gluon kernel has no tiles for D = {}", head_dim);
        if (!(scale > 0)) return fmt::format("the Gluon kernel takes a scale above 0, not {}", scale);
        return {};
    }();
    if (why.empty()) return {gluon, *tile, {}};
    return {triton, attention_backward_tiles(triton, head_dim, target).value_or(TileConfig{}), why};
}

std::int64_t attention_backward_parts(std::int64_t tiles, std::int64_t group, std::int64_t rows, bool unequal,
                                      std::int64_t multiprocessors) {
    // Adding one part of a tile's dK and dV takes the whole GPU as long as so many rows of Q take a tile: by bytes
    // and products.
    constexpr double kSums = 1.7;
    const auto time = [&](std::int64_t parts) {  // in whole tiles, the longest
        const double waves = static_cast<double>(tiles * parts) / static_cast<double>(multiprocessors);
        const double busy = unequal ? std::max(1.0, waves / 2) : std::ceil(waves);
        const double sums =
            parts > 1 ? kSums * static_cast<double>(tiles * parts) / static_cast<double>(group * rows) : 0.0;
        return busy / static_cast<double>(parts) + sums;
    };
    std::int64_t best = 1;
    for (std::int64_t parts = 2; parts <= group; ++parts)
        if (group % parts == 0 && time(parts) < time(best)) best = parts;
    return best;
}

}  // namespace syncopate::ops
