#include "syncopate/fuse/passes/order.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <string>
#include <tuple>

#include "fuse/passes/deadlines.hpp"
#include "fuse/passes/handover.hpp"
#include "fuse/passes/ready_times.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/fuse/passes/deal.hpp"
#include "syncopate/fuse/passes/pack.hpp"
#include "syncopate/fuse/passes/synchronize.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

/// By slot, the program that runs it.
Result<std::vector<std::int64_t>> programs_of_slots(const kernel::Kernel& kernel, const Options& options) {
    const std::int64_t own = kernel.num_programs();
    const std::int64_t programs = options.num_programs.value_or(own);
    if (programs < 1) return Error{"a grid of " + std::to_string(programs) + " programs runs nothing"};
    std::vector<std::int64_t> result;
    result.reserve(kernel.tiles.size());
    if (kernel.most_slots > 0) {  // whichever program runs a slot of a group waits for itself
        for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot)
            result.push_back(static_cast<std::int64_t>(slot));
        return result;
    }
    if (programs == own) {
        for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot)
            result.push_back(kernel.tiles[at(kernel.tile_at(slot))].program);
        return result;
    }
    if (!kernel.persistent) {
        return Error{kernel.name + " runs one tile per program, so its grid has " + std::to_string(own) +
                     " programs, not " + std::to_string(programs)};
    }
    for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot)
        result.push_back(static_cast<std::int64_t>(slot) % programs);
    return result;
}

/// Whether the order of a kernel's tiles matters though all of them start at once. Some load from peers: the
/// order spreads what each peer is asked for. Or some wait and some make what is sent: where too many
/// programs are launched to be there at once, none that waits may keep one that makes from a multiprocessor.
bool order_matters(const Graph& graph, const Lowered& lowered, std::size_t stage) {
    const Graph::StageNodes& nodes = graph.stages[stage];
    const std::vector<bool> makers = graph.makers();
    for (std::size_t rank = 0; rank < nodes.first.size(); ++rank) {
        for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
            const NodeId node = nodes.first[rank] + c;
            if (makers[rank] && !graph.in[at(node)].empty()) return true;
            const auto from_peer = [&](NodeId op) {
                return lowered.plan.op(graph.ref(op)).kind != plan::OpKind::local;
            };
            if (std::ranges::any_of(graph.loads_of(stage, node), from_peer)) return true;
        }
    }
    return false;
}

/// Whether each tile has a program of its own, and starts with the kernel: a persistent one's programs are
/// there from the start, but for several stages' later ones.
bool in_one_round(const StagedProgram& program, const kernel::Kernel& kernel,
                  const std::vector<std::int64_t>& program_of) {
    if (program.stages.size() > 1 || !kernel.persistent || program_of.empty()) return false;
    const std::int64_t programs = 1 + *std::ranges::max_element(program_of);
    return static_cast<std::int64_t>(kernel.tiles.size()) <= programs;
}

/// Tiles of a stage that run at once: of a persistent kernel one for each program, else one for each
/// multiprocessor.
std::size_t tiles_of_a_round(const kernel::Kernel& kernel, const std::vector<std::int64_t>& program_of) {
    if (program_of.empty()) return 1;
    const std::int64_t programs = 1 + *std::ranges::max_element(program_of);
    const std::int64_t places = kernel.persistent ? programs : kernel.arguments.num_sms;
    return static_cast<std::size_t>(std::clamp<std::int64_t>(places, 1, programs));
}

std::vector<std::int64_t> traversal_of(const kernel::Kernel& kernel) {
    std::vector<std::int64_t> tiles;
    tiles.reserve(kernel.tiles.size());
    for (std::size_t position = 0; position < kernel.tiles.size(); ++position)
        tiles.push_back(kernel.tile_at(position));
    return tiles;
}

