// A call of a user's program on a machine: its work graph played. Transfers start when the chunks that they
// send are made, tiles when the chunks that they read have come; each is simulated with the other's times, in
// turns, until these stay. A gather settles in one turn, a product behind a product in two.
#include <algorithm>
#include <cmath>
#include <queue>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using fuse::Carrier;
using fuse::Edge;
using fuse::Node;
using fuse::NodeId;

constexpr double kUnknown = 1e12;  // µs: of what cannot be simulated
constexpr double kSettled = 0.1;   // µs
constexpr int kMostTurns = 8;

double elements(const kernel::ByParameter<plan::Region>& boxes) {
    double sum = 0;
    for (const auto& [param, box] : boxes) {
        if (!box.empty() && !plan::is_empty(box)) sum += static_cast<double>(plan::num_elements(box));
    }
    return sum;
}

double item_bytes(const kernel::Kernel& kernel, const std::string& param) {
    const auto found = kernel.arguments.tensors.find(param);
    return found == kernel.arguments.tensors.end() ? 2.0
                                                   : static_cast<double>(plan::size_of(found->second.dtype));
}

double bytes(const kernel::Kernel& kernel, const kernel::ByParameter<plan::Region>& boxes) {
    double sum = 0;
    for (const auto& [param, box] : boxes) {
        if (!box.empty() && !plan::is_empty(box))
            sum += static_cast<double>(plan::num_elements(box)) * item_bytes(kernel, std::string(param));
    }
    return sum;
}

/// Of operands [r, K] and [K, c] of a tile [r, c]: 2 r c K, which is twice the root of the three sizes'
/// product.
double operations(const kernel::Tile& tile) {
    std::vector<double> sizes;
    for (const auto& [param, box] : tile.reads) {
        if (!box.empty() && !plan::is_empty(box))
            sizes.push_back(static_cast<double>(plan::num_elements(box)));
    }
    if (sizes.size() < 2) return 0;
    std::ranges::sort(sizes, std::greater<>());
    return 2 * std::sqrt(sizes[0] * sizes[1] * elements(tile.writes));
}

/// When each node of the graph is complete, µs from the call's begin.
class Call {
public:
    Call(const fuse::StagedProgram& program, const fuse::Decisions& work, const Machine& machine,
         const Strategy& strategy)
        : program_(program),
          work_(work),
          graph_(work.graph),
          machine_(machine),
          strategy_(strategy),
          plan_(fuse::transfers_of(work.lowered)),
          links_(links_for(machine, work.lowered.plan.num_ranks(), strategy)),
          done_(graph_.nodes.size(), 0),
          stored_by_sum_(graph_.nodes.size(), 0) {
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            for (std::size_t i = 0; i < plan_.ranks[rank].size(); ++i)
                plan_.ranks[rank][i].backend = work.backends[rank][i];
        }
        for (const fuse::Stage& stage : program.stages)
            tile_us_.push_back(program_tile_us(machine, stage.kernel));
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            if (graph_.carrier(op) != Carrier::sum_stores) continue;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag == 0) stored_by_sum_[at(edge.from)] += op_bytes(op);
            }
        }
    }

    /// `moving`: with transfers; without, all that tiles read is there.
    [[nodiscard]] double end(bool moving) {
        std::ranges::fill(done_, 0);
        for (int turn = 0; turn < kMostTurns; ++turn) {
            const std::vector<double> before = done_;
            if (moving && !move()) return kUnknown;
            for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) play(rank, moving);
            double change = 0;
            for (std::size_t i = 0; i < done_.size(); ++i)
                change = std::max(change, std::abs(done_[i] - before[i]));
            if (change < kSettled || !moving) break;
        }
        return done_.empty() ? 0 : *std::ranges::max_element(done_);
    }

    /// The transfers alone, all that they send being there.
    [[nodiscard]] double communicate() {
        std::ranges::fill(done_, 0);
        if (!move()) return kUnknown;
        double last = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) last = std::max(last, done_[at(op)]);
        return last;
    }

