#include "tune/play/over_nodes.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/player.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using plan::OpRef;

/// What the tiles of one product cost, of a stage that waits for arrivals or lets chunks go.
StageTiles tiles_of(const Problem& problem, const Machine& machine, const Strategy& strategy,
                    const ProductShape& shape, const TileConfig& tile, const kernel::Kernel& kernel) {
    const bool gluon = strategy.kernel == ProductKernel::gluon;
    const std::int32_t programs = strategy.programs.value_or(machine.num_sms);
    const std::int64_t at_once = std::max(1, programs / std::max(1, tile.split_k));
    const auto count = static_cast<std::int64_t>(kernel.tiles.size());
    const auto us_of = [&](std::int64_t width) {
        if (!gluon)
            return occupancy(machine, problem.dtype, shape, tile, programs) *
                   tile_us(machine, problem.dtype, tile, width, shape.k);
        const auto& us = count <= at_once ? gluon_tile_us : gluon_lone_tile_us;
        return us(machine, problem.operands(), tile, shape.k);
    };
    StageTiles made{.programs = std::min(count, at_once),
                    .phase_us = gluon ? machine.rates.gluon_phase_us : machine.rates.phase_us,
                    .memory_gbps = machine.rates.memory_gbps,
                    .again_gbps = machine.rates.memory_gbps};
    const double wide = us_of(tile.block_n);
    const double narrow = us_of(tile.block_n / 2);
    const std::int64_t wide_columns = std::int64_t{std::max(tile.num_wide, 0)} * tile.block_n;
    for (const kernel::Tile& one : kernel.tiles) {
        const auto written = one.writes.begin();
        const bool is_narrow = tile.num_wide >= 0 && written != one.writes.end() &&
                               written->second.size() > 1 && written->second[1].begin >= wide_columns;
        made.us.push_back(is_narrow ? narrow : wide);
    }
    return made;
}

/// A collective of the library, and the product before or behind it.
Estimate pair_of(const Problem& problem, const Machine& machine, const ProductShape& shape, Kind kind) {
    const Rates& rates = machine.rates;
    const bool before = kind == Kind::gathers || kind == Kind::exchanges;
    const bool shares = kind == Kind::gathers || kind == Kind::scatters || kind == Kind::reduces;
    const double whole =
        static_cast<double>(shape.m) * (before ? static_cast<double>(shape.k) * problem.item()
                                               : static_cast<double>(shape.n) * problem.out_item());
    const double others = static_cast<double>(problem.ranks - 1) / problem.ranks;
    const double far = static_cast<double>(problem.nodes - 1) / problem.nodes;
    const double places = static_cast<double>(problem.ranks) / problem.nodes;
    const double inside = library_collective_us(rates, kind, whole * others / fuse::kMib);
    const double steps = std::bit_width(static_cast<std::uint32_t>(problem.nodes - 1));
    const double across =
        (kind == Kind::reduces ? 2 : 1) *
        (steps * rates.network_us + over(whole * far / (shares ? places : 1), rates.network_collective_gbps));
    Estimate made;
    made.compute = library_product_us(machine, problem.dtype, shape);
    made.communicate = made.exposed = std::max(inside, across);
    made.fixed = rates.kernel_us;
    made.us = made.fixed + made.compute + made.exposed;
    return made;
}

Estimate added(const Estimate& a, const Estimate& b, double once) {
    return {.us = a.us + b.us - once,
            .compute = a.compute + b.compute,
            .communicate = a.communicate + b.communicate,
            .exposed = a.exposed + b.exposed,
            .fixed = a.fixed + b.fixed - once};
}

Estimate unknown() { return {.us = kUnknownUs}; }

}  // namespace