/// Orders the tiles of one stage.
class Ordering {
public:
    Ordering(const Graph& graph, const Lowered& lowered, const Placement& placement, const Arrivals& arrivals,
             std::size_t stage, const kernel::Kernel& kernel, const std::vector<StageOrder>& earlier,
             const Options& options, Scope scope)
        : graph_(graph),
          costs_(options.costs),
          kernel_(kernel),
          placement_(placement),
          stage_(stage),
          nodes_(graph.stages[stage]),
          readiness_(graph, arrivals, earlier, stage),
          traversal_(traversal_of(kernel)),
          deadlines_(graph, lowered, placement, arrivals, stage, traversal_, scope),
          waits_for_tiles_((kernel.operations > 0 || kernel.in_order) && waits_for_tiles()) {}
    [[nodiscard]] bool in_turns() const { return deadlines_.takes_turns(); }

    /// By slot of `rank`. `phases`: tiles may start before all that they need has come.
    [[nodiscard]] std::vector<std::int64_t> by_arrival(std::int32_t rank, bool phases) {
        if (kernel_.operations > 0 && !phases && deadlines_.any() && !waits_for_tiles_)
            return by_need(rank, in_traversal(rank));
        const std::vector<std::size_t> places = places_of(at(rank), phases);
        std::vector<std::int64_t> tiles = by_place(in_traversal(rank), places);
        if (!deadlines_.any()) return tiles;
        const std::vector<std::int64_t>& deadlines = deadlines_.of(rank);
        const auto key = [&](std::int64_t tile) {
            return std::pair(places[nodes_.class_of[tile]], deadlines[tile]);
        };
        if (!std::ranges::is_sorted(tiles, {}, key)) std::ranges::stable_sort(tiles, {}, key);
        return tiles;
    }

    /// Why tiles that wait for each other cannot keep their order; "": they can.
    [[nodiscard]] std::string in_order_objection() const {
        const std::string all =
            "the tiles of " + kernel_.name +
            " wait for each other, by a `while` over what they store, and so keep their order";
        if (!nodes_.runs.empty()) return all + "; but not all of them run on each rank";
        if (!graph_.rounds.empty()) return all + "; over nodes tiles run as the rounds of sends let them";
        if (!waits_for_tiles_) return {};
        return all + "; but some wait for chunks that tiles make, too: split it into two kernels";
    }

    /// The same in the traversal's order alone.
    [[nodiscard]] std::vector<std::int64_t> in_traversal(std::int32_t rank) const {
        if (nodes_.runs.empty()) return traversal_;
        std::vector<std::int64_t> tiles;
        std::ranges::copy_if(traversal_, std::back_inserter(tiles),
                             [&](std::int64_t tile) { return graph_.runs(stage_, rank, tile); });
        return tiles;
    }

    /// Replaces that order where the tiles of a persistent kernel take unequal times.
    void repack(StageOrder& order) {
        const std::vector<double> times = estimate_tile_times(kernel_, costs_);
        if (!differ(times)) return;
        if (!counts_in_turns(order)) return;
        const std::int64_t programs = 1 + *std::ranges::max_element(order.program_of);
        for (std::size_t rank = 0; rank < order.tiles.size(); ++rank) {
            if (order.tiles[rank].size() != order.program_of.size()) continue;
            std::vector<double> ready;
            for (const ReadyTimes& time : readiness_.of(rank, false))
                ready.push_back(static_cast<double>(time.needed) / bytes_per_us(costs_));
            std::vector<double> of_tile;
            for (const std::int32_t c : nodes_.class_of) of_tile.push_back(ready[c]);
            const bool waits = std::ranges::any_of(of_tile, [](double time) { return time > 0; });
            order.tiles[rank] =
                !deadlines_.any() || waits
                    ? pack_tiles(times, of_tile, programs)
                    : pack_by_deadline(times, deadlines_.of(static_cast<std::int32_t>(rank)), programs);
        }
    }

