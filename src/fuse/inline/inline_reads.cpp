#include "syncopate/fuse/inline/inline_reads.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "fuse/inline/kernel_accesses.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;
using plan::Region;

std::string op_name(plan::OpRef ref) {
    return "rank " + std::to_string(ref.rank) + " op " + std::to_string(ref.index);
}

/// Where the tiles of `ref.rank` find what the op would bring; nullopt where rows differ in length.
std::optional<Place> place_of(const plan::Plan& plan, plan::OpRef ref) {
    const plan::Op& op = plan.op(ref);
    const auto rows = rows_between(plan, op.dst, op.src);
    if (!rows || plan.tensors[at(op.src.tensor)].shape.size() != plan.tensors[at(op.dst.tensor)].shape.size())
        return std::nullopt;
    return Place{op.source_rank(ref.rank), op.src.tensor, *rows};
}

/// Whether the end of the call asks for some of the rank's chunk.
bool is_asked_for(const MemoryUses& uses, std::int32_t rank, const plan::Chunk& chunk) {
    return std::ranges::any_of(uses.asked[at(rank)],
                               [&](const plan::Chunk* asked) { return overlaps(*asked, chunk); });
}

/// Whether some op writes into the rank's chunk.
bool is_overwritten(const plan::Plan& plan, const MemoryUses& uses, std::int32_t rank,
                    const plan::Chunk& chunk) {
    return std::ranges::any_of(uses.writing[at(rank)],
                               [&](plan::OpRef op) { return overlaps(plan.op(op).dst, chunk); });
}

/// What else has to do with the destination of the op, so that it has to be there; empty if nothing has.
std::string objection_to_others(const plan::Plan& plan, const MemoryUses& uses, plan::OpRef ref) {
    const plan::Op& op = plan.op(ref);
    if (is_asked_for(uses, ref.rank, op.dst)) {
        return "the plan asks for " + plan.tensors[at(op.dst.tensor)].name + to_string(op.dst.region) +
               " at the end, and what tiles fetch stays nowhere: make it transient";
    }
    std::optional<plan::OpRef> first;
    std::string why;
    const auto object = [&](plan::OpRef other, const char* what) {
        if (other == ref || (first && *first <= other)) return;
        first = other;
        why = op_name(other) + what;
    };
    if (const auto& other = uses.first_after[at(ref.rank)][at(ref.index)])
        object(*other, " waits for it, and tiles fetch whenever they read");
    for (const plan::OpRef other : uses.reading[at(ref.rank)]) {
        if (overlaps(plan.op(other).src, op.dst))
            object(other, " sends it on, and what tiles fetch stays nowhere");
    }
    for (const plan::OpRef other : uses.writing[at(ref.rank)]) {
        if (overlaps(plan.op(other).dst, op.dst)) object(other, " writes there, too");
    }
    return why;
}

/// What of `box` is in none of `regions`.
std::vector<Region> outside(const Region& box, const std::vector<Region>& regions) {
    if (std::ranges::any_of(regions, [&](const Region& region) { return contains(region, box); })) return {};
    std::vector<Region> left{box};
    for (const Region& region : regions) take(left, region);
    return left;
}

/// The boxes that a tile reads through `param`, if one of them reaches into `region`; else none.
std::span<const Region> boxes_reaching(const kernel::Tile& tile, const kernel::Param& param,
                                       const Region& region) {
    const std::span<const Region> boxes = kernel::boxes_read(tile, param.name);
    const bool reaches = std::ranges::any_of(boxes, [&](const Region& box) { return overlaps(box, region); });
    return reaches ? boxes : std::span<const Region>();
}

