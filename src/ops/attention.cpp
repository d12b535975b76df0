#include "syncopate/ops/attention.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/attention_task.hpp"
#include "ops/product.hpp"
#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

constexpr std::size_t kCirculations = 3;    // of the kinds: rows of Q stay where they are
constexpr std::int64_t kLargestTile = 128;  // rows; those of the other tiles divide it

std::span<const std::string_view> circulations() { return std::span(kAttentionKinds).first(kCirculations); }

bool some_hold_none(const std::vector<plan::Rows>& rows) {
    return std::ranges::any_of(rows, &plan::Rows::empty);
}

bool is_rising(const plan::Rows& rows) { return std::ranges::is_sorted(rows, {}, &plan::Interval::begin); }

/// Ranks that share tiles, as they exchange heads.
std::int32_t sharing(const AttentionTask& task) {
    return task.kind == "ulysses_ring" ? std::max(task.inner, 1) : 1;
}

std::string passes_objection(const AttentionTask& task) {
    if (circulates(task.kind)) return {};
    const std::string what =
        task.bounded ? std::string("bounded: ")
                     : fmt::format("{} groups of {} ranks do not each hold whole tiles of {} of {} rows: ",
                                   static_cast<std::int32_t>(task.rows.size()) / std::max(task.inner, 1),
                                   task.inner, task.tile.block_m, task.shape.length);
    return fmt::format("{}kind '{}' exchanges rows for heads; take one of {}", what, task.kind,
                       fmt::join(circulations(), ", "));
}

Result<AttentionOutline> in_passes(const AttentionTask& task) {
    if (const std::string why = passes_objection(task); !why.empty()) return usage(why);
    if (task.parts > 1)
        return usage("parts: heads are sent in parts only where K and V do not come in passes");
    std::int32_t number = 1;
    if (task.bounded) {
        SYNCOPATE_TAKE(const std::int32_t within, least_passes(task));
        number = within;
    }
    SYNCOPATE_TAKE(plan::AttentionPasses passes, plan::attention_passes(task.rows, number));
    plan::AttentionOptions options = moved_by(task);
    options.rows = passes.places;
    options.only_kv = true;
    plan::AttentionShape shape = task.shape;
    shape.length = passes.width;
    SYNCOPATE_TAKE(plan::Plan plan, plan::attention(mesh_of(task), shape, options));
    return AttentionOutline{.plan = std::move(plan),
                            .bindings = {{"k_desc", "K"}, {"v_desc", "V"}},
                            .placed = true,
                            .passes = std::move(passes)};
}

/// Under a mask the kernel for Hopper alone runs the tiles of one part of the heads before those of the next, and deals them
/// out by load, but over nodes.
std::int32_t parts_of(const AttentionTask& task, std::int32_t group) {
    const auto tile = attention_tiles(AttentionKernelName::gluon, task.shape.head_dim, true);
    const bool by_hopper = tile && tile->block_m == task.tile.block_m && tile->block_n == task.tile.block_n;
    if (task.sequence.causal && (task.nodes > 1 || !by_hopper)) return 1;
    return attention_parts(task.shape, task.sequence, task.rows, group);
}

/// Of an all-gather that is over: each rank has all of K and V.
plan::Plan without_transfers(plan::Plan plan) {
    for (std::vector<plan::Op>& ops : plan.ranks) ops.clear();
    plan.initial.clear();
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
            if (plan.tensors[tensor].name != "K" && plan.tensors[tensor].name != "V") continue;
            plan::Region all;
            for (const std::int64_t extent : plan.tensors[tensor].shape) all.push_back({0, extent});
            plan.initial.push_back({rank, {static_cast<std::int32_t>(tensor), std::move(all)}});
        }
    }
    return plan;
}

