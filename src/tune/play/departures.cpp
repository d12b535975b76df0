// When what a product makes has left: in which order its chunks are made, and the sums behind them.
#include <algorithm>
#include <map>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/try.hpp"
#include "tune/play/transfer_plan.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using plan::Backend;

bool is_reduction(const Problem& problem) {
    const auto kind = operator_row(problem.op)->kind;
    return kind == OperatorRow::Kind::scatters || kind == OperatorRow::Kind::reduces ||
           kind == OperatorRow::Kind::block;
}

/// The sums' and the sent sums' times; what the runtime does with a sum is a rule of fuse/passes/assign.cpp.
class ReductionTimes {
public:
    ReductionTimes(const Problem& problem, const ProductShape& shape, const Machine& machine,
                   const Strategy& strategy, const MadeOrder& order, const std::vector<double>& made)
        : problem_(problem), machine_(machine), strategy_(strategy), order_(order), made_(made) {
        const double shard = static_cast<double>(rows_of_rank(shape.m, problem.ranks, 0).end);
        bytes_ = shard * static_cast<double>(shape.n) * problem.out_item() / order.parts;
        if (!machine.topology.links.empty())
            link_bytes_per_us_ = machine.topology.links.front().gbps * kBytesPerUs;
        beside_ = sums_beside(strategy);
        const TileConfig& tile = strategy.tiles.back();
        round_us_ = std::max(round_us_, tile_us(machine, problem.dtype, tile, tile.block_n, shape.k));
    }

    Result<double> end(const plan::Plan& before, const fuse::Lowered& lowered, bool everywhere,
                       const plan::Topology& links) {
        plan::Plan plan = fuse::transfers_of(lowered);
        for (const auto& [pull, sum] : lowered.done_with) drop(plan, pull);
        auto timings = timings_for(plan);
        for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
            std::map<std::int32_t, std::int32_t> seen;  // by peer: parts that have been sent to it
            std::map<std::int32_t, std::int32_t> sent;  // the same of sums
            std::int32_t sums = 0;
            for (std::size_t i = 0; i < plan.ranks[rank].size(); ++i) {
                plan::Op& op = plan.ranks[rank][i];
                plan::OpTiming& timing = timings[rank][i];
                const bool contribution =
                    i < before.ranks[rank].size() && before.ranks[rank][i].reduce != plan::Reduce::none;
                if (contribution) {
                    op.reduce = plan::Reduce::none;
                    contribute(op, before.ranks[rank][i], static_cast<std::int32_t>(rank), seen, timing);
                } else if (fuse::is_sum(op)) {
                    sum(sums++, everywhere, timing);
                } else if (stored_by_sum(sent[op.peer]++)) {
                    timing.lasts_us = 0;
                } else if (problem_.ranks > 2 && beside_) {
                    timing.lasts_us =
                        links.copy_engine.push_us + bytes_ / (machine_.rates.crossing_gbps * kBytesPerUs);
                }
            }
        }
        SYNCOPATE_TAKE(const plan::Simulation simulation,
                       plan::simulate(plan, links, {.posts = true, .timings = std::move(timings)}));
        // The kernel goes on to its own rows when its stores at peers are under way.
        double stored = 0;
        for (std::size_t i = 0; i < before.ranks.front().size(); ++i) {
            if (plan.ranks.front()[i].backend == Backend::tma_inline)
                stored = std::max(stored, simulation.ops.front()[i].end_us);
        }
        const double own = made_.back() - made(problem_.ranks - 1, order_.parts - 1);
        double last = std::max(latest(simulation), stored == 0 ? 0 : stored + own + machine_.rates.sum_us);
        if (everywhere && !beside_) {
            // Each part waits for the sum before it, and what they leave goes by the same links.
            const double sums = bytes_ * order_.parts * (problem_.ranks - 1);
            const double part = machine_.rates.sum_us + summed_us() + machine_.rates.store_us;
            last = std::max(last, made_.back() + order_.parts * part + sums / link_bytes_per_us_);
        }
        return last;
    }