/// Why some tile that reads in the op's destination does not read all of `param` from where the op does, or
/// not whole blocks of rows; empty if all do.
std::string objection_to_tiles(const BoundKernel& program, const kernel::Param& param, plan::OpRef ref) {
    const plan::Plan& plan = program.plan;
    const plan::Op& op = plan.op(ref);
    const std::optional<Place> place = place_of(plan, ref);
    std::vector<Region> alike;  // what this op and others bring from the same place
    const std::vector<plan::Op>& list = plan.ranks[at(ref.rank)];
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.size()); ++index) {
        const plan::OpRef other{ref.rank, index};
        if (is_fetched(plan, other) && plan.op(other).dst.tensor == op.dst.tensor &&
            place_of(plan, other) == place)
            alike.push_back(plan.op(other).dst.region);
    }
    for (const kernel::Tile& tile : program.kernel.tiles) {
        for (const Region& box : boxes_reaching(tile, param, op.dst.region)) {
            if (const std::vector<Region> elsewhere = outside(box, alike); !elsewhere.empty()) {
                return "tile " + std::to_string(tile.id) + " reads " + to_string(box) + ", of which " +
                       to_string(elsewhere.front()) + " is elsewhere: cut where tiles end";
            }
            if (std::string why = objection_to_rows(program.kernel, tile, param, box, Access::load);
                !why.empty())
                return why;
        }
    }
    return {};
}

/// Why the kernel cannot load through sy_own instead; empty if it can.
std::string objection_to_own(const BoundKernel& program, std::int32_t tensor, Backend backend) {
    const kernel::Param& param = *only_param(program, tensor);
    for (const kernel::ParamAccess& load : program.kernel.accesses) {
        if (load.param != param.name || load.stores) continue;
        if (!load.not_own.empty()) return load.not_own;
        if (backend != Backend::ldst_inline && !load.given)
            return "the kernel is not given the descriptor through which it loads " + param.name;
    }
    if (backend == Backend::ldst_inline) return {};
    if (program.plan.tensors[at(tensor)].shape.size() != 2) return "the descriptor does not have two axes";
    return {};
}

/// What rank `rank` holds of `tensor` from the start, if nobody else has to do with it there but to read it;
/// nullopt if somebody has, or the end of the call asks for it.
std::optional<std::vector<Region>> given_only(const plan::Plan& plan, const MemoryUses& uses,
                                              std::int32_t rank, std::int32_t tensor) {
    std::vector<Region> given;
    for (const plan::Chunk* held : uses.given[at(rank)]) {
        if (held->tensor != tensor) continue;
        if (is_overwritten(plan, uses, rank, *held) || is_asked_for(uses, rank, *held)) return std::nullopt;
        given.push_back(held->region);
    }
    return given;
}

/// Those who read of what a rank was given.
struct GivenReaders {
    std::vector<std::int64_t> tiles;  ///< by their ids: they read nothing else, and whole blocks of rows
    std::vector<Region> borders;      ///< what the others read of it
};

/// Adds what of `box` is in `given`, and not yet in `to`.
void add_common(std::vector<Region>& to, const Region& box, const std::vector<Region>& given) {
    for (const Region& region : given) {
        const std::optional<Region> common = plan::intersect(region, box);
        if (!common) continue;
        for (Region& part : outside(*common, to)) to.push_back(std::move(part));
    }
}

/// The tiles that read of `given` through `param`.
GivenReaders readers_of(const kernel::Kernel& kernel, const kernel::Param& param,
                        const std::vector<Region>& given) {
    GivenReaders readers;
    std::span<const Region> last;  // of the tile before, which mostly reads the same
    bool reads = false, only = false;
    for (const kernel::Tile& tile : kernel.tiles) {
        const std::span<const Region> boxes = kernel::boxes_read(tile, param.name);
        if (boxes.data() != last.data() || boxes.size() != last.size()) {
            last = boxes;
            reads = std::ranges::any_of(boxes, [&](const Region& box) {
                return std::ranges::any_of(given,
                                           [&](const Region& region) { return overlaps(region, box); });
            });
            only = reads && std::ranges::all_of(boxes, [&](const Region& box) {
                       return outside(box, given).empty() &&
                              objection_to_rows(kernel, tile, param, box, Access::load).empty();
                   });
            for (const Region& box : boxes) {
                if (reads && !only) add_common(readers.borders, box, given);
            }
        }
        if (only) readers.tiles.push_back(tile.id);
    }
    return readers;
}