Result<AttentionOutline> at_once(const AttentionTask& task) {
    plan::AttentionOptions options = moved_by(task);
    options.rows = task.rows;
    for (const plan::Rows& rows : task.rows)
        options.attended.push_back(plan::attended_by(task.sequence, rows, task.tile.block_n));
    // Where Q and O do not move, they are read and stored where the user has them.
    options.q_o_stay = circulates(task.kind) && std::ranges::all_of(task.rows, is_rising);
    options.parts = task.gathered                      ? 1
                    : task.parts > 0 || task.split > 1 ? std::max(1, task.parts)
                                                       : parts_of(task, options.ulysses);
    SYNCOPATE_TAKE(plan::Plan plan, plan::attention(mesh_of(task), task.shape, options));
    AttentionOutline made{.plan = task.gathered ? without_transfers(std::move(plan)) : std::move(plan),
                          .bindings = {{"k_desc", "K"}, {"v_desc", "V"}, {"l_ptr", "L"}},
                          .placed = options.q_o_stay};
    if (options.parts > 1) made.together = task.shape.heads / options.ulysses / options.parts;
    if (!made.placed) made.bindings.insert({{"q_desc", "Q"}, {"o_desc", "O"}});
    return made;
}

}  // namespace

bool circulates(std::string_view kind) {
    return std::ranges::find(circulations(), kind) != circulations().end();
}

std::int32_t relays_of(std::string_view kind, std::int32_t ranks) {
    const bool passes_on = kind == "ring" || kind == "double_ring" || kind == "ulysses_ring";
    return passes_on && ranks > 2 ? 1 : 0;
}

std::int32_t attention_parts(const plan::AttentionShape& shape, const plan::Sequence& sequence,
                             const std::vector<plan::Rows>& rows, std::int32_t group) {
    const bool seen_alike = sequence.window == 0 && sequence.documents.empty();
    if (!seen_alike || rows.size() < 2 || some_hold_none(rows)) return 1;
    std::int64_t least = shape.length;  // of what goes at once
    bool several = false;
    for (const plan::Rows& own : rows) {
        several |= own.size() > 1;
        for (const plan::Interval& run : own) least = std::min(least, run.size());
    }
    // Bytes: they take 12 µs on NVLink, where a transfer costs 4 more. Of several runs first tiles wait for all, so that
    // less of each pays; under a causal mask the first ones are the longest, and wait for rows of all ranks: of 4,096 rows of 32
    // heads on each of four H200s four parts take 1,104 µs, two 1,182.
    std::int64_t worth_sending = std::int64_t{several && sequence.causal ? 3 : 4} << 20;
    if (sequence.causal) worth_sending = worth_sending * (4 + static_cast<std::int64_t>(rows.size())) / 6;
    constexpr std::int32_t kMost = 4;
    if (group < 1 || shape.kv_heads % group != 0) return 1;
    const std::int64_t heads = shape.kv_heads / group;
    const std::int64_t head =
        shape.batch * least * shape.head_dim * static_cast<std::int64_t>(plan::size_of(shape.dtype));
    for (std::int32_t parts = kMost; parts > 1; --parts)
        if (heads % parts == 0 && heads / parts * head >= worth_sending) return parts;
    return 1;
}

plan::Mesh mesh_of(const AttentionTask& task) {
    Problem placed;
    placed.ranks = static_cast<std::int32_t>(task.rows.size());
    placed.nodes = task.nodes;
    return mesh_of(placed);
}

plan::AttentionOptions moved_by(const AttentionTask& task) {
    plan::AttentionOptions options;
    if (task.kind == "ring" || task.kind == "ulysses_ring") options.circulation = plan::Circulation::ring;
    if (task.kind == "double_ring") {
        options.circulation = plan::Circulation::double_ring;
        options.inner = task.inner;
    }
    if (task.kind == "ulysses") options.ulysses = static_cast<std::int32_t>(task.rows.size());
    if (task.kind == "ulysses_ring") options.ulysses = task.inner;
    options.split = task.split;
    return options;
}

std::int64_t most_at_once(const AttentionTask& task) {
    return *task.bounded > 0 ? *task.bounded : 2 * plan::most_rows(task.rows);
}

