#include "syncopate/fuse/inline.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fuse/kernel_accesses.hpp"
#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/sum_stores.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;
using plan::Region;

constexpr std::int32_t kMostStores = 16;  // of one tile

/// Why some tile's stores into `source` are not all in it, or not whole blocks of rows; empty if they are.
std::string objection_to_tiles(const Program& program, const kernel::Param& param, const Region& source) {
    for (const kernel::Tile& tile : program.kernel.tiles) {
        const std::vector<Region> boxes = kernel::boxes_written(tile, param.name);
        if (std::ranges::none_of(boxes, [&](const Region& box) { return overlaps(box, source); })) continue;
        for (const Region& box : boxes) {
            if (!contains(source, box)) {
                return "tile " + std::to_string(tile.id) + " writes " + to_string(box) +
                       ", not all of which is in the source: cut the source where tiles end";
            }
            if (std::string why = objection_to_rows(program.kernel, tile, param, box, Access::store);
                !why.empty())
                return why;
        }
    }
    return {};
}

/// Adds those that are not there yet.
void add_stores(std::vector<Place>& to, const std::vector<Place>& more) {
    for (const Place& store : more) {
        if (std::find(to.begin(), to.end(), store) == to.end()) to.push_back(store);
    }
}

}  // namespace

std::string store_objection(const Program& program, plan::OpRef ref, plan::Backend backend) {
    const plan::Op& op = program.plan.op(ref);
    const std::string name(plan::name_of(backend));
    const bool pushes = op.kind == plan::OpKind::push || op.kind == plan::OpKind::local;
    const kernel::Param* param = writer_of(program, op.src.tensor);
    if (!pushes || param == nullptr || !is_made(program.plan, ref.rank, op.src, true))
        return name +
               " sends what the kernel itself makes, as a push or local copy of the rank that makes it";
    if (!op.after.empty()) return name + " sends a tile when it is stored; this op waits for another one";
    if (op.reduce != plan::Reduce::none) return name + " does not reduce";
    if (param != only_param(program, op.src.tensor))
        return name + " cannot send what several parameters are bound to";
    if (param->read) return name + " cannot send " + param->name + ", which the kernel also reads or adds to";
    if (!rows_between(program.plan, op.src, op.dst)) {
        return name + " needs source and destination with rows of the same length at the same columns, not " +
               to_string(op.src.region) + " and " + to_string(op.dst.region);
    }
    std::string why = objection_to_calls(program.kernel, *param, backend, Access::store);
    if (why.empty()) why = objection_to_tiles(program, *param, op.src.region);
    return why.empty() ? why : name + ": " + why;
}

Result<InlineStores> store_inline(const Program& program, const Lowered& lowered,
                                  const Precedence& precedence, const Production& production,
                                  const Backends& backends) {
    const plan::Plan& plan = program.plan;
    InlineStores result;
    for (const auto& chunks : production.chunks) result.at.emplace_back(chunks.size());
    const auto backend_of = [&](std::int32_t id) {
        const plan::OpRef ref = precedence.ops[static_cast<std::size_t>(id)];
        return backends[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    };
    const auto fail = [&](std::int32_t id, std::string message) {
        return error_at(precedence.ops[static_cast<std::size_t>(id)], std::move(message));
    };
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        if (!is_inline(backend_of(id))) continue;
        const plan::OpRef ref = precedence.ops[static_cast<std::size_t>(id)];
        if (follows_sums(plan, ref)) continue;  // a sum stores it
        if (is_fetched(plan, ref)) continue;    // tiles read it where it is
        const plan::Op& op = plan.op(ref);
        const StoreForm form{op.src.tensor, backend_of(id) == Backend::tma_inline, 1};
        if (result.form && (result.form->tensor != form.tensor || result.form->by_row != form.by_row))
            return fail(id, "one kernel sends one tensor inline, in one way");
        result.form = form;
        for (const MadeRef& need : production.needs[static_cast<std::size_t>(id)]) {
            result.at[static_cast<std::size_t>(need.rank)][static_cast<std::size_t>(need.index)].push_back(
                {op.destination_rank(ref.rank), op.dst.tensor, *rows_between(plan, op.src, op.dst)});
        }
    }
    if (!result.form) return result;
    // Who else reads the kernel's own place: other ops, and who asks for it at the end, unless an op brings
    // that.
    std::vector<std::vector<plan::Chunk>> kept(plan.ranks.size());
    for (const plan::Holding& holding : plan.final) {
        std::vector<Region> left{holding.chunk.region};
        for (const plan::OpRef ref : precedence.ops) {
            const plan::Op& op = plan.op(ref);
            if (op.destination_rank(ref.rank) != holding.rank || op.dst.tensor != holding.chunk.tensor)
                continue;
            take(left, op.dst.region);
        }
        for (Region& part : left)
            kept[static_cast<std::size_t>(holding.rank)].push_back({holding.chunk.tensor, std::move(part)});
    }
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        const plan::OpRef ref = precedence.ops[static_cast<std::size_t>(id)];
        if (is_inline(backend_of(id))) continue;
        kept[static_cast<std::size_t>(plan.op(ref).source_rank(ref.rank))].push_back(plan.op(ref).src);
        const auto own = lowered.own.find(ref);
        if (own != lowered.own.end() && own->second >= 0)
            kept[static_cast<std::size_t>(ref.rank)].push_back(plan.op(ref).dst);
    }
    for (std::size_t rank = 0; rank < result.at.size(); ++rank) {
        for (std::size_t index = 0; index < result.at[rank].size(); ++index) {
            std::vector<Place>& stores = result.at[rank][index];
            const plan::Chunk& chunk = production.chunks[rank][index];
            if (stores.empty()) continue;
            const bool keeps = std::any_of(kept[rank].begin(), kept[rank].end(),
                                           [&](const plan::Chunk& other) { return overlaps(other, chunk); });
            if (keeps) stores.insert(stores.begin(), {static_cast<std::int32_t>(rank), chunk.tensor, 0});
        }
        std::vector<std::vector<Place>> of_tile(program.kernel.tiles.size());
        for (std::size_t index = 0; index < result.at[rank].size(); ++index) {
            for (const std::int64_t tile : production.makers[rank][index])
                add_stores(of_tile[static_cast<std::size_t>(tile)], result.at[rank][index]);
        }
        for (std::size_t tile = 0; tile < of_tile.size(); ++tile) {
            const auto copies = static_cast<std::int32_t>(of_tile[tile].size());
            if (copies > kMostStores) {
                Error error{"tile " + std::to_string(tile) + " would be stored in " + std::to_string(copies) +
                            " places, and inline transfers store in at most " + std::to_string(kMostStores)};
                error.location.rank = static_cast<std::int32_t>(rank);
                return error;
            }
            result.form->copies = std::max(result.form->copies, copies);
        }
    }
    return result;
}

}  // namespace syncopate::fuse