    /// Deals tiles whose loops differ in length out to the programs of a persistent kernel.
    void deal(StageOrder& order) const {
        if (!lengths_differ(nodes_) || !counts_in_turns(order)) return;
        const auto programs = at(1 + *std::ranges::max_element(order.program_of));
        // To begin and to end a tile is counted as one more iteration.
        std::vector<double> of_class;
        for (std::int32_t c = 0; c < nodes_.num_classes; ++c)
            of_class.push_back(1.0 + static_cast<double>(length_of(nodes_, c)));
        for (std::vector<std::int64_t>& tiles : order.tiles) {
            std::vector<double> times;
            times.reserve(tiles.size());
            for (const std::int64_t tile : tiles) times.push_back(of_class[at(nodes_.class_of[at(tile)])]);
            std::vector<std::int64_t> dealt;
            dealt.reserve(tiles.size());
            for (const std::size_t index : deal_tiles(times, programs)) dealt.push_back(tiles[index]);
            tiles = std::move(dealt);
        }
    }

private:
    /// Whether slot s is program s mod P's.
    static bool counts_in_turns(const StageOrder& order) {
        const std::int64_t programs = 1 + *std::ranges::max_element(order.program_of);
        for (std::size_t slot = 0; slot < order.program_of.size(); ++slot)
            if (order.program_of[slot] != static_cast<std::int64_t>(slot) % programs) return false;
        return true;
    }

    /// By class: how many classes can run before it, of those that differ in when they can.
    [[nodiscard]] std::vector<std::size_t> places_of(std::size_t rank, bool phases) const {
        const std::vector<ReadyTimes> times = readiness_.of(rank, phases);
        const bool differ = phases && lengths_differ(nodes_);
        std::vector<std::pair<std::int64_t, std::int64_t>> keys;
        for (std::int32_t c = 0; c < nodes_.num_classes; ++c)
            keys.emplace_back(times[c].first, !differ                     ? times[c].last
                                              : kernel_.traversal.empty() ? -length_of(nodes_, c)
                                                                          : 0);
        std::vector<std::pair<std::int64_t, std::int64_t>> sorted = keys;
        std::ranges::sort(sorted);
        const auto rest = std::ranges::unique(sorted);
        sorted.erase(rest.begin(), rest.end());
        std::vector<std::size_t> places;
        for (const auto& key : keys)
            places.push_back(
                static_cast<std::size_t>(std::ranges::lower_bound(sorted, key) - sorted.begin()));
        return places;
    }

    /// The tiles of one place behind those of the places before it, else in their order.
    [[nodiscard]] std::vector<std::int64_t> by_place(const std::vector<std::int64_t>& tiles,
                                                     const std::vector<std::size_t>& places) const {
        std::vector<std::size_t> next(places.size() + 1, 0);  // by place, where its next tile goes
        for (const std::int64_t tile : tiles) ++next[places[nodes_.class_of[tile]] + 1];
        std::partial_sum(next.begin(), next.end(), next.begin());
        std::vector<std::int64_t> sorted(tiles.size());
        for (const std::int64_t tile : tiles) sorted[next[places[nodes_.class_of[tile]]]++] = tile;
        return sorted;
    }

    /// Of a kernel that says how long its tiles take: whenever a multiprocessor is free it takes, of the tiles whose chunks have
    /// come by then, one that is due first; `tiles`' order decides among equals. So what a rank keeps is done while
    /// chunks come, and at the end while others are on their way. Where the kernel states an order, that alone decides, and no
    /// tile of its second half runs before the first half is under way: the short tiles at the end are for the end.
    [[nodiscard]] std::vector<std::int64_t> by_need(std::int32_t rank,
                                                    const std::vector<std::int64_t>& tiles) {
        const bool stated = !kernel_.traversal.empty();
        const std::vector<std::int64_t>* const deadlines = stated ? nullptr : &deadlines_.of(rank);
        const auto due_at = [&](std::size_t place) {
            return stated ? kNever : (*deadlines)[at(tiles[place])];
        };
        const double tile_us = estimate_tile_times(kernel_, costs_).front();
        std::vector<double> ready;  // by class
        for (const ReadyTimes& time : readiness_.of(at(rank), false))
            ready.push_back(static_cast<double>(time.last) / bytes_per_us(costs_));
        const auto ready_at = [&](std::size_t place) { return ready[at(nodes_.class_of[at(tiles[place])])]; };
        using First = std::pair<std::int64_t, std::size_t>;  // when it is due, its place in the order
        std::priority_queue<First, std::vector<First>, std::greater<>> there;
        std::priority_queue<double, std::vector<double>, std::greater<>> free;
        const std::int64_t most = std::max(1, kernel_.arguments.num_sms);
        for (std::int64_t program = 0; program < std::min(most, kernel_.num_programs()); ++program)
            free.push(0);
        std::vector<std::int64_t> made;
        made.reserve(tiles.size());
        const auto run = [&](std::size_t begin, std::size_t end) {
            std::vector<std::size_t> to_come(end - begin);
            std::iota(to_come.begin(), to_come.end(), begin);
            std::ranges::stable_sort(to_come, {}, ready_at);
            for (auto next = to_come.begin(); made.size() < end;) {
                double now = free.top();
                free.pop();
                if (there.empty() && next != to_come.end()) now = std::max(now, ready_at(*next));
                for (; next != to_come.end() && ready_at(*next) <= now; ++next)
                    there.emplace(due_at(*next), *next);
                made.push_back(tiles[there.top().second]);
                there.pop();
                free.push(now + tile_us);
            }
        };
        const std::size_t half = stated ? tiles.size() / 2 : 0;
        run(0, half);
        run(half, tiles.size());
        return made;
    }

