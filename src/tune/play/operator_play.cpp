// A call of one of the library's operators on a machine: its program, arranged by fuse, played.
#include "tune/play/operator_play.hpp"

#include <algorithm>
#include <cmath>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/build.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/player.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using plan::Backend;
using Kind = OperatorRow::Kind;

/// One product of the operator, as its tiles go.
class ProductTiles {
public:
    ProductTiles(const Problem& problem, const Machine& machine, const Strategy& strategy,
                 const ProductShape& shape, const TileConfig& tile, Kind kind)
        : problem_(problem),
          machine_(machine),
          rates_(machine.rates),
          strategy_(strategy),
          shape_(shape),
          tile_(tile),
          kind_(kind),
          grid_(tile_grid(shape.m, shape.n, tile)),
          played_(coarse(tile)),
          played_grid_(tile_grid(shape.m, shape.n, played_)) {}

    /// What the graph is made of: tiles of a row that make one chunk, but no more than run at once, as if they
    /// were one, and as many fewer programs.
    [[nodiscard]] TileConfig run_tile() const {
        TileConfig made = played_;
        made.block_n = static_cast<std::int32_t>((shape_.n + runs() - 1) / runs());
        made.num_wide = -1;
        made.split_k = 1;
        return made;
    }
    [[nodiscard]] std::int32_t run_programs() const {
        const std::int64_t in_run = std::max<std::int64_t>(1, (played_grid_.columns() + runs() - 1) / runs());
        return std::max<std::int32_t>(1, static_cast<std::int32_t>(at_once() / in_run));
    }

    /// Of all tiles, with nothing beside them.
    [[nodiscard]] double alone_us() const { return compute_us(); }
    /// Of the shortest tile, or of what it does behind its last slice.
    [[nodiscard]] double least_tile_us() const {
        double share = 1;
        for (const std::int64_t slice : slices_of(strategy_.chunking, shape_.k))
            share = std::min(share, static_cast<double>(slice) / static_cast<double>(shape_.k));
        return share * one_tile_us(grid_.narrow > 0 ? tile_.block_n / 2 : tile_.block_n);
    }