private:
    static std::size_t at(NodeId node) { return static_cast<std::size_t>(node); }

    [[nodiscard]] double op_bytes(NodeId op) const {
        const plan::OpRef ref = graph_.ref(op);
        const plan::Op& of =
            plan_.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
        return static_cast<double>(plan_.bytes(of.dst));
    }
    static double over(double moved, double gbps) {
        return gbps <= 0 ? kUnknown : moved / (gbps * kBytesPerUs);
    }

    /// How long a sum takes, with what it reads and stores elsewhere.
    [[nodiscard]] double sum_us(NodeId op) const {
        const Rates& rates = machine_.rates;
        double reads = 0;
        const double stores = stored_by_sum_[at(op)];
        double summands = 1;
        for (const Edge& edge : graph_.in[at(op)]) {
            if (edge.lag != 0 || !graph_.is_op(edge.from)) continue;
            ++summands;
            if (graph_.carrier(edge.from) == Carrier::sum_loads) reads += op_bytes(edge.from);
        }
        if (const auto direct = work_.lowered.direct.find(graph_.ref(op));
            direct != work_.lowered.direct.end()) {
            reads = op_bytes(op) * static_cast<double>(direct->second.size());
            summands = std::max(summands, static_cast<double>(direct->second.size()) + 1);
        }
        const plan::OpRef ref = graph_.ref(op);
        const plan::Backend by =
            work_.backends[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
        if (fuse::is_engine(by)) {
            return rates.sum_us + over((summands + 1) * op_bytes(op),
                                       rates.engine_sums(by, strategy_.engine_blocks.value_or(0)));
        }
        double us = rates.sum_us + over((summands + 1) * op_bytes(op), rates.sum_gbps);
        if (reads > 0) us += rates.read_us + over(reads, rates.read_gbps);
        if (stores > 0) us += rates.store_us + over(stores, rates.store_gbps);
        return us;
    }

    /// All ops with what the nodes before them are known to take. False where the plan cannot be simulated.
    bool move() {
        std::vector<std::vector<plan::OpTiming>> timings;
        for (const std::vector<plan::Op>& list : plan_.ranks) timings.emplace_back(list.size());
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            plan::OpTiming& timing =
                timings[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag == 0 && !graph_.is_op(edge.from))
                    timing.ready_us = std::max(timing.ready_us, done_[at(edge.from)]);
            }
            if (graph_[op].kind == Node::Kind::sum) {
                timing.lasts_us = sum_us(op);
            } else if (graph_.carrier(op) == Carrier::tile_stores) {
                // Stored while it is made: the last tile's store is under way when the chunk is complete.
                timing.lasts_us = machine_.rates.poll_us;
            } else if (graph_.carrier(op) != Carrier::own) {
                timing.lasts_us = 0;
            }
        }
        const Result<plan::Simulation> simulation =
            plan::simulate(plan_, links_, {.posts = true, .timings = std::move(timings)});
        if (!simulation) return false;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            done_[at(op)] =
                simulation->ops[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)]
                    .end_us;
        }
        return true;
    }

    /// By what a stage's tiles are slower on a rank: stores at peers, and loads from there.
    [[nodiscard]] double carried_us(std::size_t stage, std::size_t rank) const {
        double us = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            const plan::Op& of =
                plan_.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
            if (of.kind == plan::OpKind::local || graph_[op].rank != static_cast<std::int32_t>(rank))
                continue;
            if (graph_.carrier(op) == Carrier::tile_stores && stage + 1 == program_.stages.size())
                us += over(op_bytes(op), machine_.rates.store_stall_gbps);
            if (graph_.carrier(op) == Carrier::tile_loads && stage == 0)
                us += over(op_bytes(op) * columns_of(stage), machine_.rates.read_gbps);
        }
        return us;
    }

    /// How often a stage's tiles load one element of what they share: tiles of a column of the tile space.
    [[nodiscard]] double columns_of(std::size_t stage) const {
        const auto& axes = program_.stages[stage].kernel.axes;
        return axes.size() < 2 ? 1.0 : static_cast<double>(axes.back().count);
    }

    /// The tiles of one rank, stage after stage.
    void play(std::size_t rank, bool moving) {
        double begin = 0;
        for (std::size_t stage = 0; stage < program_.stages.size(); ++stage) {
            const bool overlaps = stage < graph_.overlapping.size() && graph_.overlapping[stage];
            begin = std::max(play(rank, stage, overlaps ? 0 : begin, moving), begin) +
                    (stage + 1 < program_.stages.size() ? machine_.rates.kernel_us : 0);
        }
        done_[at(graph_.kernel[rank])] = begin;
        if (!strategy_is_plain()) return;
        for (const fuse::Made& chunk : graph_.made[rank]) done_[at(chunk.node)] = begin;
    }

    [[nodiscard]] bool strategy_is_plain() const { return strategy_.placement == Placement::after; }

    double play(std::size_t rank, std::size_t stage, double begin, bool moving) {
        const fuse::StageOrder& order = work_.orders[stage];
        const kernel::Kernel& kernel = program_.stages[stage].kernel;
        const std::int32_t sms = machine_.num_sms - (beside() ? strategy_.engine_blocks.value_or(0) : 0);
        const auto programs = static_cast<std::size_t>(
            std::clamp<std::int64_t>(kernel.num_programs(), 1, std::max<std::int32_t>(1, sms)));
        std::vector<double> free(programs, begin + (moving ? machine_.rates.poll_us : 0));
        const std::vector<std::int64_t>& slots = order.tiles[rank];
        double compute = 0;
        for (const double us : tile_us_[stage]) compute += us;
        const double slower = moving && compute > 0
                                  ? 1 + carried_us(stage, rank) * static_cast<double>(programs) / compute
                                  : 1.0;
        double last = begin;
        std::vector<double> ends(kernel.tiles.size(), begin);
        for (std::size_t slot = 0; slot < slots.size(); ++slot) {
            const auto tile = static_cast<std::size_t>(slots[slot]);
            // A persistent kernel's slots have their programs; those of others go to the next one that is
            // free.
            const std::size_t program =
                kernel.persistent && slot < order.program_of.size()
                    ? static_cast<std::size_t>(order.program_of[slot]) % programs
                    : static_cast<std::size_t>(std::ranges::min_element(free) - free.begin());
            free[program] = ends[tile] =
                end_of(graph_.tiles(stage, static_cast<std::int32_t>(rank), slots[slot]), stage, order,
                       free[program], tile_us_[stage][tile] * slower, moving);
            last = std::max(last, ends[tile]);
        }
        for (const fuse::Made& chunk : graph_.made[rank]) {
            if (chunk.stage != static_cast<std::int32_t>(stage)) continue;
            double made = begin;
            for (const std::int64_t tile : chunk.makers)
                made = std::max(made, ends[static_cast<std::size_t>(tile)]);
            done_[at(chunk.node)] = made;
        }
        return last;
    }

    [[nodiscard]] bool beside() const { return fuse::is_engine(strategy_.backend) && !strategy_is_plain(); }

    /// A tile that may begin at `now` and takes `us`: it stands still at each iteration that needs more.
    [[nodiscard]] double end_of(NodeId tiles, std::size_t stage, const fuse::StageOrder& order, double now,
                                double us, bool moving) const {
        if (graph_.stages[stage].ranged) return end_of_ranges(tiles, stage, now, us, moving);
        std::int64_t passed = 0;
        for (const Edge& edge : graph_.in[at(tiles)]) {  // sorted by iteration
            if (edge.lag != 0 || (!moving && graph_.is_op(edge.from))) continue;
            if (graph_.is_op(edge.from) && graph_.carrier(edge.from) == Carrier::tile_loads) continue;
            const double ready = done_[at(edge.from)];
            if (!order.phased || order.trips == 0 || edge.iteration == 0) {
                now = std::max(now, ready);
                continue;
            }
            const double part =
                us * static_cast<double>(edge.iteration - passed) / static_cast<double>(order.trips);
            if (ready > now + part) {
                now = ready;
            } else {
                now += part;
            }
            now += machine_.rates.phase_us * (edge.iteration > passed ? 1 : 0);
            passed = edge.iteration;
        }
        if (!graph_.stages[stage].awaits.empty()) {
            for (const NodeId chunk : graph_.awaited_by(stage, tiles)) now = std::max(now, done_[at(chunk)]);
        }
        const double left = order.phased && order.trips > 0
                                ? 1 - static_cast<double>(passed) / static_cast<double>(order.trips)
                                : 1;
        return now + us * left;
    }

    /// The same of a tile whose loops run range by range: those that nothing has to bring first, the others
    /// as they come.
    [[nodiscard]] double end_of_ranges(NodeId tiles, std::size_t stage, double now, double us,
                                       bool moving) const {
        const fuse::Graph::StageNodes& of = graph_.stages[stage];
        for (const Edge& edge : graph_.in[at(tiles)]) {
            if (edge.lag == 0 && edge.iteration == 0 && (moving || !graph_.is_op(edge.from)))
                now = std::max(now, done_[at(edge.from)]);
        }
        const auto& trips = of.trips[static_cast<std::size_t>(graph_[tiles].index)];
        double all = 0;
        for (const std::int64_t count : trips) all += static_cast<double>(count);
        if (all <= 0 || !moving) return now + us;
        std::vector<std::pair<double, double>> ranges;  // when it is there, its share
        double left = 1;
        for (const fuse::Use& use : graph_.uses_of(stage, tiles)) {
            const double share = static_cast<double>(use.end - use.begin) / all;
            ranges.emplace_back(done_[at(use.op)], share);
            left -= share;
        }
        std::ranges::sort(ranges);
        now += us * std::max(0.0, left);
        for (const auto& [ready, share] : ranges)
            now = std::max(now, ready) + us * share + machine_.rates.phase_us;
        return now;
    }

    const fuse::StagedProgram& program_;
    const fuse::Decisions& work_;
    const fuse::Graph& graph_;
    const Machine& machine_;
    const Strategy& strategy_;
    plan::Plan plan_;
    plan::Topology links_;
    std::vector<double> done_;
    std::vector<double> stored_by_sum_;  ///< bytes that a sum stores at peers
    std::vector<std::vector<double>> tile_us_;
};

}  // namespace