    /// Whether some tile waits for what a tile, of whatever rank, makes. Where none that makes may come behind it, what is due
    /// first cannot decide.
    [[nodiscard]] bool waits_for_tiles() const {
        std::vector<bool> by_tiles(static_cast<std::size_t>(graph_.num_ops()), false);
        for (const Graph::Elsewhere& made : graph_.elsewhere) by_tiles[at(made.op)] = true;
        for (const NodeId op : graph_.sorted) {
            by_tiles[at(op)] = by_tiles[at(op)] || !placement_.awaits[op].empty() ||
                               std::ranges::any_of(placement_.before[op], [&](NodeId other) {
                                   return graph_.is_op(other) && by_tiles[at(other)];
                               });
        }
        const auto comes_of_tiles = [&](NodeId op) { return !graph_.is_op(op) || by_tiles[at(op)]; };
        for (std::size_t rank = 0; rank < nodes_.first.size(); ++rank) {
            for (std::int32_t c = 0; c < nodes_.num_classes; ++c) {
                const NodeId node = nodes_.first[rank] + c;
                for (const Edge& edge : graph_.in[at(node)])
                    if (edge.lag == 0 && comes_of_tiles(edge.from)) return true;
                if (std::ranges::any_of(graph_.loads_of(stage_, node), comes_of_tiles)) return true;
                if (!graph_.awaited_by(stage_, node).empty()) return true;
            }
        }
        return false;
    }

    const Graph& graph_;
    const Costs& costs_;
    const kernel::Kernel& kernel_;
    const Placement& placement_;
    std::size_t stage_;
    const Graph::StageNodes& nodes_;
    Readiness readiness_;
    std::vector<std::int64_t> traversal_;  ///< all tiles, in the kernel's order
    Deadlines deadlines_;
    bool waits_for_tiles_;
};

/// Lets the first programs of a stage run more tiles than the others, as many as fit in before these begin.
void give_head_start(const HeadStart& head, StageOrder& order) {
    order.head_start = head;
    const auto programs = static_cast<std::int64_t>(order.round);
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(order.program_of.size()); ++slot) {
        order.program_of[at(slot)] =
            slot < head.slots() ? slot % head.programs : (slot - head.slots()) % programs;
    }
}

/// Of programs over nodes: a tile that waits for more rounds than another one runs behind it (channel.hpp).
void follow_rounds(const Graph& graph, std::size_t stage, StageOrder& made) {
    if (graph.rounds.empty()) return;
    for (std::size_t rank = 0; rank < made.tiles.size(); ++rank) {
        if (made.tiles[rank].empty()) continue;
        std::vector<std::int32_t> last;  // by class
        for (std::int32_t c = 0; c < graph.stages[stage].num_classes; ++c) {
            const NodeId node = graph.stages[stage].first[rank] + c;
            std::int32_t& round = last.emplace_back(-1);
            const auto take = [&](NodeId op) {
                if (graph.is_op(op)) round = std::max(round, graph.follows[at(op)]);
            };
            for (const Edge& edge : graph.in[at(node)]) {
                if (edge.lag == 0) take(edge.from);
            }
            if (graph.stages[stage].ranged) {
                for (const Use& use : graph.uses_of(stage, node)) take(use.op);
            }
        }
        std::ranges::stable_sort(made.tiles[rank], {}, [&](std::int64_t tile) {
            return last[at(graph.stages[stage].class_of[static_cast<std::size_t>(tile)])];
        });
    }
}

}  // namespace

