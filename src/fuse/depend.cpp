#include "syncopate/fuse/depend.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Interval;
using plan::Region;

/// Something that puts data into a region of a rank's memory: an op, or the start of the call.
struct Supply {
    Region region;
    std::int32_t op = -1;  ///< -1: initial
};

/// The supplies of one tensor on one rank, to be searched by region: sorted by where they begin along the
/// axis that tells them apart best, with the furthest end so far beside each.
class SupplyIndex {
public:
    explicit SupplyIndex(std::vector<Supply> supplies) : supplies_(std::move(supplies)) {
        std::size_t best = 0;
        const std::size_t axes = supplies_.empty() ? 0 : supplies_.front().region.size();
        for (std::size_t axis = 0; axis < axes; ++axis) {
            std::set<std::int64_t> begins;
            for (const Supply& supply : supplies_) begins.insert(supply.region[axis].begin);
            if (begins.size() > best) {
                best = begins.size();
                axis_ = axis;
            }
        }
        std::stable_sort(supplies_.begin(), supplies_.end(), [this](const Supply& a, const Supply& b) {
            return a.region[axis_].begin < b.region[axis_].begin;
        });
        furthest_end_.reserve(supplies_.size());
        for (const Supply& supply : supplies_) {
            const std::int64_t end = supply.region[axis_].end;
            furthest_end_.push_back(furthest_end_.empty() ? end : std::max(furthest_end_.back(), end));
        }
    }

    template <typename Visit>
    void for_each_overlap(const Region& box, Visit visit) const {
        if (supplies_.empty()) return;
        const auto first = std::upper_bound(furthest_end_.begin(), furthest_end_.end(), box[axis_].begin);
        for (auto at = static_cast<std::size_t>(first - furthest_end_.begin()); at < supplies_.size(); ++at) {
            if (supplies_[at].region[axis_].begin >= box[axis_].end) break;
            if (overlaps(supplies_[at].region, box)) visit(supplies_[at]);
        }
    }

private:
    std::vector<Supply> supplies_;
    std::vector<std::int64_t> furthest_end_;
    std::size_t axis_ = 0;
};

/// A parameter that is bound and read.
struct BoundParam {
    std::string name;
    std::int32_t tensor = -1;
    std::vector<kernel::LoopSlice> slices;  ///< how the reduction loop walks it
};

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

}  // namespace

Result<Dependence> depend(const Program& program, const Precedence& precedence, const Written& written) {
    const kernel::Kernel& kernel = program.kernel;
    const plan::Plan& plan = program.plan;
    std::vector<BoundParam> params;
    for (const auto& [name, tensor] : program.bindings) {
        const kernel::Param* param = kernel.find_param(name);
        if (param == nullptr || !param->read) continue;
        BoundParam bound{name, *plan.find_tensor(tensor), {}};
        // What a kernel makes and also reads (as atomic_add does) is its own, whatever arrives there later.
        if (param->written && is_produced(plan, bound.tensor)) continue;
        if (!kernel.loops.empty()) {
            for (const kernel::LoopSlice& slice : kernel.loops.front().slices) {
                if (slice.param == name) bound.slices.push_back(slice);
            }
        }
        params.push_back(std::move(bound));
    }
    const std::int64_t trips = kernel.loops.empty() ? 0 : kernel.loops.front().trips;

    // Classes: tiles that read the same boxes, in the order of their first tile.
    Dependence result;
    std::vector<std::int64_t> first_tile;
    std::vector<std::vector<std::vector<Region>>> class_boxes;  // by class and bound parameter
    std::unordered_map<std::vector<std::int64_t>, std::int32_t, KeyHash> classes;
    result.class_of.reserve(kernel.tiles.size());
    std::vector<std::int64_t> key;
    for (const kernel::Tile& tile : kernel.tiles) {
        key.clear();
        std::vector<std::vector<Region>> boxes;
        boxes.reserve(params.size());
        for (const BoundParam& param : params) {
            boxes.push_back(kernel::boxes_read(tile, param.name));
            key.push_back(static_cast<std::int64_t>(boxes.back().size()));
            for (const Region& box : boxes.back()) {
                for (const Interval& interval : box) {
                    key.push_back(interval.begin);
                    key.push_back(interval.end);
                }
            }
        }
        const auto [found, is_new] = classes.try_emplace(key, static_cast<std::int32_t>(class_boxes.size()));
        if (is_new) {
            class_boxes.push_back(std::move(boxes));
            first_tile.push_back(tile.id);
        }
        result.class_of.push_back(found->second);
    }

    // What is where: by rank and tensor.
    std::vector<std::vector<std::vector<Supply>>> supplies(
        plan.ranks.size(), std::vector<std::vector<Supply>>(plan.tensors.size()));
    for (const plan::Holding& holding : plan.initial) {
        if (is_empty(holding.chunk.region)) continue;
        supplies[holding.rank][holding.chunk.tensor].push_back({holding.chunk.region, -1});
    }
    for (const auto& [tensor, regions] : written) {
        for (auto& on_rank : supplies) {
            for (const Region& region : regions) on_rank[tensor].push_back({region, -1});
        }
    }
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        const plan::OpRef ref = precedence.ops[id];
        const plan::Op& op = plan.op(ref);
        if (is_empty(op.dst.region)) continue;
        supplies[op.destination_rank(ref.rank)][op.dst.tensor].push_back({op.dst.region, id});
    }

    result.needs.resize(plan.ranks.size());
    result.fetches.resize(plan.ranks.size());
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        result.needs[rank].resize(class_boxes.size());
        result.fetches[rank].resize(class_boxes.size());
        for (std::size_t p = 0; p < params.size(); ++p) {
            const BoundParam& param = params[p];
            const SupplyIndex index(supplies[rank][param.tensor]);
            for (std::size_t c = 0; c < class_boxes.size(); ++c) {
                std::vector<Need>& needs = result.needs[rank][c];
                for (const Region& box : class_boxes[c][p]) {
                    std::vector<Region> missing{box};
                    index.for_each_overlap(box, [&](const Supply& supply) {
                        take(missing, supply.region);
                        if (supply.op < 0) return;
                        const std::int64_t iteration = first_iteration(param, box, supply.region, trips);
                        if (!precedence.fetched[supply.op]) {
                            needs.push_back({iteration, supply.op});
                            return;
                        }
                        // The tile waits for what the op would have waited for.
                        result.fetches[rank][c].push_back(supply.op);
                        for (const std::int32_t before : precedence.after[supply.op])
                            needs.push_back({iteration, before});
                    });
                    if (!missing.empty()) {
                        return plan::error_at(
                            {rank, -1},
                            "tile " + std::to_string(first_tile[c]) + " of " + kernel.name + " reads " +
                                plan.tensors[param.tensor].name + to_string(missing.front()) + " through " +
                                param.name + ", which rank " + std::to_string(rank) +
                                " neither holds initially nor receives: add an op that delivers it");
                    }
                }
            }
        }
        for (std::vector<Need>& needs : result.needs[rank]) {  // one need per op, its earliest
            std::sort(needs.begin(), needs.end(), [](const Need& a, const Need& b) {
                return std::pair(a.op, a.iteration) < std::pair(b.op, b.iteration);
            });
            needs.erase(std::unique(needs.begin(), needs.end(),
                                    [](const Need& a, const Need& b) { return a.op == b.op; }),
                        needs.end());
            std::sort(needs.begin(), needs.end());
        }
    }
    return result;
}

}  // namespace syncopate::fuse