Result<std::int32_t> least_passes(const AttentionTask& task) {
    return plan::passes_within(task.rows, most_at_once(task));
}

std::string attention_objection(std::string_view kind, std::int32_t ranks, std::int64_t heads,
                                std::int32_t inner) {
    if (std::ranges::find(kAttentionKinds, kind) == kAttentionKinds.end())
        return fmt::format("there is no kind '{}': one of {}", kind, fmt::join(kAttentionKinds, ", "));
    const bool groups = kind == "ulysses_ring";
    if (groups && (inner <= 1 || inner >= ranks || ranks % inner != 0))
        return fmt::format(
            "ulysses_ring needs inner, a number of ranks between 1 and {} that divides them; got {}", ranks,
            inner);
    const std::int32_t group = groups ? inner : kind == "ulysses" ? ranks : 1;
    if (heads % group != 0)
        return fmt::format(
            "{} heads cannot be shared out over {} ranks; {} take any number of heads, and 'auto' takes one "
            "of "
            "them",
            heads, group, fmt::join(circulations(), ", "));
    if (kind == "double_ring" && inner != 0 && ranks % inner != 0)
        return fmt::format("{} ranks are no multiple of the inner ring's {}", ranks, inner);
    return {};
}

KindOverNodes kind_over_nodes(std::int32_t ranks, std::int32_t nodes) {
    const std::int32_t places = ranks / nodes;
    if (places == 1) return {"ring", 0};
    return {"double_ring", places};
}

std::vector<plan::Rows> usual_rows(const plan::Sequence& sequence, std::int32_t ranks,
                                   plan::Sharding sharding) {
    if (sharding == plan::Sharding::documents) {
        std::vector<plan::Rows> whole = plan::shard_rows(sequence, ranks, sharding, kLargestTile);
        if (!some_hold_none(whole)) return whole;
    }
    return plan::shard_rows(sequence, ranks, sharding, 1);
}

std::vector<plan::Rows> attention_rows(const plan::Sequence& sequence, std::int32_t ranks,
                                       plan::Sharding sharding, std::int64_t block, std::int32_t group,
                                       bool even) {
    std::vector<plan::Rows> made = plan::shard_rows(sequence, ranks, sharding, block);
    std::vector<plan::Rows> usual = usual_rows(sequence, ranks, sharding);
    // Where only the places differ, nobody would notice that a shard is one of the usual rows.
    if (even || sharding == plan::Sharding::documents ||
        std::ranges::equal(made, usual, {}, plan::num_rows, plan::num_rows))
        made = usual;
    if (!some_hold_none(made)) return made;
    return group == 1 || even ? usual : plan::shard_rows(sequence, ranks, sharding, block, group);
}

bool comes_in_passes(const AttentionTask& task) {
    if (task.bounded) return true;
    return task.kind != "ulysses" &&
           (some_hold_none(task.rows) ||
            !plan::cut_at_tiles(task.rows, task.shape.length, task.tile.block_m, sharing(task)));
}

Result<AttentionOutline> attention_outline(const AttentionTask& task) {
    if (task.parts < 0)
        return usage("parts: expected a number of them, or 0, got " + std::to_string(task.parts));
    const std::string why = attention_objection(task.kind, static_cast<std::int32_t>(task.rows.size()),
                                                task.shape.heads, task.inner);
    if (!why.empty()) return usage(fmt::format("kind '{}': {}", task.kind, why));
    if (task.gathered && (task.kind != "all_gather" || comes_in_passes(task)))
        return usage("unfused: it gathers all of K and V, for rows of whole tiles");
    SYNCOPATE_TAKE(AttentionOutline made, comes_in_passes(task) ? in_passes(task) : at_once(task));
    made.relays = relays_of(task.kind, static_cast<std::int32_t>(task.rows.size()));
    return made;
}

}  // namespace syncopate::ops