Result<std::vector<StageOrder>> order(const StagedProgram& program, const Graph& graph,
                                      const Lowered& lowered, const Placement& placement,
                                      const Arrivals& arrivals, const Options& options, Scope scope) {
    const std::int32_t num_ranks = lowered.plan.num_ranks();
    scope = scope.within(num_ranks);
    std::vector<StageOrder> orders;
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
        const kernel::Kernel& kernel = program.stages[stage].kernel;
        SYNCOPATE_TAKE(auto program_of, programs_of_slots(kernel, options));
        const std::size_t round = tiles_of_a_round(kernel, program_of);
        HeadStart head;
        if (stage > 0 && kernel.most_slots == 0 && !graph.overlapping.empty() && graph.overlapping[stage]) {
            const Handover handover(program, graph, stage, orders.back(), round, options.costs);
            if (!program.stages[stage - 1].kernel.in_order)
                orders.back().tiles.front() = handover.order_before();
            if (kernel.head_start && options.device == Device::cuda) head = handover.head_start();
        }
        const std::vector<StageOrder> earlier = orders;
        Ordering ordering(graph, lowered, placement, arrivals, stage, kernel, earlier, options, scope);
        StageOrder& made =
            orders.emplace_back(StageOrder{.tiles = {}, .program_of = std::move(program_of), .round = round});
        made.in_turns = ordering.in_turns();
        made.most_slots = kernel.most_slots;
        if (!kernel.persistent) made.own_grid = {kernel.grid[0], kernel.grid[1]};
        if (head.rounds > 0) give_head_start(head, made);
        // Phases only where some tile would otherwise wait for a chunk before an iteration that does not read
        // it.
        const bool ranged = graph.stages[stage].ranged;
        const bool at_once = kernel.in_order || (in_one_round(program, kernel, made.program_of) &&
                                                 !order_matters(graph, lowered, stage));
        if (const std::string why = kernel.in_order ? ordering.in_order_objection() : ""; !why.empty())
            return Error{why};
        const auto ordered = [&](std::int32_t rank, bool phases) {
            return at_once ? ordering.in_traversal(rank) : ordering.by_arrival(rank, phases);
        };
        const auto order_all = [&](bool phases) {
            made.tiles.assign(at(num_ranks), {});
            for (std::int32_t rank = scope.first; rank < scope.end; ++rank)
                made.tiles[at(rank)] = ordered(rank, phases);
        };
        if (ranged) made.loops = kernel.loops;
        const auto divisible = std::ranges::find_if(
            kernel.loops, [](const kernel::Loop& loop) { return loop.divisible && loop.trips > 1; });
        const bool cuts = ranged ? divisible != kernel.loops.end()
                                 : !kernel.loops.empty() && divisible == kernel.loops.begin();
        if (cuts) {
            order_all(true);
            made.trips = divisible->trips;
            made.phased = true;
            made.phased = waits_in_loops(graph, placement, stage, made, arrivals, [&](std::int32_t rank) {
                return scope.contains(rank) ? made.tiles[at(rank)] : ordered(rank, true);
            });
            if (made.phased && kernel.persistent && kernel.most_slots == 0 && !at_once &&
                graph.rounds.empty())
                ordering.deal(made);
        }
        if (!made.phased) {
            made.trips = 0;
            order_all(false);
            if (kernel.persistent && kernel.most_slots == 0 && !at_once) ordering.repack(made);
        }
        follow_rounds(graph, stage, made);
    }
    return orders;
}

}  // namespace syncopate::fuse
