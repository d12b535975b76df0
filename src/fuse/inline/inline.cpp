#include "syncopate/fuse/inline/inline.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "fuse/inline/kernel_accesses.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;
using plan::Region;

constexpr std::size_t kMostStores = 16;  // of one tile

/// Why some tile's stores into `source` are not all in it, or not whole blocks of rows; empty if they are.
std::string objection_to_tiles(const BoundKernel& program, const kernel::Param& param, const Region& source) {
    for (const kernel::Tile& tile : program.kernel.tiles) {
        const std::span<const Region> boxes = kernel::boxes_written(tile, param.name);
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

std::string store_objection(const BoundKernel& program, plan::OpRef ref, plan::Backend backend) {
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

const kernel::Param* sender_of(const StagedProgram& program, const plan::Op& op) {
    for (const Stage& stage : program.stages) {
        const kernel::Param* param = writer_of(BoundKernel(stage, program.plan), op.src.tensor);
        if (param != nullptr && param->sent) return param;
    }
    return nullptr;
}

std::string send_objection(const StagedProgram& program, const plan::Plan& plan, plan::OpRef ref) {
    const plan::Op& op = plan.op(ref);
    const std::string name = sender_of(program, op)->name;
    if (op.kind != plan::OpKind::push || !is_made(plan, ref.rank, op.src, true))
        return "what the kernel stores through " + name +
               " it sends itself: as a push of the rank that makes it, and all of what is pushed";
    if (!op.after.empty())
        return "the kernel sends " + name + " when it is stored; this op waits for another one";
    if (op.reduce != plan::Reduce::none) return "the kernel sends " + name + ", and does not reduce";
    return {};
}

namespace {

/// The places at which the tiles of each chunk store for ops, and the one way in which a kernel can store.
Result<InlineStores> places_of(const StagedProgram& program, const plan::Plan& plan, const Graph& graph,
                               const Backends& backends) {
    InlineStores result;
    for (const auto& made : graph.made) {
        result.at.emplace_back(made.size());
        result.sent.emplace_back(made.size());
    }
    for (NodeId id = 0; id < graph.num_ops(); ++id) {
        if (graph.carrier(id) != Carrier::tile_stores) continue;
        const plan::OpRef ref = graph.ref(id);
        const plan::Op& op = plan.op(ref);
        if (sender_of(program, op) != nullptr) {
            for (const Edge& edge : graph.in[at(id)]) {
                if (graph.is_op(edge.from)) continue;
                const Node& chunk = graph[edge.from];
                result.sent[at(chunk.rank)][at(chunk.index)].push_back(op.destination_rank(ref.rank));
            }
            continue;
        }
        const Backend backend = backends[at(ref.rank)][at(ref.index)];
        const Reach by{op.src.tensor, backend == Backend::tma_inline};
        if (result.by && *result.by != by)
            return error_at(ref, "one kernel sends one tensor inline, in one way");
        result.by = by;
        for (const Edge& edge : graph.in[at(id)]) {
            if (graph.is_op(edge.from)) continue;
            const Node& chunk = graph[edge.from];
            result.at[at(chunk.rank)][at(chunk.index)].push_back(
                {op.destination_rank(ref.rank), op.dst.tensor, *rows_between(plan, op.src, op.dst)});
        }
    }
    return result;
}

/// By rank, who else reads the kernel's own place: other ops, and who asks for it at the end, unless an op
/// brings that.
std::vector<std::vector<plan::Chunk>> kept_in_place(const Lowered& lowered, const Graph& graph) {
    const plan::Plan& plan = lowered.plan;
    std::vector<std::vector<plan::Chunk>> kept(plan.ranks.size());
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Region*>>
        brought;  // by rank and tensor
    for (NodeId id = 0; id < graph.num_ops(); ++id) {
        const plan::Op& op = plan.op(graph.ref(id));
        brought[{op.destination_rank(graph[id].rank), op.dst.tensor}].push_back(&op.dst.region);
    }
    for (const plan::Holding& holding : plan.final) {
        std::vector<Region> left{holding.chunk.region};
        const auto found = brought.find({holding.rank, holding.chunk.tensor});
        if (found != brought.end()) {
            for (const Region* region : found->second) take(left, *region);
        }
        for (Region& part : left) kept[at(holding.rank)].push_back({holding.chunk.tensor, std::move(part)});
    }
    for (NodeId id = 0; id < graph.num_ops(); ++id) {
        const Carrier carrier = graph.carrier(id);
        if (carrier != Carrier::own && carrier != Carrier::programs && carrier != Carrier::sum_loads)
            continue;
        const plan::OpRef ref = graph.ref(id);
        const plan::Op& op = plan.op(ref);
        kept[at(op.source_rank(ref.rank))].push_back(op.src);
        const auto own = lowered.own.find(ref);
        if (own != lowered.own.end() && own->second >= 0) kept[at(ref.rank)].push_back(op.dst);
    }
    return kept;
}

}  // namespace

Result<InlineStores> store_inline(const StagedProgram& program, const Lowered& lowered, const Graph& graph,
                                  const Backends& backends) {
    auto result = places_of(program, lowered.plan, graph, backends);
    if (!result || !result->by) return result;
    const std::vector<std::vector<plan::Chunk>> kept = kept_in_place(lowered, graph);
    for (std::size_t rank = 0; rank < result->at.size(); ++rank) {
        std::vector<std::vector<Place>> of_tile(program.stages.front().kernel.tiles.size());
        for (std::size_t index = 0; index < result->at[rank].size(); ++index) {
            std::vector<Place>& stores = result->at[rank][index];
            const Made& made = graph.made[rank][index];
            if (!stores.empty() && std::ranges::any_of(kept[rank], [&](const plan::Chunk& other) {
                    return overlaps(other, made.chunk);
                }))
                stores.insert(stores.begin(), {static_cast<std::int32_t>(rank), made.chunk.tensor, 0});
            for (const std::int64_t tile : made.makers) add_stores(of_tile[at(tile)], stores);
        }
        for (std::size_t tile = 0; tile < of_tile.size(); ++tile) {
            const std::size_t places = of_tile[tile].size();
            if (places <= kMostStores) continue;
            return plan::error_at(
                {static_cast<std::int32_t>(rank), -1},
                "tile " + std::to_string(tile) + " would be stored in " + std::to_string(places) +
                    " places, and inline transfers store in at most " + std::to_string(kMostStores));
        }
    }
    return result;
}

}  // namespace syncopate::fuse
