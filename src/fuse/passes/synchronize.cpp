#include "syncopate/fuse/passes/synchronize.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/precedence.hpp"

namespace syncopate::fuse {
namespace {

/// The waits of one node's tiles, before their programs' knowledge is taken into account: by iteration,
/// ascending.
struct Step {
    std::int64_t iteration = 0;
    std::vector<NodeId> ops;
};

std::vector<Step> steps_of(Precedence& precedence, const Edges& needs, bool phases) {
    std::vector<Step> steps;
    std::vector<NodeId> so_far;
    for (std::size_t at = 0; at < needs.size();) {
        const std::int64_t iteration = phases ? needs[at].iteration : 0;
        std::vector<NodeId> added;
        for (; at < needs.size() && (!phases || needs[at].iteration == iteration); ++at)
            added.push_back(needs[at].from);
        so_far.insert(so_far.end(), added.begin(), added.end());
        const std::vector<NodeId> last = precedence.last_of(so_far);
        std::sort(added.begin(), added.end());
        Step step{iteration, {}};
        std::set_intersection(added.begin(), added.end(), last.begin(), last.end(),
                              std::back_inserter(step.ops));
        if (!step.ops.empty()) steps.push_back(std::move(step));
    }
    return steps;
}

/// What the programs of one stage on one rank know to be complete.
class Knowledge {
public:
    Knowledge(Precedence& precedence, std::vector<NodeId> needed, const StageOrder& order)
        : order_(order), needed_(std::move(needed)) {
        std::sort(needed_.begin(), needed_.end());
        needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
        shows_ = precedence.shown_by(needed_);
        const std::int64_t num_programs =
            order.program_of.empty() ? 0 : 1 + *std::ranges::max_element(order.program_of);
        seen_.assign(static_cast<std::size_t>(num_programs), Bits(shows_.empty() ? 0 : shows_[0].size(), 0));
    }

    void enter(std::size_t slot) { known_ = &seen_[order_.program_of[slot]]; }
    [[nodiscard]] bool knows(NodeId op) const {
        const std::size_t index = index_of(op);
        return ((*known_)[index / kBits] >> (index % kBits) & 1) != 0;
    }
    /// Those of `ops` that the slot's program has not seen; from here on it has.
    [[nodiscard]] std::vector<NodeId> wait_for(const std::vector<NodeId>& ops) {
        std::vector<NodeId> unseen;
        std::ranges::copy_if(ops, std::back_inserter(unseen), [&](NodeId op) { return !knows(op); });
        for (const NodeId op : unseen) {
            const Bits& shown = shows_[index_of(op)];
            for (std::size_t word = 0; word < shown.size(); ++word) (*known_)[word] |= shown[word];
        }
        return unseen;
    }

private:
    static constexpr std::size_t kBits = 64;

    [[nodiscard]] std::size_t index_of(NodeId op) const {
        return static_cast<std::size_t>(std::lower_bound(needed_.begin(), needed_.end(), op) -
                                        needed_.begin());
    }

    const StageOrder& order_;
    std::vector<NodeId> needed_;
    /// By index into `needed_`: what waiting for that op shows, as indices into `needed_`.
    std::vector<Bits> shows_;
    std::vector<Bits> seen_;  ///< by program, as indices into `needed_`
    Bits* known_ = nullptr;   ///< of the slot's program
};

/// What the programs of one stage on one rank have to wait for, where tiles have one loop, alike.
class Waiting {
public:
    Waiting(const Graph& graph, Precedence& precedence, std::size_t stage, const StageOrder& order,
            std::int32_t rank)
        : order_(order),
          class_of_(graph.stages[stage].class_of),
          steps_(steps(graph, precedence, stage, order, rank)),
          knowledge_(precedence, needed(steps_), order) {}