private:
    /// A pull that its sum does itself takes no time of its own.
    static void drop(plan::Plan& plan, plan::OpRef ref) {
        plan::Op& op = plan.ranks[at(ref.rank)][at(ref.index)];
        op.backend = Backend::ldst_inline;
    }

    [[nodiscard]] double made(std::int32_t offset, std::int32_t part) const {
        for (std::size_t c = 0; c < order_.chunks.size(); ++c) {
            if (order_.offset[c] == offset && order_.part[c] == part) return made_[c];
        }
        return made_.back();
    }

    void contribute(const plan::Op& op, const plan::Op& original, std::int32_t rank,
                    std::map<std::int32_t, std::int32_t>& seen, plan::OpTiming& timing) {
        const std::int32_t part = seen[original.peer]++;
        const std::int32_t ranks = problem_.ranks;
        const bool pulled = original.kind == plan::OpKind::pull;
        const std::int32_t offset =
            pulled ? (rank - original.peer + ranks) % ranks : (original.peer - rank + ranks) % ranks;
        timing.ready_us = made(offset, part);
        // Stored tile by tile while it is made: it shares the links with what is copied meanwhile.
        if (op.backend == Backend::tma_inline) timing.ready_us = offset == 1 ? 0 : made(offset - 1, part);
        if (op.backend == Backend::ldst_inline) timing.lasts_us = 0;
    }

    [[nodiscard]] bool stored_by_sum(std::int32_t part) const {
        if (strategy_.backend == Backend::copy_engine) return false;
        const bool last = part + 1 >= order_.parts;
        const Rates& rates = machine_.rates;
        return bytes_ <= fuse::kMib * (last ? rates.last_store_mib : rates.summed_store_mib);
    }

    /// µs to read and write what the sum of one chunk does.
    [[nodiscard]] double summed_us() const {
        return (problem_.ranks + 1) * bytes_ / (machine_.rates.sum_gbps * kBytesPerUs);
    }

    void sum(std::int32_t part, bool everywhere, plan::OpTiming& timing) {
        const Rates& rates = machine_.rates;
        timing.ready_us = beside_ ? made(0, part) : made_.back();
        // What the kernel makes in several rounds is summed in parts as they are made, and the last part is
        // left; but not where the last contribution comes after the own part.
        const plan::Engine& copies = machine_.topology.copy_engine;
        const double one = copies.push_us + copies.post_us + bytes_ / link_bytes_per_us_;
        const std::int32_t others = problem_.ranks - 1;
        const double arrives =
            std::max(made(others, part) + one, made(1, part) + others * order_.parts * one);
        const double own_us = made(0, part) - arrives;
        constexpr double most = 8;
        if (beside_) {
            timing.lasts_us = rates.sum_us + summed_us() / std::clamp(own_us / round_us_, 1.0, most);
        } else {
            // Beside the Gluon kernel few threads sum: what they leave is done by all when it has ended.
            const double beside_us = everywhere ? 0 : (made_.back() - arrives) / order_.parts;
            const double done_us = beside_us * rates.gluon_sum_gbps / rates.sum_gbps;
            timing.lasts_us = rates.sum_us + std::max(summed_us() - done_us, summed_us() / most);
        }
        if (fuse::is_engine(strategy_.backend)) {  // which sums on its own multiprocessors
            const double gbps = rates.engine_sums(strategy_.backend, strategy_.engine_blocks.value_or(0));
            timing.lasts_us = rates.sum_us + (problem_.ranks + 1) * bytes_ / (gbps * kBytesPerUs);
        }
        if (everywhere) timing.lasts_us += rates.store_us;
        if (everywhere && stored_by_sum(part))
            timing.lasts_us += (problem_.ranks - 1) * bytes_ / (rates.store_gbps * kBytesPerUs);
    }

    const Problem& problem_;
    const Machine& machine_;
    const Strategy& strategy_;
    const MadeOrder& order_;
    const std::vector<double>& made_;
    double bytes_ = 0;  ///< of one chunk of a shard
    double link_bytes_per_us_ = 1;
    double round_us_ = 1;  ///< of one round of tiles
    bool beside_ = true;   ///< sums run beside the product
};

}  // namespace

