// What no call of a strategy is quicker than, told from bytes, rates and tiles alone.
#include <algorithm>

#include "syncopate/fuse/model/backend.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/operator_play.hpp"
#include "tune/play/product_tiles.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using plan::Backend;
using Kind = OperatorRow::Kind;

class Least {
public:
    Least(const Problem& problem, const Machine& machine, const Strategy& strategy, const Product& product)
        : problem_(problem),
          rates_(machine.rates),
          strategy_(strategy),
          product_(product),
          tiles_(problem, machine, strategy, product),
          links_(links_for(machine, problem.ranks, strategy)),
          fixed_(fixed_us(rates_, strategy, product.kind)),
          others_(problem.ranks - 1.0) {
        const double row = comes_before(product.kind)
                               ? static_cast<double>(product.shape.k) * problem.item()
                               : static_cast<double>(product.shape.n) * problem.out_item();
        bytes_ = static_cast<double>(product.shape.m) * row * others_ / problem.ranks;
        for (const plan::Link& link : links_.links) {
            link_gbps_ += link.to == 0 ? link.gbps : 0;
            latency_us_ = std::min(latency_us_, link.latency_us);
        }
    }

    [[nodiscard]] double us() const { return comes_before(product_.kind) ? reading_us() : making_us(); }

private:
    [[nodiscard]] bool by_engine() const { return fuse::is_engine(strategy_.backend); }
    [[nodiscard]] const plan::Engine& engine() const { return by_engine() ? links_.sm : links_.copy_engine; }
    [[nodiscard]] double parts() const { return std::max(1, strategy_.split.value_or(1)); }

    /// The product alone; or all that comes, and what the last tile does behind it.
    [[nodiscard]] double reading_us() const {
        const double alone = fixed_ + tiles_.alone_us();
        if (fuse::is_inline(strategy_.backend))
            return std::max(alone, fixed_ / 2 + over(bytes_, rates_.read_gbps));
        const double first = strategy_.pull ? engine().pull_us : engine().push_us;
        double begins = links_.start_us + first + latency_us_ + engine().post_us;
        if (strategy_.backend != Backend::ldst_dedicated) begins += rates_.kernel_us;
        // What goes by loads and stores may go all at once; else two are on their way at the most.
        const double pair = strategy_.backend == Backend::ldst_dedicated
                                ? 0
                                : std::min(first, engine().repeat_us.value_or(first)) + engine().post_us;
        const double come = over(bytes_, link_gbps_);
        const double made = strategy_.together ? come + tiles_.alone_us() : sliced_us(come, pair);
        return std::max(alone, std::max(fixed_ / 2, begins) + made);
    }

    /// A tile goes on slice by slice, of which the n-th comes when that of all peers has, or when all of the other
    /// peers' has. `come`: µs of all bytes; `pair`: of each two transfers beside those of their bytes.
    [[nodiscard]] double sliced_us(double come, double pair) const {
        const std::vector<std::int64_t> slices = slices_of(strategy_.chunking, product_.shape.k);
        const double before = strategy_.chunking.peer_by_peer ? (others_ - 1) / others_ : 0;
        const auto count = static_cast<double>(slices.size());
        const double ops = others_ * strategy_.chunking.rows * count;
        double least = 0, share = 0, number = 0;
        for (const std::int64_t slice : slices) {
            const double left = 1 - share;
            share += static_cast<double>(slice) / static_cast<double>(product_.shape.k);
            number += 1;
            const double bytes_us = come * (before + (1 - before) * share);
            const double pairs = (ops * (before + (1 - before) * number / count) - 1) / 2;
            least = std::max(least, std::max(bytes_us, bytes_us / 2 + pairs * pair) +
                                        left * tiles_.least_tile_us() + (count - number) * tiles_.phase_us());
        }
        return least;
    }

    /// The product alone, and what becomes of its last part; or a tile, and all that is moved.
    [[nodiscard]] double making_us() const {
        const double alone = fixed_ + tiles_.alone_us();
        const double first = fixed_ / 2 + tiles_.least_tile_us();
        const bool everywhere = product_.kind == Kind::reduces;
        if (strategy_.pull) {
            const double us = by_engine() ? rates_.kernel_us : rates_.sum_us;
            const double end = by_engine() ? rates_.sum_us : 0;
            const double gbps = by_engine()  ? rates_.engine_sums(strategy_.engine_blocks.value_or(0))
                                : everywhere ? std::max(rates_.read_gbps, rates_.store_gbps)
                                             : rates_.read_gbps;
            const double moved = over(bytes_ * (everywhere ? 2 : 1), gbps);
            return std::max(alone + us + moved / parts() / 2, first + us + moved) + end;
        }
        const bool stores = strategy_.backend == Backend::tma_inline || strategy_.stored > 0;
        double gbps = stores ? 0 : link_gbps_;
        if (stores) {
            for (const auto& [mib, stored] : rates_.tile_store_gbps.points) gbps = std::max(gbps, stored);
            if (strategy_.stored > 0) gbps = std::max(gbps, link_gbps_);
        }
        const double sent = over(bytes_ * (strategy_.one_step ? problem_.ranks : 1), gbps);
        const double begins = stores ? 0 : engine().push_us + latency_us_ + engine().post_us;
        if (product_.kind == Kind::sends)
            return std::max(alone, first + begins + sent) + (stores ? 0 : rates_.sum_us);
        if (strategy_.kernel_sums) return std::max(alone, first + sent);
        const double copied = stores || strategy_.one_step ? 0 : (parts() - 1) * rates_.copied_part_us;
        if (!everywhere || strategy_.one_step)
            return std::max(alone, first + begins + sent) + rates_.sum_us + copied;
        // What is summed goes to all: the last part of it behind the last tile.
        const double again = over(bytes_, std::max(link_gbps_, rates_.store_gbps));
        return rates_.sum_us + copied +
               std::max(alone + again / parts(),
                        first + begins + std::max(sent, again) + std::min(sent, again) / parts());
    }

    const Problem& problem_;
    const Rates& rates_;
    const Strategy& strategy_;
    const Product& product_;
    ProductTiles tiles_;
    plan::Topology links_;
    double fixed_;
    double others_;         ///< peers
    double bytes_ = 0;      ///< into a rank, once
    double link_gbps_ = 0;  ///< likewise
    double latency_us_ = kUnknownUs;
};

}  // namespace

double least_us(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    if (problem.ranks == 1 || problem.nodes > 1 || strategy.placement != Placement::fused ||
        strategy.tiles.empty())
        return 0;
    const std::vector<Product> products = products_of(problem, strategy);
    if (products.size() != 1) return 0;
    return Least(problem, machine, strategy, products.front()).us() +
           result_copied_us(problem, machine, strategy);
}

}  // namespace syncopate::tune