    [[nodiscard]] StageTiles stage(const kernel::Kernel& kernel) const {
        StageTiles made;
        double slower = gluon() ? 1 : occupancy(machine_, problem_.dtype, shape_, tile_, programs());
        const double rounds = static_cast<double>((grid_.tiles() + at_once() - 1) / at_once());
        if (tile_.num_wide < 0) slower *= std::max(1.0, compute_us() / (rounds * one_tile_us(tile_.block_n)));
        slower *= static_cast<double>(grid_.tiles()) / static_cast<double>(played_grid_.tiles());
        const double wide = slower * one_tile_us(tile_.block_n);
        if (grid_.narrow > 0) made.narrow_us = slower * one_tile_us(tile_.block_n / 2);
        const std::int64_t columns = played_grid_.columns();
        for (const kernel::Tile& tile : kernel.tiles) {
            made.us.push_back(wide);
            const plan::Interval box = tile.writes.find("c_desc")->second[1];
            TileRun& run = made.runs.emplace_back(TileRun{0, 0, -1});
            for (std::int64_t column = 0; column < columns; ++column) {
                const std::int64_t begin = played_grid_.first_column(column);
                if (begin < box.begin || begin >= box.end) continue;
                if (run.first_column < 0) run.first_column = static_cast<std::int32_t>(column);
                ++(column < played_grid_.wide ? run.wide : run.narrow);
            }
            run.first_column = std::max(run.first_column, 0);
        }
        made.programs = at_once();
        made.phase_us = rates_.phase_us;
        const bool uncached = uncached_weight_bytes(machine_, problem_.dtype, shape_) > 0;
        made.memory_gbps = uncached ? rates_.memory_gbps : 0;
        made.again_gbps = uncached ? rates_.again_gbps : 0;
        made.column_bytes =
            static_cast<double>(played_.block_n) * static_cast<double>(shape_.k) * problem_.item();
        made.columns = static_cast<std::int32_t>(columns);
        made.alone_us = compute_us();
        made.rows_together = static_cast<std::size_t>(std::max(1, tile_.group_m));
        made.sums_wait = gluon() && !fuse::is_engine(strategy_.backend);
        return made;
    }

private:
    /// Of more tiles than it takes to see the order of events, neighbours as one; ranks' rows end where they did.
    [[nodiscard]] TileConfig coarse(const TileConfig& tile) const {
        constexpr std::int64_t kMostRows = 256;
        constexpr std::int64_t kMostTiles = std::int64_t{1} << 14;
        TileConfig made = tile;
        const std::int64_t shard = shape_.m / problem_.ranks;
        std::int64_t rows = parts(grid_.rows, kMostRows);
        const bool whole = shard % tile.block_m == 0;
        while (whole && rows < shard / tile.block_m && shard % (tile.block_m * rows) != 0) ++rows;
        const std::int64_t columns = parts(grid_.columns() * parts(grid_.rows, rows), kMostTiles);
        made.block_m = static_cast<std::int32_t>(tile.block_m * rows);
        made.block_n = static_cast<std::int32_t>(tile.block_n * columns);
        if (tile.num_wide >= 0) made.num_wide = static_cast<std::int32_t>(tile.num_wide / columns);
        return made;
    }
    static std::int64_t parts(std::int64_t extent, std::int64_t size) { return (extent + size - 1) / size; }
    /// Runs that a row of tiles is cut into.
    [[nodiscard]] std::int64_t runs() const {
        const bool by_columns = strategy_.split_axis.value_or(0) == 1 && sends();
        const std::int64_t chunks = by_columns ? std::max(1, strategy_.split.value_or(1)) : 1;
        // A run's columns are a tile's to the kernel: a number of 32 bits.
        constexpr std::int64_t kWidest = std::int64_t{1} << 30;
        const std::int64_t pieces = parts(parts(played_grid_.columns(), chunks), at_once());
        return chunks * std::max(pieces, parts(shape_.n, chunks * kWidest));
    }
    [[nodiscard]] bool sends() const { return kind_ != Kind::gathers && kind_ != Kind::exchanges; }
    [[nodiscard]] bool gluon() const { return strategy_.kernel == ProductKernel::gluon; }
    [[nodiscard]] std::int32_t programs() const { return strategy_.programs.value_or(machine_.num_sms); }
    [[nodiscard]] std::int32_t at_once() const {
        return std::max(1, programs() / std::max(1, tile_.split_k));
    }
    [[nodiscard]] double long_call() const {
        const double us = product_us(machine_, problem_.dtype, shape_, tile_, programs());
        if (us < rates_.long_us) return 1;
        return std::pow(rates_.long_plain, 1 + std::log2(us / rates_.long_us) / 2);
    }
    [[nodiscard]] double compute_us() const {
        if (!gluon()) return long_call() * product_us(machine_, problem_.dtype, shape_, tile_, programs());
        const double alone =
            gluon_product_us(machine_, problem_.operands(), shape_, tile_, programs()) - rates_.gluon_call_us;
        const std::int64_t each = (grid_.tiles() + at_once() - 1) / at_once();
        return std::max(alone, static_cast<double>(each) * one_tile_us(tile_.block_n));
    }
    [[nodiscard]] double one_tile_us(std::int32_t width) const {
        if (gluon()) {
            const bool beside = strategy_.placement != Placement::fused || grid_.tiles() <= at_once();
            const auto& us = beside ? gluon_tile_us : in_turns() ? gluon_turns_tile_us : gluon_lone_tile_us;
            return us(machine_, problem_.operands(), tile_, shape_.k);
        }
        return long_call() * tile_us(machine_, problem_.dtype, tile_, width, shape_.k);
    }
    [[nodiscard]] bool in_turns() const {
        const bool before = kind_ == Kind::gathers || kind_ == Kind::exchanges;
        return strategy_.split.value_or(1) == 1 && (strategy_.one_step || strategy_.kernel_sums ||
                                                    (strategy_.backend == Backend::tma_inline && !before));
    }

    const Problem& problem_;
    const Machine& machine_;
    const Rates& rates_;
    const Strategy& strategy_;
    const ProductShape& shape_;
    const TileConfig& tile_;
    Kind kind_;
    TileGrid grid_;
    TileConfig played_;  ///< larger ones, of many
    TileGrid played_grid_;
};

}  // namespace

namespace {

struct Product {
    ProductShape shape;
    TileConfig tile;
    Kind kind = Kind::other;
};

std::vector<Product> products_of(const Problem& problem, const Strategy& strategy) {
    const Kind kind = operator_row(problem.op)->kind;
    const std::vector<ProductShape> shapes = problem.products();
    std::vector<Product> made;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        const TileConfig& tile = strategy.tiles[std::min(i, strategy.tiles.size() - 1)];
        made.push_back({shapes[i], tile,
                        kind != Kind::block ? kind
                        : i == 0            ? Kind::gathers
                                            : Kind::scatters});
    }
    return made;
}

bool comes_before(Kind kind) { return kind == Kind::gathers || kind == Kind::exchanges; }