MadeOrder made_order(const Problem& problem, const ProductShape& shape, const Strategy& strategy,
                     bool reduces_everywhere) {
    const std::int32_t ranks = problem.ranks;
    const std::int32_t split = strategy.split.value_or(1);
    const bool columns = strategy.split_axis.value_or(0) == 1;
    const bool by_part = split > 1 && (columns || reduces_everywhere || strategy.pull);
    MadeOrder order;
    order.parts = split;
    const auto add = [&](std::int32_t offset, std::int32_t part) {
        const Rows shard = rows_of_rank(shape.m, ranks, offset % ranks);
        const std::vector<Rows> cut = parts_of(columns ? Rows{0, shape.n} : shard, split);
        if (static_cast<std::size_t>(part) >= cut.size()) return;
        const Rows piece = cut[at(part)];
        order.chunks.push_back(columns ? Made{shard, piece} : Made{piece, {0, shape.n}});
        order.offset.push_back(offset % ranks);
        order.part.push_back(part);
    };
    for (std::int32_t outer = 0; outer < (by_part ? split : ranks); ++outer) {
        for (std::int32_t inner = 0; inner < (by_part ? ranks : split); ++inner)
            add(1 + (by_part ? inner : outer), by_part ? outer : inner);
    }
    return order;
}

Result<double> departures(const Problem& problem, const ProductShape& shape, const Machine& machine,
                          const Strategy& strategy, const MadeOrder& order, const std::vector<double>& made) {
    if (problem.ranks == 1) return made.back();
    plan::Topology links = links_for(machine, problem.ranks, strategy);
    links.start_us = 0;
    const auto chunk =
        static_cast<double>(shape.m * shape.n) * problem.out_item() / problem.ranks / order.parts;
    // Such chunks go by two streams in turn (fuse/passes/place.hpp). That gains where starting a copy takes longer
    // than its bytes; others share the link.
    const double rate = links.links.empty() ? 0 : links.links.front().gbps * kBytesPerUs;
    if (chunk < (links.copy_engine.push_us + links.copy_engine.post_us) * rate) links.copy_engine.lanes = 2;
    if (strategy.stored > 0) {
        links.sm.push_us = links.sm.post_us = 0;  // with the tiles
        for (plan::Link& link : links.links) link.contended = machine.rates.stored_contended;
    }
    const bool everywhere = operator_row(problem.op)->kind == OperatorRow::Kind::reduces;
    if (is_reduction(problem)) {
        SYNCOPATE_TAKE(
            plan::Plan plan,
            plan_of(problem, everywhere ? "matmul_all_reduce" : "matmul_reduce_scatter", shape, strategy));
        SYNCOPATE_TAKE(const fuse::Lowered lowered, fuse::lower(plan));
        ReductionTimes times(problem, shape, machine, strategy, order, made);
        return times.end(plan, lowered, everywhere, links);
    }
    SYNCOPATE_TAKE(plan::Plan exchanged, plan_of(problem, problem.op, shape, strategy));
    send_all_by(exchanged, strategy.backend);
    auto timings = timings_for(exchanged);
    for (std::size_t rank = 0; rank < exchanged.ranks.size(); ++rank) {
        std::size_t next = 0;  // ops come in the order of the chunks
        for (std::size_t i = 0; i < exchanged.ranks[rank].size(); ++i) {
            plan::OpTiming& timing = timings[rank][i];
            timing.ready_us = next < made.size() ? made[next] : made.back();
            ++next;
            if (exchanged.ranks[rank][i].kind == plan::OpKind::local) timing.lasts_us = 0;  // stored in place
        }
    }
    SYNCOPATE_TAKE(const plan::Simulation simulation,
                   plan::simulate(exchanged, links, {.posts = true, .timings = std::move(timings)}));
    return latest(simulation);
}

bool sums_beside(const Strategy& strategy) {
    return strategy.kernel != ProductKernel::gluon || fuse::is_engine(strategy.backend);
}

bool stores_at_owners(OperatorRow::Kind kind, const Strategy& strategy) {
    using Kind = OperatorRow::Kind;
    const bool sends = kind == Kind::scatters || kind == Kind::reduces || kind == Kind::sends;
    return sends && !strategy.one_step &&
           (strategy.backend == Backend::tma_inline || strategy.stored > 0 || strategy.kernel_sums);
}

}  // namespace syncopate::tune