/// What tiles can read of one tensor where the user has it; nullopt if they cannot.
std::optional<InlineLoads> load_given(const BoundKernel& program, const MemoryUses& uses,
                                      std::int32_t tensor) {
    const kernel::Param* param = only_param(program, tensor);
    if (param == nullptr || !param->read || param->written) return std::nullopt;
    const auto fits = [&](Backend backend) {
        return objection_to_calls(program.kernel, *param, backend, Access::load).empty() &&
               objection_to_own(program, tensor, backend).empty();
    };
    const bool by_row = fits(Backend::tma_inline);
    if (!by_row && !fits(Backend::ldst_inline)) return std::nullopt;
    InlineLoads loads{.by = Reach{tensor, by_row, true}};
    bool any = false;
    for (std::int32_t rank = 0; rank < program.plan.num_ranks(); ++rank) {
        const auto given = given_only(program.plan, uses, rank, tensor);
        if (!given) return std::nullopt;
        GivenReaders readers = readers_of(program.kernel, *param, *given);
        auto& at = loads.at.emplace_back(program.kernel.tiles.size());
        for (const std::int64_t tile : readers.tiles)
            at[static_cast<std::size_t>(tile)] = Place{rank, tensor, 0};
        auto& borders = loads.borders.emplace_back();
        for (Region& region : readers.borders) borders.push_back({tensor, std::move(region)});
        any = any || !readers.tiles.empty();
    }
    return any ? std::optional(std::move(loads)) : std::nullopt;
}

}  // namespace

bool is_fetched(const plan::Plan& plan, plan::OpRef ref) {
    const plan::Op& op = plan.op(ref);
    return op.kind == plan::OpKind::pull ||
           (op.kind == plan::OpKind::local && !is_made(plan, ref.rank, op.src, false));
}

MemoryUses::MemoryUses(const plan::Plan& plan)
    : reading(plan.ranks.size()),
      writing(plan.ranks.size()),
      first_after(plan.ranks.size()),
      given(plan.ranks.size()),
      asked(plan.ranks.size()) {
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
        first_after[rank].resize(plan.ranks[rank].size());
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const std::vector<plan::Op>& list = plan.ranks[at(rank)];
        for (std::int32_t index = 0; index < std::ssize(list); ++index) {
            const plan::OpRef ref{rank, index};
            const plan::Op& op = list[at(index)];
            reading[at(op.source_rank(rank))].push_back(ref);
            writing[at(op.destination_rank(rank))].push_back(ref);
            for (const plan::OpRef before : op.after) {
                std::optional<plan::OpRef>& first = first_after[at(before.rank)][at(before.index)];
                if (!first) first = ref;
            }
        }
    }
    for (const plan::Holding& held : plan.initial) given[at(held.rank)].push_back(&held.chunk);
    for (const plan::Holding& held : plan.final) asked[at(held.rank)].push_back(&held.chunk);
}

std::string load_objection(const BoundKernel& program, const MemoryUses& uses, plan::OpRef ref,
                           Backend backend) {
    const plan::Plan& plan = program.plan;
    const plan::Op& op = plan.op(ref);
    const std::string name = std::string(plan::name_of(backend)) + ": ";
    const std::string& tensor = plan.tensors[at(op.dst.tensor)].name;
    const kernel::Param* param = only_param(program, op.dst.tensor);
    if (param == nullptr || !param->read)
        return name + "tiles fetch what they read, through one parameter, and none reads " + tensor;
    if (param->written) return name + param->name + " is also written, or added to, by the kernel";
    if (op.reduce != plan::Reduce::none) return name + "a load does not reduce";
    if (is_made(plan, op.source_rank(ref.rank), op.src, false))
        return name + "a kernel makes what is fetched: push it from there";
    if (std::string why = objection_to_others(plan, uses, ref); !why.empty()) return name + why;
    if (!place_of(plan, ref)) {
        return name + "source and destination need rows of the same length at the same columns, not " +
               to_string(op.src.region) + " and " + to_string(op.dst.region);
    }
    std::string why = objection_to_calls(program.kernel, *param, backend, Access::load);
    if (why.empty()) why = objection_to_tiles(program, *param, ref);
    return why.empty() ? why : name + why;
}

