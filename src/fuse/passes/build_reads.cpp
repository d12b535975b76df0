#include "fuse/passes/build_reads.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "fuse/passes/memory_index.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Interval;
using plan::Region;

/// Something that puts data into a region of a rank's memory: an op, or what comes before all ops, which is initial or
/// written by an earlier stage.
using Supply = MemoryIndex::Entry;

/// A parameter that is bound and read.
struct BoundParam {
    std::string name;
    std::int32_t tensor = -1;
    std::vector<kernel::LoopSlice> slices;  ///< how the reduction loop walks it
};

/// The iterations of a loop of `trips` that reach into `region`, of what one reads; empty: none does.
Interval iterations_of(const kernel::LoopRead& read, const Region& region, std::int64_t trips) {
    if (read.dim < 0 || read.step == 0) return {0, trips};
    const auto floor_div = [](std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
    // Iteration i reads [base + i step, base + i step + extent) along dim; with a step below 0, from the end.
    const Interval along = region[read.dim];
    const std::int64_t step = read.step > 0 ? read.step : -read.step;
    const std::int64_t base = read.step > 0 ? read.base : read.base + read.step * (trips - 1);
    const std::int64_t first = floor_div(along.begin - base - read.extent, step) + 1;
    const std::int64_t last = floor_div(along.end - 1 - base, step);
    const Interval found{std::clamp<std::int64_t>(first, 0, trips),
                         std::clamp<std::int64_t>(last + 1, 0, trips)};
    return read.step > 0 ? found : Interval{trips - found.end, trips - found.begin};
}

struct KeyHash {
    std::size_t operator()(const std::vector<std::int64_t>& key) const {
        std::size_t hash = 0xcbf29ce484222325ULL;
        for (const std::int64_t value : key)
            hash = (hash ^ static_cast<std::size_t>(value)) * 0x100000001b3ULL;
        return hash;
    }
};

/// The first iteration whose slice of the parameter reaches into `region`; 0 where that cannot be told.
std::int64_t first_iteration(const BoundParam& param, const Region& box, const Region& region,
                             std::int64_t trips) {
    if (param.slices.size() != 1) return 0;
    const kernel::LoopSlice& slice = param.slices.front();
    if (slice.step <= 0 || trips <= 0) return 0;
    const Interval whole{slice.base, slice.base + (trips - 1) * slice.step + slice.extent};
    if (box[slice.dim].begin < whole.begin || box[slice.dim].end > whole.end)
        return 0;  // also read outside the loop
    const std::int64_t begin = std::max(box[slice.dim].begin, region[slice.dim].begin);
    const std::int64_t ahead =
        begin - slice.base - slice.extent;  // iteration i reaches it iff i * step > ahead
    return ahead < 0 ? 0 : std::min(ahead / slice.step + 1, trips - 1);
}

bool is_produced(const plan::Plan& plan, std::int32_t tensor) {
    return std::any_of(plan.produced.begin(), plan.produced.end(),
                       [&](const plan::Holding& holding) { return holding.chunk.tensor == tensor; });
}

/// Tiles that read the same boxes.
struct Class {
    std::int64_t first_tile = 0;
    std::vector<std::vector<Region>> boxes;  ///< by bound parameter
    /// By bound parameter, where the tiles' loops differ: null where it is read in none.
    std::vector<std::shared_ptr<const std::vector<kernel::LoopRead>>> reads{};
    std::vector<std::int64_t> trips{};  ///< by loop
};

class Reads {
public:
    Reads(const BoundKernel& program, std::size_t stage, Graph& graph)
        : kernel_(program.kernel), plan_(program.plan), graph_(graph), stage_(stage) {
        for (const auto& [name, tensor] : program.bindings) {
            const kernel::Param* param = kernel_.find_param(name);
            if (param == nullptr || !param->read) continue;
            BoundParam bound{name, *plan_.find_tensor(tensor), {}};
            // What a kernel makes and also reads (as atomic_add does) is its own, whatever arrives there
            // later.
            if (param->written && is_produced(plan_, bound.tensor)) continue;
            if (!kernel_.loops.empty() && !kernel_.tiles_differ) {
                for (const kernel::LoopSlice& slice : kernel_.loops.front().slices) {
                    if (slice.param == name) bound.slices.push_back(slice);
                }
            }
            params_.push_back(std::move(bound));
        }
        trips_ = kernel_.loops.empty() || kernel_.tiles_differ ? 0 : kernel_.loops.front().trips;
        ranged_ = kernel_.tiles_differ || std::ranges::any_of(kernel_.loops, &kernel::Loop::any_order);
    }

    Status run(const Written& written) {
        classify();
        std::vector<std::vector<Supply>> supplies = find_supplies(written);
        Graph::StageNodes& nodes = graph_.stages[stage_];
        nodes.num_classes = static_cast<std::int32_t>(classes_.size());
        nodes.ranged = ranged_;
        if (ranged_) {
            for (const Class& tiles : classes_) nodes.trips.push_back(tiles.trips);
        }
        const std::vector<std::vector<bool>> run = classes_run();
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            nodes.first.push_back(static_cast<NodeId>(graph_.nodes.size()));
            for (std::size_t c = 0; c < classes_.size(); ++c) {
                graph_.nodes.push_back({Node::Kind::tiles, rank, static_cast<std::int32_t>(stage_),
                                        static_cast<std::int32_t>(c)});
                graph_.in.emplace_back();
                nodes.loads.emplace_back();
                nodes.awaits.emplace_back();
                if (ranged_) nodes.uses.emplace_back();
            }
            const MemoryIndex index(std::move(supplies[rank]));
            for (const BoundParam& param : params_) {
                if (Status status = connect(rank, param, index, run); !status) return status;
            }
            if (ranged_) {
                for (std::size_t c = 0; c < classes_.size(); ++c)
                    add_uses_as_edges(nodes.first.back() + static_cast<NodeId>(c));
            }
            for (std::size_t c = 0; c < classes_.size(); ++c)
                keep_earliest(graph_.in[static_cast<std::size_t>(nodes.first.back()) + c]);
        }
        return Done{};
    }

private:
    /// Classes in the order of their first tile.
    void classify() {
        std::unordered_map<std::vector<std::int64_t>, std::int32_t, KeyHash> known;
        std::vector<std::int32_t>& class_of = graph_.stages[stage_].class_of;
        class_of.reserve(kernel_.tiles.size());
        std::vector<std::int64_t> key;
        std::vector<std::span<const Region>> boxes, last;  // of this tile and of the one before
        const auto same = [](std::span<const Region> a, std::span<const Region> b) {
            return a.data() == b.data() && a.size() == b.size();
        };
        for (const kernel::Tile& tile : kernel_.tiles) {
            if (!ranged_) {
                boxes.clear();
                for (const BoundParam& param : params_) boxes.push_back(kernel::boxes_read(tile, param.name));
                const bool as_before = !class_of.empty() && std::ranges::equal(boxes, last, same);
                std::swap(boxes, last);
                if (as_before) {
                    class_of.push_back(class_of.back());
                    continue;
                }
            }
            key.clear();
            boxes.clear();
            std::vector<std::shared_ptr<const std::vector<kernel::LoopRead>>> reads;
            std::vector<std::int64_t> trips;
            for (std::size_t loop = 0; ranged_ && loop < kernel_.loops.size(); ++loop)
                trips.push_back(kernel_.trips_of(tile, loop));
            key.insert(key.end(), trips.begin(), trips.end());
            for (const BoundParam& param : params_) {
                boxes.push_back(kernel::boxes_read(tile, param.name));
                if (ranged_) {
                    reads.push_back(reads_of(tile, param, boxes.back(), trips));
                    push_reads(reads.back(), key);
                }
                key.push_back(static_cast<std::int64_t>(boxes.back().size()));
                for (const Region& box : boxes.back()) {
                    for (const Interval& interval : box) {
                        key.push_back(interval.begin);
                        key.push_back(interval.end);
                    }
                }
            }
            const auto [found, is_new] = known.try_emplace(key, static_cast<std::int32_t>(classes_.size()));
            if (is_new) {
                Class made{tile.id, {}, std::move(reads), std::move(trips)};
                for (const std::span<const Region> one : boxes)
                    made.boxes.emplace_back(one.begin(), one.end());
                classes_.push_back(std::move(made));
            }
            class_of.push_back(found->second);
        }
    }

    using LoopReads = std::shared_ptr<const std::vector<kernel::LoopRead>>;

    /// What the tile reads through the parameter, by loop; null: nothing in a loop.
    [[nodiscard]] LoopReads reads_of(const kernel::Tile& tile, const BoundParam& param,
                                     std::span<const Region> boxes,
                                     const std::vector<std::int64_t>& trips) const {
        if (kernel_.tiles_differ) {
            const auto found = tile.loop_reads.find(param.name);
            return found == tile.loop_reads.end() ? nullptr : found->second;
        }
        // The one loop, alike in all tiles.
        if (param.slices.size() != 1 || trips.empty() || trips.front() <= 0) return nullptr;
        const kernel::LoopSlice& slice = param.slices.front();
        kernel::LoopRead read{0,          slice.dim,    slice.base,
                              slice.step, slice.extent, {boxes.begin(), boxes.end()}};
        const Interval whole{slice.base, slice.base + (trips.front() - 1) * slice.step + slice.extent};
        const bool outside = slice.step <= 0 || std::ranges::any_of(boxes, [&](const Region& box) {
                                 return box[slice.dim].begin < whole.begin || box[slice.dim].end > whole.end;
                             });
        if (outside) return nullptr;
        return std::make_shared<const std::vector<kernel::LoopRead>>(1, std::move(read));
    }

    static void push_reads(const LoopReads& reads, std::vector<std::int64_t>& key) {
        if (reads == nullptr) return key.push_back(0);
        key.push_back(static_cast<std::int64_t>(reads->size()));
        for (const kernel::LoopRead& read : *reads) {
            for (const std::int64_t number :
                 {static_cast<std::int64_t>(read.loop), static_cast<std::int64_t>(read.dim), read.base,
                  read.step, read.extent, static_cast<std::int64_t>(read.boxes.size())})
                key.push_back(number);
            for (const Region& box : read.boxes) {
                for (const Interval& interval : box) {
                    key.push_back(interval.begin);
                    key.push_back(interval.end);
                }
            }
        }
    }

    /// By rank and class, whether the rank runs some tile of it; empty: all ranks run all.
    [[nodiscard]] std::vector<std::vector<bool>> classes_run() const {
        const Graph::StageNodes& nodes = graph_.stages[stage_];
        std::vector<std::vector<bool>> run(nodes.runs.size(), std::vector<bool>(classes_.size(), false));
        for (std::size_t rank = 0; rank < run.size(); ++rank) {
            for (std::size_t tile = 0; tile < nodes.class_of.size(); ++tile) {
                if (nodes.runs[rank][tile]) run[rank][at(nodes.class_of[tile])] = true;
            }
        }
        return run;
    }

    /// By rank, what is where of the tensors that the kernel reads.
    [[nodiscard]] std::vector<std::vector<Supply>> find_supplies(const Written& written) const {
        std::vector<std::vector<Supply>> supplies(plan_.ranks.size());
        std::vector<bool> read(plan_.tensors.size(), false);
        for (const BoundParam& param : params_) read[param.tensor] = true;
        const auto add = [&](std::int32_t rank, std::int32_t tensor, const Region& region, NodeId op) {
            if (read[tensor] && !is_empty(region)) supplies[rank].push_back({tensor, op, &region});
        };
        for (const plan::Holding& holding : plan_.initial)
            add(holding.rank, holding.chunk.tensor, holding.chunk.region, kNoNode);
        for (const auto& [tensor, regions] : written) {
            for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
                for (const Region& region : regions) add(rank, tensor, region, kNoNode);
            }
        }
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            const plan::Op& moved = plan_.op(ref);
            add(moved.destination_rank(ref.rank), moved.dst.tensor, moved.dst.region, op);
        }
        return supplies;
    }

    /// Edges to all tiles of the rank from the ops that deliver what they read through `param`.
    Status connect(std::int32_t rank, const BoundParam& param, const MemoryIndex& index,
                   const std::vector<std::vector<bool>>& run) {
        const auto number = static_cast<std::size_t>(&param - params_.data());
        for (std::size_t c = 0; c < classes_.size(); ++c) {
            if (!run.empty() && !run[at(rank)][c]) continue;
            const NodeId node = graph_.stages[stage_].first.back() + static_cast<NodeId>(c);
            for (const Region& box : classes_[c].boxes[number]) {
                std::vector<Region> missing{box};
                index.any_overlap(param.tensor, box, [&](const Supply& supply) {
                    take(missing, *supply.region);
                    if (supply.op == kNoNode) return false;
                    if (ranged_)
                        need_in_loops(node, classes_[c], number, box, supply);
                    else
                        need(node, supply.op, first_iteration(param, box, *supply.region, trips_));
                    return false;
                });
                if (missing.empty()) continue;
                const kernel::Tile& tile = kernel_.tiles[at(classes_[c].first_tile)];
                const bool sure = !tile.inexact_reads.contains(param.name);
                return plan::error_at(
                    {rank, -1}, "tile " + std::to_string(tile.id) + " of " + kernel_.name +
                                    (sure ? " reads " : " may read ") + plan_.tensors[param.tensor].name +
                                    to_string(missing.front()) + " through " + param.name + ", which rank " +
                                    std::to_string(rank) +
                                    " neither holds initially nor receives: add an op that delivers it" +
                                    (sure ? std::string() : values_hint()));
            }
        }
        return Done{};
    }

    /// Names the integer tensors that the kernel only loads, and whose elements are not given.
    [[nodiscard]] std::string values_hint() const {
        std::string names;
        for (const auto& [name, tensor] : kernel_.arguments.tensors) {
            const kernel::Param* param = kernel_.find_param(name);
            const bool loaded = param != nullptr && param->read && !param->written;
            if (loaded && plan::name_of(tensor.dtype).find("int") != std::string_view::npos &&
                tensor.values.empty())
                names += " --values " + name + "=…";
        }
        return names.empty() ? names : ", or say what it loads, where the host knows it, with" + names;
    }

    /// The tile's node needs the op of `supply`, which delivers some of `box`: which iterations do.
    void need_in_loops(NodeId tiles, const Class& of, std::size_t number, const Region& box,
                       const Supply& supply) {
        const LoopReads& reads = of.reads[number];
        if (reads == nullptr || graph_.carrier(supply.op) == Carrier::tile_loads)
            return need(tiles, supply.op, 0);
        Graph::StageNodes& nodes = graph_.stages[stage_];
        std::vector<Use>& uses = nodes.uses[at(tiles - nodes.first.front())];
        const auto part = intersect(box, *supply.region);
        for (const kernel::LoopRead& read : *reads) {
            for (const Region& read_box : read.boxes) {
                const auto needed = intersect(read_box, *part);
                if (!needed) continue;
                if (read.loop < 0 || !kernel_.loops[at(read.loop)].divisible) {
                    need(tiles, supply.op, 0);
                    continue;
                }
                const std::int64_t trips = of.trips[at(read.loop)];
                const Interval iterations = iterations_of(read, *needed, trips);
                if (iterations.empty())
                    need(tiles, supply.op, 0);  // it is read, whatever the loop's form says
                else
                    uses.push_back({read.loop, iterations.begin, iterations.end, supply.op});
            }
        }
    }

    /// Of what only iterations need, an edge: at 0 where the first iteration of the first loop that runs
    /// does, and no order is free.
    void add_uses_as_edges(NodeId tiles) {
        Graph::StageNodes& nodes = graph_.stages[stage_];
        const auto number = static_cast<std::size_t>(tiles - nodes.first.front());
        std::vector<Use>& uses = nodes.uses[number];
        std::ranges::sort(uses);
        const auto rest = std::ranges::unique(uses);
        uses.erase(rest.begin(), rest.end());
        const std::vector<std::int64_t>& trips =
            nodes.trips[number % static_cast<std::size_t>(nodes.num_classes)];
        const auto first = std::ranges::find_if(trips, [](std::int64_t n) { return n > 0; }) - trips.begin();
        for (const Use& use : uses) {
            const bool at_once =
                use.loop == first && use.begin == 0 && !kernel_.loops[at(use.loop)].any_order;
            graph_.in[tiles].push_back({at_once ? 0 : std::max<std::int64_t>(use.begin, 1), use.op});
        }
    }

    void need(NodeId tiles, NodeId op, std::int64_t iteration) {
        Edges& needs = graph_.in[tiles];
        if (graph_.carrier(op) != Carrier::tile_loads) {
            needs.push_back({iteration, op});
            return;
        }
        // The tile waits for what the op would have waited for.
        Graph::StageNodes& nodes = graph_.stages[stage_];
        nodes.loads[tiles - nodes.first.front()].push_back(op);
        for (const Edge& before : graph_.in[op]) {
            if (graph_.is_op(before.from)) needs.push_back({iteration, before.from});
        }
    }

    /// One edge for each op, from the earliest iteration that needs it.
    static void keep_earliest(Edges& needs) {
        std::ranges::sort(needs, {}, [](const Edge& edge) { return std::pair(edge.from, edge.iteration); });
        const auto rest = std::ranges::unique(needs, {}, &Edge::from);
        needs.erase(rest.begin(), rest.end());
        std::ranges::sort(needs);
    }

    const kernel::Kernel& kernel_;
    const plan::Plan& plan_;
    Graph& graph_;
    std::size_t stage_;
    std::vector<BoundParam> params_;
    std::int64_t trips_ = 0;
    bool ranged_ = false;  ///< which iterations need what is told range by range
    std::vector<Class> classes_;
};

}  // namespace

void add_written(const BoundKernel& program, Written& written) {
    for (const auto& [name, tensor] : program.bindings) {
        if (!program.kernel.find_param(name)->written) continue;
        std::vector<plan::Region>& regions = written[*program.plan.find_tensor(tensor)];
        for (const kernel::Tile& tile : program.kernel.tiles) {
            for (const plan::Region& box : kernel::boxes_written(tile, name)) regions.push_back(box);
        }
    }
}

Status add_tiles(const BoundKernel& program, std::size_t stage, const Written& written, Graph& graph) {
    return Reads(program, stage, graph).run(written);
}

}  // namespace syncopate::fuse
