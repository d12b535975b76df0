#include "syncopate/fuse/inline.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fuse/kernel_stores.hpp"
#include "syncopate/fuse/sum_stores.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;
using plan::Region;

constexpr std::int32_t kMostStores = 16;  // of one tile

/// Rows from a place in the source to the same place in the destination, in rows of the source's tensor;
/// nullopt when the two are not laid out alike.
std::optional<std::int64_t> rows_between(const plan::Plan& plan, const plan::Op& op) {
    const std::vector<std::int64_t>& from = plan.tensors[static_cast<std::size_t>(op.src.tensor)].shape;
    const std::vector<std::int64_t>& to = plan.tensors[static_cast<std::size_t>(op.dst.tensor)].shape;
    const std::size_t extra = to.size() - from.size();  // a staging tensor has its slots before the rest
    if (from.empty() || to.size() < from.size() || extra > 1) return std::nullopt;
    if (extra == 1 && op.dst.region[0].size() != 1) return std::nullopt;
    for (std::size_t axis = 0; axis < from.size(); ++axis) {
        const plan::Interval& source = op.src.region[axis];
        const plan::Interval& target = op.dst.region[axis + extra];
        if (source.size() != target.size()) return std::nullopt;
        if (axis > 0 && (from[axis] != to[axis + extra] || source.begin != target.begin)) return std::nullopt;
    }
    const std::int64_t slot = extra == 1 ? op.dst.region[0].begin * to[1] : 0;
    return slot + op.dst.region[extra].begin - op.src.region[0].begin;
}

/// Adds those that are not there yet.
void add_stores(std::vector<Store>& to, const std::vector<Store>& more) {
    for (const Store& store : more) {
        if (std::find(to.begin(), to.end(), store) == to.end()) to.push_back(store);
    }
}

}  // namespace

std::string inline_objection(const Program& program, plan::OpRef ref, plan::Backend backend) {
    const plan::Op& op = program.plan.op(ref);
    const std::string name(plan::name_of(backend));
    const bool pushes = op.kind == plan::OpKind::push || op.kind == plan::OpKind::local;
    const kernel::Param* param = writer_of(program, op.src.tensor);
    const bool produced = std::any_of(
        program.plan.produced.begin(), program.plan.produced.end(), [&](const plan::Holding& held) {
            return held.rank == ref.rank && held.chunk.tensor == op.src.tensor &&
                   contains(held.chunk.region, op.src.region);
        });
    if (!pushes || param == nullptr || !produced)
        return name +
               " sends what the kernel itself makes, as a push or local copy of the rank that makes it";
    if (!op.after.empty()) return name + " sends a tile when it is stored; this op waits for another one";
    if (op.reduce != plan::Reduce::none) return name + " does not reduce";
    if (param->read) return name + " cannot send " + param->name + ", which the kernel also reads or adds to";
    const bool descriptor = param->kind == kernel::ParamKind::descriptor;
    if (descriptor != (backend == Backend::tma_inline)) {
        return name + " is for stores through " + (descriptor ? "pointers" : "descriptors made on the host") +
               ", and " + param->name + " is a " +
               (descriptor ? "descriptor: use tma_inline" : "pointer: use ldst_inline");
    }
    if (!rows_between(program.plan, op)) {
        return name + " needs source and destination with rows of the same length at the same columns, not " +
               to_string(op.src.region) + " and " + to_string(op.dst.region);
    }
    std::string why = objection_to_stores(program.kernel, *param, backend);
    if (why.empty()) why = objection_to_tiles(program, *param, op.src, backend);
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
        Error error{std::move(message)};
        error.location.rank = precedence.ops[static_cast<std::size_t>(id)].rank;
        error.location.op = precedence.ops[static_cast<std::size_t>(id)].index;
        return error;
    };
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        if (!is_inline(backend_of(id))) continue;
        const plan::OpRef ref = precedence.ops[static_cast<std::size_t>(id)];
        if (follows_sums(plan, ref)) continue;  // a sum stores it
        const plan::Op& op = plan.op(ref);
        const StoreForm form{op.src.tensor, backend_of(id) == Backend::tma_inline, 1};
        if (result.form && (result.form->tensor != form.tensor || result.form->by_row != form.by_row))
            return fail(id, "one kernel sends one tensor inline, in one way");
        result.form = form;
        for (const MadeRef& need : production.needs[static_cast<std::size_t>(id)]) {
            result.at[static_cast<std::size_t>(need.rank)][static_cast<std::size_t>(need.index)].push_back(
                {op.destination_rank(ref.rank), op.dst.tensor, *rows_between(plan, op)});
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
            std::vector<Region> rest;
            for (const Region& part : left) {
                for (Region& outside : subtract(part, op.dst.region)) rest.push_back(std::move(outside));
            }
            left = std::move(rest);
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
            std::vector<Store>& stores = result.at[rank][index];
            const plan::Chunk& chunk = production.chunks[rank][index];
            if (stores.empty()) continue;
            const bool keeps =
                std::any_of(kept[rank].begin(), kept[rank].end(), [&](const plan::Chunk& other) {
                    return other.tensor == chunk.tensor && overlaps(other.region, chunk.region);
                });
            if (keeps) stores.insert(stores.begin(), {static_cast<std::int32_t>(rank), chunk.tensor, 0});
        }
        std::vector<std::vector<Store>> of_tile(program.kernel.tiles.size());
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