    SlotWaits take(std::size_t slot, std::int64_t tile) {
        knowledge_.enter(slot);
        SlotWaits waits;
        if (order_.trips > 0) waits.phases.push_back({0, 0, order_.trips, {}});
        for (const Step& step : steps_[class_of_[tile]]) {
            std::vector<NodeId> unseen = knowledge_.wait_for(step.ops);
            if (unseen.empty()) continue;
            if (step.iteration == 0) {
                waits.ops = std::move(unseen);
            } else {
                waits.phases.back().iteration_end = step.iteration;
                waits.phases.push_back({0, step.iteration, order_.trips, std::move(unseen)});
            }
        }
        return waits;
    }

private:
    using Steps = std::vector<std::vector<Step>>;
    static Steps steps(const Graph& graph, Precedence& precedence, std::size_t stage, const StageOrder& order,
                       std::int32_t rank) {
        Steps all;
        const NodeId first = graph.stages[stage].first[rank];
        for (std::int32_t c = 0; c < graph.stages[stage].num_classes; ++c)
            all.push_back(steps_of(precedence, graph.in[first + c], order.trips > 0));
        return all;
    }
    static std::vector<NodeId> needed(const Steps& steps) {
        std::vector<NodeId> ops;
        for (const std::vector<Step>& of_class : steps) {
            for (const Step& step : of_class) ops.insert(ops.end(), step.ops.begin(), step.ops.end());
        }
        return ops;
    }

    const StageOrder& order_;
    const std::vector<std::int32_t>& class_of_;
    Steps steps_;  ///< by class
    Knowledge knowledge_;
};

/// Iterations that need the same.
struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::vector<NodeId> ops;    ///< the last ones of those that they need
    std::int64_t expected = 0;  ///< when those have come
};

/// The same where tiles differ in their loops, or a loop's ranges may come in any order.
class RangedWaiting {
public:
    RangedWaiting(const Graph& graph, Precedence& precedence, std::size_t stage, const StageOrder& order,
                  const Arrivals& arrivals, std::int32_t rank)
        : order_(order),
          nodes_(graph.stages[stage]),
          classes_(classes(graph, precedence, stage, order, arrivals, rank)),
          knowledge_(precedence, needed(classes_), order) {}

    SlotWaits take(std::size_t slot, std::int64_t tile) {
        const auto of = static_cast<std::size_t>(nodes_.class_of[at(tile)]);
        knowledge_.enter(slot);
        SlotWaits waits;
        waits.ops = knowledge_.wait_for(classes_[of].entry);
        if (!order_.phased) return waits;
        for (std::size_t loop = 0; loop < order_.loops.size(); ++loop) {
            if (!order_.loops[loop].divisible) continue;
            const auto number = static_cast<std::int32_t>(loop);
            if (order_.loops[loop].any_order)
                take_any(classes_[of].ranges[loop], number, waits);
            else
                take_rising(classes_[of].ranges[loop], number, waits);
        }
        // A tile whose loops run not at all: its slot must say so.
        if (waits.phases.empty()) waits.phases.push_back({0, 0, 0, {}});
        return waits;
    }

private:
    struct Class {
        std::vector<NodeId> entry;               ///< before the tile starts
        std::vector<std::vector<Range>> ranges;  ///< by loop, rising
    };

    void take_rising(const std::vector<Range>& ranges, std::int32_t loop, SlotWaits& waits) {
        bool first = true;
        for (const Range& range : ranges) {
            std::vector<NodeId> unseen = knowledge_.wait_for(range.ops);
            if (first || !unseen.empty())
                waits.phases.push_back({loop, range.begin, range.end, std::move(unseen)});
            else
                waits.phases.back().iteration_end = range.end;
            first = false;
        }
    }

    void take_any(const std::vector<Range>& ranges, std::int32_t loop, SlotWaits& waits) {
        std::vector<const Range*> open;
        for (const Range& range : ranges) open.push_back(&range);
        const Range* awaited = nullptr;
        std::vector<NodeId> unseen;
        while (true) {
            take_known(open, awaited, std::move(unseen), loop, waits);
            if (open.empty()) return;
            awaited = *std::ranges::min_element(
                open, {}, [](const Range* range) { return std::pair(range->expected, range->begin); });
            unseen = knowledge_.wait_for(awaited->ops);
        }
    }