std::vector<double> program_tile_us(const Machine& machine, const kernel::Kernel& kernel) {
    std::vector<double> times;
    times.reserve(kernel.tiles.size());
    const Rates& rates = machine.rates;
    bool wide = false;  // some operand has more than 16 bits an element
    for (const kernel::Param& param : kernel.params) wide |= param.read && item_bytes(kernel, param.name) > 2;
    const double tflops = wide ? rates.sm_tf32_tflops : rates.sm_tflops;
    for (const kernel::Tile& tile : kernel.tiles) {
        const double multiply = operations(tile) / (tflops * kFlopsPerUs);
        const double load = bytes(kernel, tile.reads) / (rates.sm_load_gbps * kBytesPerUs);
        times.push_back(std::max(multiply, load) + rates.tile_us);
    }
    return times;
}

Estimate estimate_program(const fuse::StagedProgram& program, const fuse::Decisions& work,
                          const Machine& machine, const Strategy& strategy) {
    Call call(program, work, machine, strategy);
    Estimate made;
    made.compute = call.end(false);
    made.communicate = call.communicate();
    made.fixed = machine.rates.call_us +
                 (strategy.placement == Placement::after ? machine.rates.after_us : machine.rates.fused_us);
    const double beside = 1 + (machine.rates.beside_copies - 1) *
                                  std::min(1.0, made.communicate / std::max(made.compute, 1e-3));
    made.exposed = std::max(0.0, call.end(true) - made.compute) + (beside - 1) * made.compute;
    made.us = made.fixed + made.compute + made.exposed;
    return made;
}

}  // namespace syncopate::tune
