#include "syncopate/fuse/synchronize.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>

namespace syncopate::fuse {
namespace {

/// The waits of one node's tiles, before their programs' knowledge is taken into account: by iteration,
/// ascending.
struct Step {
    std::int64_t iteration = 0;
    std::vector<NodeId> ops;
};

std::vector<Step> steps_of(const Placement& placement, const std::vector<Edge>& needs, bool phases) {
    std::vector<Step> steps;
    std::vector<NodeId> so_far;
    for (std::size_t at = 0; at < needs.size();) {
        const std::int64_t iteration = phases ? needs[at].iteration : 0;
        std::vector<NodeId> added;
        for (; at < needs.size() && (!phases || needs[at].iteration == iteration); ++at)
            added.push_back(needs[at].from);
        so_far.insert(so_far.end(), added.begin(), added.end());
        const std::vector<NodeId> last = last_of(placement, so_far);
        std::sort(added.begin(), added.end());
        Step step{iteration, {}};
        std::set_intersection(added.begin(), added.end(), last.begin(), last.end(),
                              std::back_inserter(step.ops));
        if (!step.ops.empty()) steps.push_back(std::move(step));
    }
    return steps;
}

/// What the programs of one stage on one rank have to wait for.
class Waiting {
public:
    Waiting(const Graph& graph, const Placement& placement, std::size_t stage, const StageOrder& order,
            std::int32_t rank)
        : graph_(graph),
          stage_(stage),
          order_(order),
          first_(graph.stages[stage].first[rank]),
          class_of_(graph.stages[stage].class_of) {
        for (std::int32_t c = 0; c < graph.stages[stage].num_classes; ++c) {
            steps_.push_back(steps_of(placement, graph.in[first_ + c], order.trips > 0));
            for (const Step& step : steps_.back())
                needed_.insert(needed_.end(), step.ops.begin(), step.ops.end());
        }
        std::sort(needed_.begin(), needed_.end());
        needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
        for (const NodeId op : needed_) {
            const std::vector<bool> completed = completed_with(placement, {op});
            for (std::size_t at = 0; at < needed_.size(); ++at) {
                if (completed[needed_[at]]) shows_[op].push_back(at);
            }
        }
        const std::int64_t num_programs =
            order.program_of.empty() ? 0 : 1 + *std::ranges::max_element(order.program_of);
        seen_.assign(static_cast<std::size_t>(num_programs), std::vector<bool>(needed_.size(), false));
        seen_chunks_.resize(static_cast<std::size_t>(num_programs));
    }

    SlotWaits take(std::size_t slot, std::int64_t tile) {
        std::vector<bool>& known = seen_[order_.program_of[slot]];
        SlotWaits waits;
        for (const NodeId chunk : graph_.awaited_by(stage_, first_ + class_of_[tile])) {
            if (seen_chunks_[order_.program_of[slot]].insert(chunk).second) waits.chunks.push_back(chunk);
        }
        if (order_.trips > 0) waits.phases.push_back({order_.trips, {}});
        for (const Step& step : steps_[class_of_[tile]]) {
            std::vector<NodeId> unseen;
            for (const NodeId op : step.ops) {
                if (!known[index_of(op)]) unseen.push_back(op);
            }
            if (unseen.empty()) continue;
            for (const NodeId op : unseen) {
                for (const std::size_t at : shows_[op]) known[at] = true;
            }
            if (step.iteration == 0) {
                waits.ops = std::move(unseen);
            } else {
                waits.phases.back().iteration_end = step.iteration;
                waits.phases.push_back({order_.trips, std::move(unseen)});
            }
        }
        return waits;
    }

private:
    [[nodiscard]] std::size_t index_of(NodeId op) const {
        return static_cast<std::size_t>(std::lower_bound(needed_.begin(), needed_.end(), op) -
                                        needed_.begin());
    }

    const Graph& graph_;
    std::size_t stage_;
    const StageOrder& order_;
    NodeId first_;
    const std::vector<std::int32_t>& class_of_;
    std::vector<std::vector<Step>> steps_;  ///< by class
    std::vector<NodeId> needed_;
    /// What waiting for an op shows: itself and those of `needed_` that precede it, as indices into
    /// `needed_`.
    std::unordered_map<NodeId, std::vector<std::size_t>> shows_;
    std::vector<std::vector<bool>> seen_;        ///< by program and index into `needed_`
    std::vector<std::set<NodeId>> seen_chunks_;  ///< by program
};

}  // namespace

StageWaits stage_waits(const Graph& graph, const Placement& placement, std::size_t stage,
                       const StageOrder& order) {
    StageWaits waits(order.tiles.size());
    for (std::size_t rank = 0; rank < order.tiles.size(); ++rank) {
        Waiting waiting(graph, placement, stage, order, static_cast<std::int32_t>(rank));
        for (std::size_t slot = 0; slot < order.tiles[rank].size(); ++slot)
            waits[rank].push_back(waiting.take(slot, order.tiles[rank][slot]));
    }
    return waits;
}

Synchronization synchronize(const Graph& graph, const Placement& placement,
                            const std::vector<StageOrder>& orders) {
    Synchronization result;
    result.seen_by_kernel.resize(graph.begin.size());
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
        const StageWaits& waits =
            result.stages.emplace_back(stage_waits(graph, placement, stage, orders[stage]));
        for (std::size_t rank = 0; rank < waits.size(); ++rank) {
            std::vector<NodeId>& seen = result.seen_by_kernel[rank];
            for (const SlotWaits& slot : waits[rank]) {
                seen.insert(seen.end(), slot.ops.begin(), slot.ops.end());
                for (const SlotWaits::Phase& phase : slot.phases)
                    seen.insert(seen.end(), phase.ops.begin(), phase.ops.end());
            }
        }
    }
    for (std::vector<NodeId>& seen : result.seen_by_kernel) {
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    }
    for (NodeId op = 0; op < graph.num_ops(); ++op) {
        std::vector<NodeId> last = last_of(placement, placement.before[op]);
        std::erase(last, placement.previous[op]);  // the lane's own order needs no wait
        result.transfers.push_back(std::move(last));
    }
    return result;
}

}  // namespace syncopate::fuse
