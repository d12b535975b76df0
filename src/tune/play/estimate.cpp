#include "syncopate/tune/play/estimate.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "tune/play/over_nodes.hpp"
#include "tune/play/play.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using fuse::kMib;
using plan::Backend;

/// What was read between, as a share of the cache: so little that all of what was read before is still there,
/// and so much that none is: shares that fit sliced all-gathers of few rows.
constexpr double kAllKept = 0.1;
constexpr double kAllLost = 0.77;
constexpr double kFound = 0.4;  // of the cache: what was read before and is surely still there
/// How sharply a product changes from what multiplying bounds to what reading weights again bounds: the
/// exponent of their norm. Of 4, 6, 8 and 12 the one that fits recorded calls best.
constexpr double kBounds = 8;

/// One product with what comes before or after it.
class Part {
public:
    Part(const Problem& problem, const Machine& machine, const Strategy& strategy, const ProductShape& shape,
         const TileConfig& tile, Kind kind)
        : problem_(problem),
          machine_(machine),
          rates_(machine.rates),
          strategy_(strategy),
          shape_(shape),
          tile_(tile),
          kind_(kind),
          grid_(tile_grid(shape.m, shape.n, tile)),
          occupied_(gluon() ? 1 : occupancy(machine, problem.dtype, shape, tile, programs())) {
        const double row = comes_before() ? static_cast<double>(shape.k) * problem.item()
                                          : static_cast<double>(shape.n) * problem.out_item();
        const double whole = static_cast<double>(shape.m) * row;
        step_bytes_ = whole * (problem.ranks - 1) / problem.ranks;
    }

    [[nodiscard]] Estimate estimate() const {
        Estimate made;
        made.compute = compute_us();
        made.fixed = rates_.call_us;
        if (problem_.ranks == 1) {
            made.us = made.fixed + made.compute;
            return made;
        }
        if (strategy_.placement == Placement::unfused) return unfused();
        if (strategy_.kernel_sums) return summed(made);
        made.fixed += gluon() && comes_before() ? rates_.gluon_fused_us : rates_.fused_us;
        if (strategy_.one_step) return in_one_step(made);
        if (comes_before()) return reads(made);
        if (strategy_.pull)
            return fuse::is_engine(strategy_.backend) ? pulled_by_engine(made) : pulled_by_sums(made);
        return makes(made);
    }

private:
    [[nodiscard]] bool comes_before() const { return kind_ == Kind::gathers || kind_ == Kind::exchanges; }
    [[nodiscard]] bool reduces() const { return kind_ == Kind::scatters || kind_ == Kind::reduces; }
    [[nodiscard]] bool gluon() const { return strategy_.kernel == ProductKernel::gluon; }
    [[nodiscard]] std::int32_t programs() const { return strategy_.programs.value_or(machine_.num_sms); }
    /// Tiles that are made at once: with a split K several programs share one.
    [[nodiscard]] std::int32_t at_once() const {
        return std::max(1, programs() / std::max(1, tile_.split_k));
    }
    [[nodiscard]] double compute_us() const {
        if (!gluon()) return long_call() * product_us(machine_, problem_.dtype, shape_, tile_, programs());
        const double alone =
            gluon_product_us(machine_, problem_.operands(), shape_, tile_, programs()) - rates_.gluon_call_us;
        const std::int64_t each = (grid_.tiles() + at_once() - 1) / at_once();
        return std::max(alone, static_cast<double>(each) * one_tile_us(tile_.block_n));
    }
    [[nodiscard]] double rounds_of_tiles() const {
        const std::int64_t rounds = (grid_.tiles() + at_once() - 1) / at_once();
        return static_cast<double>(rounds);
    }
    [[nodiscard]] double one_tile_us(std::int32_t width) const {
        if (gluon()) {
            // Tiles that follow arrivals, or chunks that leave, no longer load the same blocks at once.
            const bool beside = strategy_.placement != Placement::fused || grid_.tiles() <= at_once();
            const auto& us = beside ? gluon_tile_us : in_turns() ? gluon_turns_tile_us : gluon_lone_tile_us;
            return us(machine_, problem_.operands(), tile_, shape_.k);
        }
        return long_call() * tile_us(machine_, problem_.dtype, tile_, width, shape_.k);
    }
    /// The device's power limit slows long calls of the plain kernel, the more the longer they are.
    [[nodiscard]] double long_call() const {
        const double us = product_us(machine_, problem_.dtype, shape_, tile_, programs());
        if (us < rates_.long_us) return 1;
        return std::pow(rates_.long_plain, 1 + std::log2(us / rates_.long_us) / 2);
    }
    /// Whether chunks take turns, a tile each (fuse/passes/order.hpp).
    [[nodiscard]] bool in_turns() const {
        return parts() == 1 && (strategy_.one_step || strategy_.kernel_sums ||
                                (strategy_.backend == Backend::tma_inline && !comes_before()));
    }
    [[nodiscard]] std::int32_t parts() const { return std::max(1, strategy_.split.value_or(1)); }
    /// Bytes that go through each link in all steps.
    [[nodiscard]] double moved_bytes() const { return step_bytes_ * (kind_ == Kind::reduces ? 2 : 1); }