    /// Takes off `open` what the program knows to be there, neighbours as one phase; first the one that holds
    /// `awaited`, for which it waits.
    void take_known(std::vector<const Range*>& open, const Range* awaited, std::vector<NodeId> unseen,
                    std::int32_t loop, SlotWaits& waits) const {
        std::vector<SlotWaits::Phase> phases;
        std::vector<const Range*> rest;
        for (const Range* range : open) {
            if (!std::ranges::all_of(range->ops, [&](NodeId op) { return knowledge_.knows(op); })) {
                rest.push_back(range);
                continue;
            }
            if (!phases.empty() && phases.back().iteration_end == range->begin)
                phases.back().iteration_end = range->end;
            else
                phases.push_back({loop, range->begin, range->end, {}});
        }
        if (awaited != nullptr) {
            const auto held = std::ranges::find_if(phases, [&](const SlotWaits::Phase& phase) {
                return phase.iteration_begin <= awaited->begin && awaited->end <= phase.iteration_end;
            });
            held->ops = std::move(unseen);
            std::rotate(phases.begin(), held, held + 1);
        }
        waits.phases.insert(waits.phases.end(), std::make_move_iterator(phases.begin()),
                            std::make_move_iterator(phases.end()));
        open = std::move(rest);
    }

    /// A loop's iterations, cut where what they need changes.
    static std::vector<Range> ranges_of(Precedence& precedence, const Arrivals& arrivals,
                                        std::span<const Use> uses, std::int64_t trips) {
        std::vector<std::int64_t> cuts{0, trips};
        for (const Use& use : uses) cuts.insert(cuts.end(), {use.begin, use.end});
        std::ranges::sort(cuts);
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        std::vector<Range> ranges;
        for (std::size_t at = 0; at + 1 < cuts.size(); ++at) {
            Range range{cuts[at], cuts[at + 1], {}, 0};
            for (const Use& use : uses) {
                if (use.begin <= range.begin && range.end <= use.end) range.ops.push_back(use.op);
            }
            for (const NodeId op : range.ops)
                range.expected = std::max(range.expected, arrivals[static_cast<std::size_t>(op)]);
            if (range.ops.size() > 1) range.ops = precedence.last_of(range.ops);
            ranges.push_back(std::move(range));
        }
        return ranges;
    }

    static std::vector<Class> classes(const Graph& graph, Precedence& precedence, std::size_t stage,
                                      const StageOrder& order, const Arrivals& arrivals, std::int32_t rank) {
        const Graph::StageNodes& nodes = graph.stages[stage];
        std::vector<Class> all;
        for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
            const NodeId node = nodes.first[at(rank)] + c;
            Class& made = all.emplace_back();
            std::vector<NodeId> entry;
            for (const Edge& edge : graph.in[at(node)]) {
                if (edge.iteration == 0 || !order.phased) entry.push_back(edge.from);
            }
            made.entry = precedence.last_of(entry);
            if (!order.phased) continue;
            const std::span<const Use> uses = graph.uses_of(stage, node);
            for (std::size_t loop = 0; loop < order.loops.size(); ++loop) {
                const std::int64_t trips = nodes.trips[at(c)][loop];
                const auto number = static_cast<std::int32_t>(loop);
                const auto of_loop = std::ranges::equal_range(uses, number, {}, &Use::loop);
                made.ranges.push_back(
                    trips == 0
                        ? std::vector<Range>{}
                        : ranges_of(precedence, arrivals, std::span(of_loop.begin(), of_loop.end()), trips));
            }
        }
        return all;
    }

    static std::vector<NodeId> needed(const std::vector<Class>& classes) {
        std::vector<NodeId> ops;
        for (const Class& of : classes) {
            ops.insert(ops.end(), of.entry.begin(), of.entry.end());
            for (const std::vector<Range>& loop : of.ranges) {
                for (const Range& range : loop) ops.insert(ops.end(), range.ops.begin(), range.ops.end());
            }
        }
        return ops;
    }

    const StageOrder& order_;
    const Graph::StageNodes& nodes_;
    std::vector<Class> classes_;
    Knowledge knowledge_;
};

/// The chunks of earlier stages that slots of one rank await, each program once.
void add_chunks(const Graph& graph, std::size_t stage, const StageOrder& order, std::size_t rank,
                std::vector<SlotWaits>& slots) {
    const Graph::StageNodes& nodes = graph.stages[stage];
    std::set<std::pair<std::int64_t, NodeId>> seen;  // by program
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        const auto tile = static_cast<std::size_t>(order.tiles[rank][slot]);
        for (const NodeId chunk : graph.awaited_by(stage, nodes.first[rank] + nodes.class_of[tile])) {
            if (seen.insert({order.program_of[slot], chunk}).second) slots[slot].chunks.push_back(chunk);
        }
    }
}

