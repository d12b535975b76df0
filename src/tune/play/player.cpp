#include "tune/play/player.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/sum_parts.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "tune/play/call_ops.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/phases.hpp"
#include "tune/play/tiles_play.hpp"

namespace syncopate::tune {
namespace {

using fuse::Carrier;
using fuse::Edge;
using fuse::Node;
using fuse::NodeId;

constexpr double kSettled = 0.1;  // µs
constexpr int kMostTurns = 6;

/// When each node of the graph is complete, µs from the call's begin.
class Call {
public:
    Call(const fuse::StagedProgram& program, const fuse::Decisions& work,
         const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
         const Strategy& strategy, bool alike)
        : half_(fixed_us / 2),
          alike_(alike),
          program_(program),
          work_(work),
          graph_(work.graph),
          stages_(stages),
          rates_(machine.rates),
          ops_(work, stages, machine, strategy),
          plan_(ops_.plan()),
          done_(graph_.nodes.size(), 0),
          stored_(static_cast<std::size_t>(graph_.num_ops()), 0) {
        for (std::size_t stage = 0; stage < program.stages.size(); ++stage)
            blocks_.push_back(stages[stage].column_bytes > 0
                                  ? blocks_of_runs(program.stages[stage].kernel, stages[stage].columns)
                                  : blocks_of(program.stages[stage].kernel));
    }

    Estimate run() {
        Estimate made;
        made.fixed = 2 * half_;
        made.compute = tiles_end(false) - half_;
        made.communicate = communicate();
        const double compute = std::max(made.compute, 1e-3);
        slower_ = 1 + ops_.stolen_us() / compute;
        if (ops_.out_bytes(0) <= 0)
            slower_ *= 1 + (rates_.beside_copies - 1) * std::min(1.0, made.communicate / compute);
        if (ops_.sends_sums()) slower_ *= rates_.beside_sums;
        const double end = settled() + ops_.ends_us();
        made.exposed = std::max(0.0, end - half_ - made.compute);
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

private:
    [[nodiscard]] double latest() const {
        double last = 0;
        for (const double time : done_) last = std::max(last, time);
        return last;
    }

    /// All in turns, until nothing moves any more.
    double settled() {
        // What only comes before tiles has been played alone.
        if (ops_.follow_tiles()) std::ranges::fill(done_, 0);
        std::ranges::fill(stored_, 0);
        const bool both = ops_.follow_tiles() && ops_.precede_tiles();
        const int turns = both ? kMostTurns : 1;
        for (int turn = 0; turn < turns; ++turn) {
            const std::vector<double> before = done_;
            if (both && !move()) return kUnknownUs;
            tiles_end(true);
            if (ops_.follow_tiles() && !move()) return kUnknownUs;
            if (ops_.follow_tiles() && note_begun() && !move()) return kUnknownUs;
            double change = 0;
            for (std::size_t i = 0; i < done_.size(); ++i)
                change = std::max(change, std::abs(done_[i] - before[i]));
            if (change < kSettled) break;
        }
        return latest();
    }

    /// When what each sum adds up is there; whether there are some that this matters to.
    bool note_begun() {
        begun_.assign(static_cast<std::size_t>(graph_.num_ops()), 0);
        bool some = false;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            if (graph_[op].kind != Node::Kind::sum || !ops_.sums_wait(op) || ops_.sent_on(op)) continue;
            some = true;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag == 0) begun_[at(op)] = std::max(begun_[at(op)], done_[at(edge.from)]);
            }
        }
        return some;
    }