std::string own_load_objection(const BoundKernel& program, const MemoryUses& uses, plan::OpRef ref,
                               Backend backend) {
    const plan::Plan& plan = program.plan;
    const plan::Op& op = plan.op(ref);
    const std::string name = std::string(plan::name_of(backend)) + ": ";
    if (op.kind != plan::OpKind::local) return name + "it is not from the rank itself";
    const bool held = std::ranges::any_of(uses.given[at(ref.rank)], [&](const plan::Chunk* given) {
        return given->tensor == op.src.tensor && contains(given->region, op.src.region);
    });
    if (!held) return name + "the rank does not hold all of " + to_string(op.src.region) + " initially";
    if (is_overwritten(plan, uses, ref.rank, op.src)) return name + "another op writes what it reads";
    if (std::string why = load_objection(program, uses, ref, backend); !why.empty()) return why;
    std::string why = objection_to_own(program, op.dst.tensor, backend);
    return why.empty() ? why : name + why;
}

namespace {

/// Where each tile loads for the ops that it carries out.
Result<InlineLoads> load_ops(const BoundKernel& program, const MemoryUses& uses, const Graph& graph,
                             const Backends& backends) {
    const plan::Plan& plan = program.plan;
    InlineLoads result;
    result.at.resize(plan.ranks.size());
    std::vector<plan::OpRef> ops;
    for (NodeId op = 0; op < graph.num_ops(); ++op) {
        if (graph.carrier(op) == Carrier::tile_loads) ops.push_back(graph.ref(op));
    }
    const auto backend_of = [&](plan::OpRef ref) { return backends[at(ref.rank)][at(ref.index)]; };
    const auto fail = [&](plan::OpRef ref, const std::string& why) {
        return error_at(ref, std::string(plan::name_of(backend_of(ref))) + ": " + why);
    };
    std::vector<std::vector<Region>> fetched(plan.ranks.size());
    for (const plan::OpRef ref : ops) {
        const Reach by{plan.op(ref).dst.tensor, backend_of(ref) == Backend::tma_inline};
        if (result.by && result.by != by) return fail(ref, "one kernel fetches one tensor, in one way");
        result.by = by;
        fetched[at(ref.rank)].push_back(plan.op(ref).dst.region);
    }
    for (const plan::OpRef ref : ops) {
        const kernel::Param& param = *only_param(program, result.by->tensor);
        std::vector<std::optional<Place>>& at = result.at[static_cast<std::size_t>(ref.rank)];
        at.resize(program.kernel.tiles.size());
        for (const kernel::Tile& tile : program.kernel.tiles) {
            const std::span<const Region> boxes = boxes_reaching(tile, param, plan.op(ref).dst.region);
            for (const Region& box : boxes) {  // all of it, whatever else could bring the rest
                const auto rest = outside(box, fetched[static_cast<std::size_t>(ref.rank)]);
                if (rest.empty()) continue;
                return fail(ref, "tile " + std::to_string(tile.id) + " reads " + to_string(box) +
                                     ", of which " + to_string(rest.front()) +
                                     " is brought here by another op: fetch that, too");
            }
            if (!boxes.empty()) at[static_cast<std::size_t>(tile.id)] = place_of(plan, ref);
        }
    }
    if (result.by) {
        std::map<std::int32_t, Place> places;  // by rank: one parameter leads to one
        result.by->own = std::ranges::all_of(ops, [&](plan::OpRef ref) {
            const std::optional<Place> place = place_of(plan, ref);
            return own_load_objection(program, uses, ref, backend_of(ref)).empty() &&
                   places.try_emplace(ref.rank, *place).first->second == *place;
        });
    }
    return result;
}

}  // namespace

Result<InlineLoads> load_inline(const StagedProgram& program, const Lowered& lowered, const Graph& graph,
                                const Backends& backends) {
    const Stage& first = program.stages.front();
    const BoundKernel one(first, lowered.plan);
    const MemoryUses uses(lowered.plan);
    auto loads = load_ops(one, uses, graph, backends);
    if (!loads || loads->by || program.stages.size() > 1) return loads;
    for (std::size_t tensor = 0; tensor < lowered.plan.tensors.size(); ++tensor) {
        if (auto given = load_given(one, uses, static_cast<std::int32_t>(tensor))) return *std::move(given);
    }
    return loads;
}

}  // namespace syncopate::fuse