/// By slot of one rank.
template <typename Waits>
std::vector<SlotWaits> take_all(Waits waits, const std::vector<std::int64_t>& tiles) {
    std::vector<SlotWaits> all;
    all.reserve(tiles.size());
    for (std::size_t slot = 0; slot < tiles.size(); ++slot) all.push_back(waits.take(slot, tiles[slot]));
    return all;
}

template <typename Waits>
bool some_in_loop(Waits waits, const std::vector<std::int64_t>& tiles) {
    for (std::size_t slot = 0; slot < tiles.size(); ++slot) {
        const SlotWaits taken = waits.take(slot, tiles[slot]);
        if (std::ranges::any_of(taken.phases,
                                [](const SlotWaits::Phase& phase) { return !phase.ops.empty(); }))
            return true;
    }
    return false;
}

/// Whether some tile of the rank may wait within its loop: not where all that its tiles need they need from the start.
bool needs_in_loop(const Graph& graph, std::size_t stage, std::size_t rank) {
    const Graph::StageNodes& nodes = graph.stages[stage];
    const auto needs = std::span(graph.in).subspan(at(nodes.first[rank]), at(nodes.num_classes));
    return nodes.ranged || std::ranges::any_of(needs, [](const Edges& of_class) {
               return !of_class.empty() && of_class.back().iteration > 0;  // they are sorted
           });
}

StageWaits stage_waits(const Graph& graph, const Placement& placement, std::size_t stage,
                       const StageOrder& order, const Arrivals& arrivals, Scope scope) {
    StageWaits waits(order.tiles.size());
    Precedence precedence(graph, placement);
    for (std::int32_t rank = scope.first; rank < scope.end; ++rank) {
        const std::vector<std::int64_t>& tiles = order.tiles[at(rank)];
        waits[at(rank)] =
            graph.stages[stage].ranged
                ? take_all(RangedWaiting(graph, precedence, stage, order, arrivals, rank), tiles)
                : take_all(Waiting(graph, precedence, stage, order, rank), tiles);
        add_chunks(graph, stage, order, at(rank), waits[at(rank)]);
    }
    return waits;
}

}  // namespace

bool waits_in_loops(const Graph& graph, const Placement& placement, std::size_t stage,
                    const StageOrder& order, const Arrivals& arrivals,
                    const std::function<std::vector<std::int64_t>(std::int32_t)>& tiles_of) {
    Precedence precedence(graph, placement);
    for (std::size_t index = 0; index < graph.begin.size(); ++index) {
        if (!needs_in_loop(graph, stage, index)) continue;
        const auto rank = static_cast<std::int32_t>(index);
        const std::vector<std::int64_t> tiles = tiles_of(rank);
        const bool some =
            graph.stages[stage].ranged
                ? some_in_loop(RangedWaiting(graph, precedence, stage, order, arrivals, rank), tiles)
                : some_in_loop(Waiting(graph, precedence, stage, order, rank), tiles);
        if (some) return true;
    }
    return false;
}

Synchronization synchronize(const Graph& graph, const Placement& placement,
                            const std::vector<StageOrder>& orders, const Arrivals& arrivals, Scope scope) {
    scope = scope.within(static_cast<std::int32_t>(graph.begin.size()));
    Synchronization result;
    result.seen_by_kernel.resize(graph.begin.size());
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
        const StageWaits& waits =
            result.stages.emplace_back(stage_waits(graph, placement, stage, orders[stage], arrivals, scope));
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
    Precedence precedence(graph, placement);
    result.first = graph.first_op[at(scope.first)];
    result.transfers.reserve(at(graph.first_op[at(scope.end)] - result.first));
    for (NodeId op = result.first; op < graph.first_op[at(scope.end)]; ++op) {
        const std::span<const NodeId> before = placement.before[at(op)];
        std::vector<NodeId> last = precedence.last_of({before.begin(), before.end()});
        std::erase(last, placement.previous[op]);  // the lane's own order needs no wait
        std::erase_if(last, [&](NodeId other) {    // nor does a receive after its send, or a later round
            if (graph.round(op) < 0 || graph.round(other) < 0) return false;
            return graph[other].rank == graph[op].rank || graph.round(other) == graph.round(op);
        });
        result.transfers.push_back(std::move(last));
    }
    return result;
}

}  // namespace syncopate::fuse