    /// The transfers alone, all that they send being there.
    double communicate() {
        std::ranges::fill(done_, 0);
        std::ranges::fill(stored_, 0);
        if (!move()) return kUnknownUs;
        double last = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) last = std::max(last, done_[at(op)]);
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            if (ops_.out_bytes(rank) > 0)
                last = std::max(last, over(ops_.out_bytes(rank), ops_.store_gbps(rank)));
        }
        return last;
    }

    /// µs that such a sum, once all are made, has saved by what it has done before, as was played last.
    [[nodiscard]] double summed_before(NodeId op) const {
        if (!ops_.sums_wait(op) || ops_.sent_on(op) || begun_.empty()) return 0;
        const double end = done_[at(graph_.kernel[at(graph_[op].rank)])];
        const double us = ops_.sum_us(op) - ops_.begins_us(op);
        const double done = std::max(0.0, end - begun_[at(op)]);
        return std::min(done, us * (1 - 1.0 / fuse::kMostSumParts));
    }

    /// All ops with what the nodes before them are known to take. False where the plan cannot be simulated.
    bool move() {
        std::vector<std::vector<plan::OpTiming>> timings;
        for (const std::vector<plan::Op>& list : plan_.ranks) timings.emplace_back(list.size());
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            plan::OpTiming& timing = timings[at(ref.rank)][at(ops_.simulated(ref).index)];
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag != 0) continue;
                if (!graph_.is_op(edge.from))
                    timing.ready_us = std::max(timing.ready_us, done_[at(edge.from)]);
            }
            const Carrier carrier = graph_.carrier(op);
            timing.line = ops_.line_of(op);
            if (carrier == Carrier::programs) timing.ready_us = done_[at(graph_.kernel[at(graph_[op].rank)])];
            if (graph_[op].kind == Node::Kind::sum) {
                timing.lasts_us = ops_.sum_us(op) - summed_before(op);
                if (ops_.sums_wait(op)) timing.ready_us = done_[at(graph_.kernel[at(graph_[op].rank)])];
            } else if (carrier == Carrier::tile_stores) {
                timing.ready_us = std::max(timing.ready_us, stored_[at(op)]);
                timing.lasts_us = 0;
            } else if (carrier != Carrier::own) {
                timing.lasts_us = 0;
            } else if (ops_.is_side(op)) {
                // Its receive takes the time of both.
                if (ops_.op_of(op).kind == plan::OpKind::local) timing.lasts_us = 0;
            } else if (ops_.crosses(op)) {
                timing.lasts_us = ops_.links().copy_engine.push_us + ops_.crossing_us(op);
            }
        }
        const Result<plan::Simulation> simulation =
            plan::simulate(ops_.simulated(), ops_.links(),
                           {.posts = true, .timings = std::move(timings), .times_only = true});
        if (!simulation) return false;
        double last = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            done_[at(op)] = simulation->ops[at(ref.rank)][at(ops_.simulated(ref).index)].end_us;
            last = std::max(last, done_[at(op)]);
        }
        if (ops_.go_at_once()) {
            for (NodeId op = 0; op < graph_.num_ops(); ++op) done_[at(op)] = last;
        }
        return true;
    }

    /// When the tiles of all ranks have ended, stage after stage. `moving`: with transfers; without, all that
    /// tiles read is there.
    double tiles_end(bool moving) {
        double last = 0;
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            double begin = half_;
            for (std::size_t stage = 0; stage < program_.stages.size(); ++stage) {
                const bool overlaps = stage < graph_.overlapping.size() && graph_.overlapping[stage];
                const double begins = overlaps ? half_ : begin;
                begin = std::max(tiles_end(rank, stage, begins, moving), begin) +
                        (stage + 1 < program_.stages.size() ? rates_.kernel_us : 0);
            }
            done_[at(graph_.kernel[rank])] = begin;
            last = std::max(last, begin);
        }
        return last;
    }

    double tiles_end(std::size_t rank, std::size_t stage, double begin, bool moving) {
        const fuse::StageOrder& order = work_.orders[stage];
        const StageTiles& of = stages_[stage];
        if (!moving && of.alone_us > 0) return begin + of.alone_us;
        const std::vector<std::int64_t>& tiles = order.tiles[rank];
        if (alike_ && rank > 0) return as_first(rank, stage, begin);
        const std::vector<double> stores = stored_bytes(rank, stage, moving);
        const std::vector<std::int64_t> groups = groups_of(rank, stage);
        std::vector<Slot> slots;
        slots.reserve(tiles.size());
        for (const std::int64_t id : tiles) {
            const auto tile = static_cast<std::size_t>(id);
            const NodeId node = graph_.tiles(stage, static_cast<std::int32_t>(rank), id);
            Slot& slot = slots.emplace_back();
            slot.us = of.us[tile] * (moving ? slower_ : 1);
            slot.narrow_us = of.narrow_us * (moving ? slower_ : 1);
            if (!of.runs.empty()) slot.run = of.runs[tile];
            if (!groups.empty()) slot.group = groups[tile];
            slot.reads = blocks_[stage].of_tile[tile];
            slot.phases = moving ? phases_of(graph_, order, stage, node, done_) : std::vector<Phase>(1);
            slot.loads = moving ? loaded_bytes(node, stage, tile) : 0;
            slot.stores = stores.empty() ? 0 : stores[tile];
        }
        // A tile that finds all of it there takes no less (nested loops, refilled pipelines).
        std::size_t most = 1;
        for (const Slot& slot : slots) most = std::max(most, slot.phases.size());
        for (Slot& slot : slots) {
            const double more = static_cast<double>(most - slot.phases.size()) * of.phase_us;
            slot.us += more;
            slot.narrow_us += more;
        }
        const StagePrograms programs{
            .count = of.programs,
            .begin = begin,
            .phase_us = of.phase_us,
            .read_gbps = rates_.read_gbps,
            .store_gbps = ops_.store_gbps(rank),
            // Of programs that sum, a third of what all but the last round stores stalls them.
            .stall_gbps = ops_.sums_itself() ? ops_.store_gbps(rank) * 3 / (1 + 2 / of.rounds())
                                             : rates_.store_stall_gbps,
            .reads = of.memory_gbps > 0,
            .column_bytes = of.column_bytes,
            .rows_together = of.rows_together};
        Memory memory(blocks_[stage].count, of.again_gbps, rates_.cache_mib * fuse::kMib, order.phased);
        played_ = play_tiles(slots, programs, memory);
        wait_for_memory(memory, rank, stage, begin);
        return as_first(rank, stage, begin);
    }

    /// No product takes less than what it reads. One that makes chunks is slowed down alike all along.
    void wait_for_memory(const Memory& memory, std::size_t rank, std::size_t stage, double begin) {
        if (stages_[stage].memory_gbps <= 0) return;
        constexpr double kBounds = 8;
        const StageTiles& of = stages_[stage];
        double end = begin;
        for (const double time : played_.ends) end = std::max(end, time);
        const double once = over(memory.once(), of.memory_gbps);
        const double read = once + over(memory.bytes() - memory.once(), of.again_gbps);
        const bool makes = std::ranges::any_of(graph_.made[rank], [&](const fuse::Made& chunk) {
            return chunk.stage == static_cast<std::int32_t>(stage);
        });
        if (!makes) {
            const double least = std::max(played_.begun, begin) + read;
            if (least > end) *std::ranges::max_element(played_.ends) = least;
            return;
        }
        const double alone = of.alone_us > 0 ? of.alone_us : end - begin;
        const auto both = [alone](double us) {
            return std::pow(std::pow(alone, kBounds) + std::pow(us, kBounds), 1 / kBounds);
        };
        const double factor = both(read) / both(once);
        for (double& time : played_.ends) time = begin + (time - begin) * factor;
    }

    /// Notes what was played of the first rank: the n-th tile ends when its n-th one does.
    double as_first(std::size_t rank, std::size_t stage, double begin) {
        const std::vector<std::int64_t>& tiles = work_.orders[stage].tiles[rank];
        const std::size_t count = stages_[stage].us.size();
        std::vector<double> ends(count, begin), stored(count, 0);
        for (std::size_t slot = 0; slot < std::min(tiles.size(), played_.ends.size()); ++slot) {
            ends[at(tiles[slot])] = played_.ends[slot];
            stored[at(tiles[slot])] = played_.stored[slot];
        }
        note_ends(rank, stage, begin, ends, stored);
        return std::max(begin, *std::ranges::max_element(ends));
    }

    /// By tile: the first chunk that it makes, of those in the order in which they are; empty where tiles are
    /// of one length, and none need be told apart.
    [[nodiscard]] std::vector<std::int64_t> groups_of(std::size_t rank, std::size_t stage) const {
        if (stages_[stage].runs.empty() || work_.orders[stage].in_turns) return {};
        std::vector<std::int64_t> groups(stages_[stage].us.size(), 0);
        std::int64_t number = 0;
        for (const fuse::Made& chunk : graph_.made[rank]) {
            ++number;
            if (chunk.stage != static_cast<std::int32_t>(stage)) continue;
            for (const std::int64_t tile : chunk.makers) {
                if (groups[at(tile)] == 0) groups[at(tile)] = number;
            }
        }
        return groups;
    }

    /// When the chunks of a stage are made, and when what its tiles store at peers is there, by tile.
    void note_ends(std::size_t rank, std::size_t stage, double begin, const std::vector<double>& ends,
                   const std::vector<double>& stored) {
        const auto last = [](const fuse::Made& chunk, const std::vector<double>& times, double first) {
            for (const std::int64_t tile : chunk.makers) first = std::max(first, times[at(tile)]);
            return first;
        };
        for (const fuse::Made& chunk : graph_.made[rank]) {
            if (chunk.stage == static_cast<std::int32_t>(stage))
                done_[at(chunk.node)] = last(chunk, ends, begin);
        }
        each_store(rank, stage, [&](NodeId op, const fuse::Made& chunk) {
            stored_[at(op)] = last(chunk, stored, stored_[at(op)]);
        });
    }

    /// Bytes that tiles store at peers, as the ops say that they carry out; empty: none do.
    [[nodiscard]] std::vector<double> stored_bytes(std::size_t rank, std::size_t stage, bool moving) const {
        if (!moving || ops_.out_bytes(rank) <= 0) return {};
        std::vector<double> stored(stages_[stage].us.size(), 0);
        each_store(rank, stage, [&](NodeId op, const fuse::Made& chunk) {
            const auto makers = static_cast<double>(std::max<std::size_t>(1, chunk.makers.size()));
            for (const std::int64_t tile : chunk.makers) stored[at(tile)] += ops_.bytes(op) / makers;
        });
        return stored;
    }
    template <typename Visit>
    void each_store(std::size_t rank, std::size_t stage, Visit visit) const {
        for (NodeId op = graph_.first_op[rank]; op < graph_.first_op[rank + 1]; ++op) {
            if (graph_.carrier(op) != Carrier::tile_stores || ops_.op_of(op).kind == plan::OpKind::local)
                continue;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag != 0 || graph_.is_op(edge.from)) continue;
                const fuse::Made& chunk = graph_.made_at(edge.from);
                if (chunk.stage == static_cast<std::int32_t>(stage)) visit(op, chunk);
            }
        }
    }

    /// Bytes that a tile loads at peers.
    [[nodiscard]] double loaded_bytes(NodeId node, std::size_t stage, std::size_t tile) const {
        double bytes = 0;
        const kernel::Kernel& kernel = program_.stages[stage].kernel;
        for (const NodeId op : graph_.loads_of(stage, node)) {
            if (ops_.op_of(op).kind == plan::OpKind::local) continue;
            const std::string& tensor = plan_.tensors[at(ops_.op_of(op).dst.tensor)].name;
            for (const auto& [param, bound] : program_.stages[stage].bindings) {
                if (bound != tensor) continue;
                const auto box = kernel.tiles[tile].reads.find(param);
                if (box == kernel.tiles[tile].reads.end()) continue;
                bytes += bytes_of(kernel, param, box->second);
            }
            break;
        }
        return bytes;
    }

    double half_;  ///< of the fixed costs: when the first tile may begin
    bool alike_;
    const fuse::StagedProgram& program_;
    const fuse::Decisions& work_;
    const fuse::Graph& graph_;
    const std::vector<StageTiles>& stages_;
    const Rates& rates_;
    CallOps ops_;
    const plan::Plan& plan_;
    std::vector<double> done_;    ///< by node: µs from the call's begin
    std::vector<double> begun_;   ///< by sum: when what it adds up is there
    std::vector<double> stored_;  ///< by op that tiles carry out: when all is stored
    std::vector<Blocks> blocks_;
    TilesPlayed played_;  ///< of the rank that was played last
    double slower_ = 1;   ///< tiles beside transfers: times what they take alone
};

}  // namespace

double StageTiles::rounds() const {
    auto tiles = static_cast<double>(runs.empty() ? us.size() : 0);
    for (const TileRun& run : runs) tiles += static_cast<double>(run.wide + run.narrow);
    return std::max(1.0, tiles / static_cast<double>(programs));
}

Estimate play(const fuse::StagedProgram& program, const fuse::Decisions& work,
              const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
              const Strategy& strategy, bool alike) {
    return Call(program, work, stages, fixed_us, machine, strategy, alike).run();
}

}  // namespace syncopate::tune