double fixed_us(const Rates& rates, const Strategy& strategy, Kind kind) {
    if (strategy.kernel_sums) return rates.call_us + rates.kernel_sums_us;
    const bool gluon = strategy.kernel == ProductKernel::gluon;
    return rates.call_us + (gluon && comes_before(kind) ? rates.gluon_fused_us : rates.fused_us);
}

/// GB/s into a rank: no transfer of the strategy's goes faster.
double most_gbps(const Machine& machine, std::int32_t ranks, const Strategy& strategy) {
    const plan::Topology links = links_for(machine, ranks, strategy);
    double gbps = 0;
    for (const plan::Link& link : links.links) gbps += link.to == 0 ? link.gbps : 0;
    const Rates& rates = machine.rates;
    for (const auto& [mib, stored] : rates.tile_store_gbps.points) gbps = std::max(gbps, stored);
    for (const double by : {rates.read_gbps, rates.store_gbps}) gbps = std::max(gbps, by);
    if (strategy.pull && fuse::is_engine(strategy.backend))
        gbps = std::max(gbps, rates.engine_sums(strategy.backend, strategy.engine_blocks.value_or(0)));
    return gbps;
}

/// What follows the last tile, which somebody adds to what others have made.
double tail_us(const Rates& rates, const Strategy& strategy, Kind kind) {
    if ((kind != Kind::scatters && kind != Kind::reduces) || strategy.kernel_sums) return 0;
    if (strategy.pull && fuse::is_engine(strategy.backend)) return 2 * rates.part_us;
    const bool sent = kind == Kind::reduces && !strategy.one_step && !strategy.pull;
    return rates.sum_us + (sent ? std::min(rates.store_us, rates.sum_us) : 0);
}

}  // namespace

double least_us(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    if (problem.ranks == 1 || problem.nodes > 1 || strategy.placement != Placement::fused || strategy.tiles.empty()) return 0;
    const std::vector<Product> products = products_of(problem, strategy);
    if (products.size() != 1) return 0;
    const Product& one = products.front();
    const ProductTiles tiles(problem, machine, strategy, one.shape, one.tile, one.kind);
    const Rates& rates = machine.rates;
    const double fixed = fixed_us(rates, strategy, one.kind);
    const bool before = comes_before(one.kind);
    const double row = before ? static_cast<double>(one.shape.k) * problem.item()
                              : static_cast<double>(one.shape.n) * problem.out_item();
    double bytes = static_cast<double>(one.shape.m) * row * (problem.ranks - 1) / problem.ranks;
    if (one.kind == Kind::reduces && !strategy.one_step) bytes *= 2;
    const double moved = over(bytes, most_gbps(machine, problem.ranks, strategy));
    // A tile is made before the first byte leaves, or after the last one has come, but where tiles fetch it.
    const bool fetched = before && fuse::is_inline(strategy.backend);
    const double tile = fetched ? 0 : strategy.together ? tiles.alone_us() : tiles.least_tile_us();
    return std::max(fixed + tiles.alone_us() + tail_us(rates, strategy, one.kind), fixed / 2 + moved + tile);
}

Result<Estimate> play_operator(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    std::vector<ProductTiles> products;
    Strategy runs = strategy;
    runs.tiles.clear();
    runs.kernel = strategy.kernel_sums ? ProductKernel::gluon : ProductKernel::plain;
    const std::vector<Product> all = products_of(problem, strategy);
    for (const auto& [shape, tile, kind] : all) {
        products.emplace_back(problem, machine, strategy, shape, tile, kind);
        runs.tiles.push_back(products.back().run_tile());
        runs.programs = products.back().run_programs();
    }
    const double fixed = fixed_us(machine.rates, strategy, all.front().kind);
    if (problem.ranks == 1) {
        Estimate made{.fixed = machine.rates.call_us};
        for (const ProductTiles& product : products) made.compute += product.alone_us();
        made.us = made.fixed + made.compute;
        return made;
    }
    // Scales are few bytes.
    Problem unscaled = problem;
    unscaled.scales = Scales::none;
    Result<fuse::StagedProgram> program = ops::program(unscaled, runs);
    if (!program) return program.error();
    Result<fuse::Decisions> work = fuse::arrange(*program, options_of(strategy, fuse::Device::cuda, machine));
    if (!work) return work.error();
    std::vector<StageTiles> stages;
    for (std::size_t i = 0; i < products.size(); ++i)
        stages.push_back(products[i].stage(program->stages[i].kernel));
    return play(*program, *work, stages, fixed, machine, strategy, true);
}

}  // namespace syncopate::tune