Estimate estimate_over_nodes(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    const OperatorRow* row = operator_row(problem.op);
    const std::vector<ProductShape> shapes = problem.products();
    if (machine.rates.network_gbps <= 0 || row == nullptr || shapes.empty()) return unknown();
    if (strategy.placement == Placement::unfused) {
        if (row->kind != Kind::block) return pair_of(problem, machine, shapes.front(), row->kind);
        return added(pair_of(problem, machine, shapes.front(), Kind::gathers),
                     pair_of(problem, machine, shapes.back(), Kind::scatters), 0);
    }
    if (strategy.placement == Placement::apart) {
        const std::vector<Problem> parts = problem.parts();
        if (parts.size() != 2 || strategy.parts.size() != 2) return unknown();
        return added(estimate(parts[0], machine, strategy.parts[0]),
                     estimate(parts[1], machine, strategy.parts[1]), machine.rates.call_us);
    }
    const Result<fuse::StagedProgram> program = ops::program(problem, strategy);
    if (!program) return unknown();
    const Result<fuse::Decisions> work =
        fuse::decide(*program, options_of(strategy, fuse::Device::cuda, machine));
    if (!work) return unknown();
    std::vector<StageTiles> stages;
    for (std::size_t i = 0; i < program->stages.size(); ++i)
        stages.push_back(tiles_of(problem, machine, strategy, shapes[i],
                                  strategy.tiles[std::min(i, strategy.tiles.size() - 1)],
                                  program->stages[i].kernel));
    const bool quick = strategy.kernel == ProductKernel::gluon &&
                       (row->kind == Kind::gathers || row->kind == Kind::exchanges);
    const double fixed = machine.rates.call_us + (quick ? machine.rates.kernel_us : machine.rates.fused_us);
    return play(*program, *work, stages, fixed, machine, strategy);
}

plan::OpRef Started::of(OpRef ref) const { return {ref.rank, place[at(ref.rank)][at(ref.index)]}; }

Started in_start_order(const plan::Plan& transfers, const fuse::Graph& graph) {
    Started made{transfers, {}};
    for (std::size_t rank = 0; rank < graph.start_order.size(); ++rank) {
        std::vector<std::int32_t>& place = made.place.emplace_back(transfers.ranks[rank].size(), 0);
        for (std::size_t next = 0; next < graph.start_order[rank].size(); ++next)
            place[at(graph.ref(graph.start_order[rank][next]).index)] = static_cast<std::int32_t>(next);
    }
    for (std::size_t rank = 0; rank < made.place.size(); ++rank) {
        for (std::size_t index = 0; index < transfers.ranks[rank].size(); ++index) {
            plan::Op op = transfers.ranks[rank][index];
            for (OpRef& before : op.after) before = made.of(before);
            made.plan.ranks[rank][at(made.place[rank][index])] = std::move(op);
        }
    }
    return made;
}

void meet_between_nodes(const fuse::Lowered& lowered, const fuse::Graph& graph, plan::Plan& transfers) {
    std::vector<std::pair<std::int32_t, OpRef>> sides;
    for (const auto& [ref, side] : lowered.channel) sides.emplace_back(graph.round(graph.op(ref)), ref);
    std::ranges::sort(sides);
    struct Rounds {
        std::int32_t now = -1;
        std::vector<OpRef> ends;    ///< of this round: a side ends with its receive
        std::vector<OpRef> before;  ///< of the one before
    };
    std::vector<Rounds> of_rank(transfers.ranks.size());
    for (const auto& [round, ref] : sides) {
        const fuse::ChannelSide& side = lowered.channel.at(ref);
        Rounds& rounds = of_rank[at(ref.rank)];
        if (rounds.now != round) {
            rounds.before = std::exchange(rounds.ends, {});
            rounds.now = round;
        }
        rounds.ends.push_back(side.sends ? side.other : ref);
        plan::Op& op = transfers.ranks[at(ref.rank)][at(ref.index)];
        op.after.insert(op.after.end(), rounds.before.begin(), rounds.before.end());
        op.backend = plan::Backend::automatic;  // of a plan, nothing within a node goes by the channel
        if (side.sends) continue;
        op.kind = plan::OpKind::pull;
        op.peer = side.other.rank;
    }
}

}  // namespace syncopate::tune