    static double over(double bytes, double gbps) {
        return gbps <= 0 ? kUnknownUs : bytes / (gbps * kBytesPerUs);
    }

    /// The call's time with all its parts, where transfers and product end at `end` after a start of half the
    /// fixed costs.
    [[nodiscard]] static Estimate whole(Estimate made, double end) {
        made.exposed = std::max(0.0, end - made.compute);
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

    [[nodiscard]] Programs played(double start, double slower) const {
        slower *= occupied_;
        // Where memory is what the product waits for, its tiles share it: they take as long as it does.
        const double bound = std::max(1.0, compute_us() / (rounds_of_tiles() * one_tile_us(tile_.block_n)));
        if (tile_.num_wide < 0) slower *= bound;
        return {.count = at_once(),
                .start_us = start,
                .wide_us = slower * one_tile_us(tile_.block_n),
                .narrow_us = slower * one_tile_us(tile_.block_n / 2),
                .phase_us = gluon() ? rates_.gluon_phase_us : rates_.phase_us};
    }

    /// How much slower the product is beside transfers of so many µs.
    [[nodiscard]] double slower(double communicate, double compute) const {
        return 1 + (rates_.beside_copies - 1) * std::min(1.0, communicate / std::max(compute, 1e-3));
    }

    [[nodiscard]] double beside_sums() const {
        if (!sums_beside(strategy_)) return 1;
        return gluon() ? rates_.gluon_beside_sums : rates_.beside_sums;
    }

    [[nodiscard]] Estimate unfused() const {
        Estimate made;
        made.compute = library_product_us(machine_, problem_.dtype, shape_) - rates_.library_call_us;
        made.communicate = library_collective_us(rates_, kind_, step_bytes_ / kMib);
        made.fixed = rates_.kernel_us;
        made.exposed = made.communicate;
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

    /// Chunks arrive, tiles wait for them.
    [[nodiscard]] Estimate reads(Estimate made) const {
        const Result<std::vector<Arriving>> arriving =
            arrivals(problem_, shape_, machine_, strategy_, kind_ == Kind::gathers);
        if (!arriving) return whole(made, kUnknownUs);
        for (const Arriving& chunk : *arriving) {
            for (const double time : chunk.slices) made.communicate = std::max(made.communicate, time);
        }
        const std::vector<std::int64_t> extents = slices_of(strategy_.chunking, shape_.k);
        std::vector<double> shares;
        for (const std::int64_t extent : extents)
            shares.push_back(static_cast<double>(extent) / static_cast<double>(shape_.k));
        const double start = made.fixed / 2;
        const double beside = slower(made.communicate, made.compute);
        if (fuse::is_inline(strategy_.backend)) {
            // Every column of tiles reads the rows at their owners anew.
            made.communicate = over(step_bytes_ * static_cast<double>(grid_.columns()), rates_.read_gbps);
            return whole(made, std::max(made.communicate, made.compute) + rates_.read_us);
        }
        if (strategy_.together) {  // all tiles begin when all has come, and read the weights once
            const double product =
                std::max(made.compute * beside, over(uncached_bytes(), rates_.memory_gbps));
            return whole(made, std::max(0.0, made.communicate - start) + rates_.poll_us + product);
        }
        const double end = play_reads(grid_, played(start + rates_.poll_us, beside), *arriving, shares);
        return whole(made, std::max({end - start, made.compute,
                                     weights_us(groups_of(*arriving), made.communicate - start)}));
    }

    /// Groups of rows that read the weights each for itself: this rank's, and each peer's.
    [[nodiscard]] double groups_of(const std::vector<Arriving>& arriving) const {
        if (arriving.empty()) return 1;  // a rank that has all the rows
        const double all = static_cast<double>(arriving.size()) + 1;
        const bool in_step = arriving.front().slices.size() > 1 && !strategy_.chunking.peer_by_peer;
        if (!in_step) return all;
        // Slices of all peers' rows come in turn: this rank's rows run ahead of them, in each round, and they
        // find what the peer before read as far as the cache still holds it. How far apart they stay is how
        // far apart their first slices come.
        const auto first = [](const Arriving& chunk) { return chunk.slices.front(); };
        const auto [least, most] = std::ranges::minmax(arriving, {}, first);
        const double others = std::max(1.0, all - 2);
        const double lag = (first(most) - first(least)) / others;
        const double read = lag * rates_.again_gbps * kBytesPerUs / (rates_.cache_mib * kMib);
        const double lost = std::clamp((read - kAllKept) / (kAllLost - kAllKept), 0.0, 1.0);
        return std::min(all, 2 * rounds() + others * lost);
    }

    [[nodiscard]] double uncached_bytes() const {
        return uncached_weight_bytes(machine_, problem_.dtype, shape_);
    }

    /// µs to read weights that the cache does not hold once for each group of rows that begins at a time of
    /// its own. `lag`: µs by which the others begin later, at the most; where all of them go side by side,
    /// and the cache holds what was read meanwhile, they find it there.
    [[nodiscard]] double weights_us(double groups, double lag = kUnknownUs) const {
        const bool found = rounds_of_tiles() <= 1 &&
                           lag * rates_.again_gbps * kBytesPerUs <= kFound * rates_.cache_mib * kMib;
        const double times = found ? 1 : std::min(groups, static_cast<double>(grid_.rows));
        return over(times * uncached_bytes(), rates_.again_gbps);
    }

    /// Chunks leave as their tiles are made.
    [[nodiscard]] Estimate makes(Estimate made) const {
        if (strategy_.backend == Backend::tma_inline) return stored(made);
        if (strategy_.stored > 0 && strategy_.stored == problem_.ranks - 1) return stored(made);
        const bool everywhere = kind_ == Kind::reduces;
        const MadeOrder order = made_order(problem_, shape_, strategy_, everywhere);
        const std::vector<double> at_once(order.chunks.size() + 1, 0.0);
        Strategy strategy = strategy_;
        strategy.tiles = {tile_};
        Problem problem = problem_;
        if (problem.op == "feed_forward") problem.op = "matmul_reduce_scatter";
        const auto sent = [&](const std::vector<double>& times) {
            return departures(problem, shape_, machine_, strategy, order, times);
        };
        const Result<double> alone = sent(at_once);
        if (!alone) return whole(made, kUnknownUs);
        made.communicate = *alone;
        double beside = slower(made.communicate, made.compute);
        const double stored_bytes = step_bytes_ * strategy_.stored / (problem_.ranks - 1);
        if (strategy_.stored > 0)
            beside *= 1 + (1 - 1 / rounds()) * over(stored_bytes, rates_.store_stall_gbps) /
                              std::max(made.compute, 1e-3);
        if (everywhere && problem_.ranks > 2) {
            // Sums that store at all ranks take multiprocessors from the tiles.
            beside *= beside_sums();
            const double chunk = step_bytes_ / (problem_.ranks - 1) / parts();
            if (chunk <= rates_.summed_store_mib * kMib && parts() > 1 && sums_beside(strategy_) &&
                strategy_.backend != Backend::copy_engine)
                beside += over(step_bytes_ * (parts() - 1) / parts(), rates_.store_gbps) / made.compute;
        }
        beside *= weights_again(row_groups(), made.compute);
        const std::vector<double> times = play_makes(grid_, played(0, beside), order.chunks);
        const Result<double> end = sent(times);
        if (!end) return whole(made, kUnknownUs);
        double last = std::max(*end, times.back());
        if (strategy_.stored > 0) {
            // What tiles store at peers begins with the first round, at the rate at which all of them can.
            const double carried = over(stored_bytes, rates_.tile_store_gbps.at(stored_bytes / kMib));
            last = std::max(last, carried + made.compute / rounds());
        }
        if (kind_ == Kind::sends) last += rates_.sent_us;
        return whole(made, last + rates_.copied_part_us * (parts() - 1));
    }

    /// How much slower a product of so many µs is that reads the weights once for each group of rows.
    [[nodiscard]] double weights_again(double groups, double compute) const {
        const auto both = [compute](double us) {
            return std::pow(std::pow(compute, kBounds) + std::pow(us, kBounds), 1 / kBounds);
        };
        return both(weights_us(groups)) / both(weights_us(1));
    }

    /// Groups of rows that a product makes one after another: of each rank's shard its chunks. Those of one
    /// round run side by side.
    [[nodiscard]] double row_groups() const {
        const bool by_rows = strategy_.split_axis.value_or(0) == 0;
        return std::min<double>(problem_.ranks * (by_rows ? parts() : 1), rounds_of_tiles());
    }

    /// When the sum of each part may begin, beside `slower`: its own chunk is complete. And then the whole
    /// product.
    [[nodiscard]] std::vector<double> parts_made(double slower) const {
        const MadeOrder order = made_order(problem_, shape_, strategy_, kind_ == Kind::reduces);
        const std::vector<double> times = play_makes(grid_, played(0, slower), order.chunks);
        std::vector<double> made(static_cast<std::size_t>(parts()), 0);
        for (std::size_t c = 0; c < order.chunks.size(); ++c) {
            double& part = made[at(order.part[c])];
            part = std::max(part, times[c]);
        }
        if (!sums_beside(strategy_)) std::ranges::fill(made, times.back());
        made.push_back(times.back());
        return made;
    }

    /// Parts are summed one after another, each in `us` once it is complete.
    [[nodiscard]] static double chained(const std::vector<double>& made, double us) {
        double now = 0;
        for (std::size_t part = 0; part + 1 < made.size(); ++part) now = std::max(now, made[part]) + us;
        return std::max(now, made.back());
    }

    /// Tiles are stored at their destination.
    [[nodiscard]] Estimate stored(Estimate made) const {
        const double stall = over(step_bytes_, rates_.store_stall_gbps);
        const double carried = over(step_bytes_, rates_.tile_store_gbps.at(step_bytes_ / kMib));
        made.communicate = carried;
        double beside = 1 + stall / std::max(made.compute, 1e-3);
        if (kind_ == Kind::reduces && parts() > 1) beside *= beside_sums();
        if (!reduces()) return whole(made, std::max(made.compute + stall, carried + made.compute / rounds()));
        const double shard = step_bytes_ / (problem_.ranks - 1);
        double us = rates_.sum_us + over((problem_.ranks + 1) * shard / parts(), rates_.sum_gbps);
        if (kind_ == Kind::reduces) {
            const double sums = over(step_bytes_, rates_.store_gbps);
            made.communicate += sums;
            us += rates_.store_us + sums / parts();
        }
        // What one round makes is stored by all at once when it ends.
        std::vector<double> parts_end = parts_made(beside);
        for (std::size_t part = 0; part + 1 < parts_end.size(); ++part)
            parts_end[part] += carried / std::max<double>(parts(), rounds());
        double& last = parts_end[parts_end.size() - 2];
        last = std::max(last, carried + made.compute / rounds());
        // Tiles and sums share the links. In one part tiles for all ranks take turns: the weights are read
        // once.
        return whole(made, std::max({chained(parts_end, us), made.communicate + made.compute / rounds(),
                                     weights_us(parts() > 1 ? row_groups() : 1) + us}));
    }

    /// Every rank stores its contribution at all others, and sums all of it.
    [[nodiscard]] Estimate in_one_step(Estimate made) const {
        const double whole_bytes = step_bytes_ * problem_.ranks / (problem_.ranks - 1);
        const double sent = whole_bytes * (problem_.ranks - 1);
        const double stall = over(sent, rates_.store_stall_gbps);
        const double carried = over(sent, rates_.tile_store_gbps.at(sent / kMib));
        const double sum =
            rates_.sum_us + over((problem_.ranks + 1) * whole_bytes / parts(), rates_.sum_gbps);
        made.communicate = carried + sum;
        return whole(made, std::max(made.compute + stall, carried + made.compute / rounds()) + sum);
    }

    /// Tiles are stored at their owners, or at all ranks, and the product's programs sum.
    [[nodiscard]] Estimate summed(Estimate made) const {
        const double rows = static_cast<double>(grid_.rows * tile_.block_m);  // stored whole
        const double whole_bytes = rows * static_cast<double>(shape_.n) * problem_.out_item();
        const double sent = strategy_.one_step ? whole_bytes * (problem_.ranks - 1) : step_bytes_;
        made.communicate = over(sent, rates_.tile_store_gbps.at(sent / kMib));
        made.fixed += rates_.kernel_sums_us;
        const double sum = over(sent + whole_bytes, rates_.kernel_sums_gbps);
        // Two thirds of what all but the last round makes leave beside it.
        const double left = made.communicate * (1 + 2 / rounds()) / 3;
        return whole(made, std::max(made.compute + left, made.communicate + made.compute / rounds()) + sum);
    }

    [[nodiscard]] double rounds() const {
        return std::max(1.0, static_cast<double>(grid_.tiles()) / at_once());
    }

    /// The chunk engine reads contributions beside the kernel, one part after another.
    [[nodiscard]] Estimate pulled_by_engine(Estimate made) const {
        const double gbps = rates_.engine_sums(strategy_.backend, strategy_.engine_blocks.value_or(0));
        made.communicate = over(moved_bytes(), gbps);
        const double longer = std::max(made.compute, made.communicate);
        const double shorter = std::min(made.compute, made.communicate);
        return whole(made, longer + shorter / parts() + rates_.part_us * parts() + rates_.last_us);
    }

    /// Sums, kernels beside the product's, read contributions where they are.
    [[nodiscard]] Estimate pulled_by_sums(Estimate made) const {
        made.communicate = over(moved_bytes(), rates_.read_gbps);
        const double us = rates_.pulled_us + over(moved_bytes() / parts(), rates_.read_gbps);
        const double read = moved_bytes() * (parts() - 1) / parts();
        const double beside = sums_beside(strategy_) ? over(read, rates_.pulled_slow_gbps) : 0;
        return whole(made, chained(parts_made(1 + beside / std::max(made.compute, 1e-3)), us));
    }

    const Problem& problem_;
    const Machine& machine_;
    const Rates& rates_;
    const Strategy& strategy_;
    const ProductShape& shape_;
    const TileConfig& tile_;
    Kind kind_;
    TileGrid grid_;
    double occupied_ = 1;    ///< a tile's time, as not all multiprocessors work all the time
    double step_bytes_ = 0;  ///< into each rank in one step
};

/// Two in a row. `shared`: of their fixed costs, what they have once.
Estimate one_after_another(const Estimate& first, const Estimate& second, double shared) {
    return {.us = first.us + second.us - shared,
            .compute = first.compute + second.compute,
            .communicate = first.communicate + second.communicate,
            .exposed = first.exposed + second.exposed,
            .fixed = first.fixed + second.fixed - shared};
}

/// A block as operators that are apart: what two events of the device take is there once.
Estimate in_parts(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    const std::vector<Problem> operators = problem.parts();
    if (operators.size() != strategy.parts.size()) return {};
    Estimate made = estimate(operators.front(), machine, strategy.parts.front());
    for (std::size_t i = 1; i < operators.size(); ++i)
        made = one_after_another(made, estimate(operators[i], machine, strategy.parts[i]),
                                 machine.rates.call_us);
    return made;
}

}  // namespace

std::string estimate_objection(const Problem& problem, const Machine& machine) {
    constexpr std::int32_t kMostRanks = 64;
    if (problem.nodes > 1) {
        if (problem.products().empty()) return fmt::format("estimates of {} are of one node", problem.op);
        if (machine.rates.network_gbps > 0) return {};
        return fmt::format("{} says nothing of a network between {} nodes: its file has no \"network\"",
                           machine.name, problem.nodes);
    }
    if (problem.ranks <= kMostRanks) return {};
    return fmt::format("estimates are of at most {} ranks, got {}", kMostRanks, problem.ranks);
}

Estimate estimate(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    if (problem.nodes > 1) return estimate_over_nodes(problem, machine, strategy);
    if (problem.op == "moe") return estimate_mixture(problem, machine, strategy);
    const OperatorRow* row = operator_row(problem.op);
    const std::vector<ProductShape> shapes = problem.products();
    if (row == nullptr || shapes.empty() || strategy.tiles.empty()) return {};
    const auto part = [&](std::size_t at, Kind kind) {
        const TileConfig& tile = strategy.tiles[std::min(at, strategy.tiles.size() - 1)];
        return Part(problem, machine, strategy, shapes[at], tile, kind).estimate();
    };
    if (row->kind != Kind::block) return part(0, row->kind);
    if (strategy.placement == Placement::apart) return in_parts(problem, machine, strategy);
    const Estimate first = part(0, Kind::gathers);
    const Estimate second = part(1, Kind::scatters);
    return one_after_another(first, second, std::min(first.fixed, second.fixed));
}

}  // namespace syncopate::tune
