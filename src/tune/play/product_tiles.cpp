#include "tune/play/product_tiles.hpp"

#include <cmath>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"

namespace syncopate::tune {
namespace {

using plan::Backend;
using Kind = OperatorRow::Kind;

}  // namespace

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
    // What waits for peers at its begin, or its end, takes as much longer as a further kernel.
    if (strategy.kernel_sums) return rates.call_us + 2 * rates.kernel_us;
    const bool gluon = strategy.kernel == ProductKernel::gluon;
    return rates.call_us + (gluon && comes_before(kind) ? rates.kernel_us : rates.fused_us);
}

ProductTiles::ProductTiles(const Problem& problem, const Machine& machine, const Strategy& strategy,
                           const Product& product)
    : problem_(problem),
      machine_(machine),
      rates_(machine.rates),
      strategy_(strategy),
      shape_(product.shape),
      tile_(product.tile),
      kind_(product.kind),
      grid_(tile_grid(shape_.m, shape_.n, tile_)),
      played_(coarse(tile_)),
      played_grid_(tile_grid(shape_.m, shape_.n, played_)) {}

TileConfig ProductTiles::run_tile() const {
    TileConfig made = played_;
    made.block_n = static_cast<std::int32_t>((shape_.n + runs() - 1) / runs());
    made.num_wide = -1;
    made.split_k = 1;
    return made;
}

std::int32_t ProductTiles::run_programs() const {
    const std::int64_t in_run = std::max<std::int64_t>(1, (played_grid_.columns() + runs() - 1) / runs());
    return std::max<std::int32_t>(1, static_cast<std::int32_t>(at_once() / in_run));
}

double ProductTiles::alone_us() const {
    if (!gluon()) return long_call() * product_us(machine_, problem_.dtype, shape_, tile_, programs());
    const double alone = gluon_product_us(machine_, problem_.operands(), shape_, tile_, programs());
    const std::int64_t each = (grid_.tiles() + at_once() - 1) / at_once();
    return std::max(alone, static_cast<double>(each) * one_tile_us(tile_.block_n));
}

double ProductTiles::least_tile_us() const {
    return one_tile_us(grid_.narrow > 0 ? tile_.block_n / 2 : tile_.block_n);
}

StageTiles ProductTiles::stage(const kernel::Kernel& kernel) const {
    StageTiles made;
    double slower = static_cast<double>(grid_.tiles()) / static_cast<double>(played_grid_.tiles());
    const auto rounds = static_cast<double>(ceil_div(grid_.tiles(), at_once()));
    if (tile_.num_wide < 0) slower *= std::max(1.0, alone_us() / (rounds * one_tile_us(tile_.block_n)));
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
    made.phase_us = phase_us();
    const bool uncached = uncached_weight_bytes(machine_, problem_.dtype, shape_) > 0;
    made.memory_gbps = uncached ? rates_.memory_gbps : 0;
    made.again_gbps = uncached ? rates_.again_gbps : 0;
    made.column_bytes =
        static_cast<double>(played_.block_n) * static_cast<double>(shape_.k) * problem_.item();
    made.columns = static_cast<std::int32_t>(columns);
    made.alone_us = alone_us();
    made.rows_together = static_cast<std::size_t>(std::max(1, tile_.group_m));
    made.sums_wait = gluon() && !fuse::is_engine(strategy_.backend);
    return made;
}

/// Of more tiles than it takes to see the order of events, neighbours as one; ranks' rows end where they did.
TileConfig ProductTiles::coarse(const TileConfig& tile) const {
    constexpr std::int64_t kMostRows = 256;
    constexpr std::int64_t kMostTiles = std::int64_t{1} << 14;
    TileConfig made = tile;
    const std::int64_t shard = shape_.m / problem_.ranks;
    std::int64_t rows = ceil_div(grid_.rows, kMostRows);
    const bool whole = shard % tile.block_m == 0;
    while (whole && rows < shard / tile.block_m && shard % (tile.block_m * rows) != 0) ++rows;
    const std::int64_t columns = ceil_div(grid_.columns() * ceil_div(grid_.rows, rows), kMostTiles);
    made.block_m = static_cast<std::int32_t>(tile.block_m * rows);
    made.block_n = static_cast<std::int32_t>(tile.block_n * columns);
    if (tile.num_wide >= 0) made.num_wide = static_cast<std::int32_t>(tile.num_wide / columns);
    return made;
}

/// Runs that a row of tiles is cut into.
std::int64_t ProductTiles::runs() const {
    const bool by_columns = strategy_.split_axis.value_or(0) == 1 && !comes_before(kind_);
    const std::int64_t chunks = by_columns ? std::max(1, strategy_.split.value_or(1)) : 1;
    // A run's columns are a tile's to the kernel: a number of 32 bits.
    constexpr std::int64_t kWidest = std::int64_t{1} << 30;
    const std::int64_t pieces = ceil_div(ceil_div(played_grid_.columns(), chunks), at_once());
    return chunks * std::max(pieces, ceil_div(shape_.n, chunks * kWidest));
}

double ProductTiles::long_call() const {
    const double us = product_us(machine_, problem_.dtype, shape_, tile_, programs());
    if (us < rates_.long_us) return 1;
    return std::pow(rates_.long_plain, 1 + std::log2(us / rates_.long_us) / 2);
}

double ProductTiles::one_tile_us(std::int32_t width) const {
    if (gluon()) {
        const bool beside = strategy_.placement != Placement::fused || grid_.tiles() <= at_once();
        const auto& us = beside ? gluon_tile_us : in_turns() ? gluon_turns_tile_us : gluon_lone_tile_us;
        return us(machine_, problem_.operands(), tile_, shape_.k);
    }
    return long_call() * tile_us(machine_, problem_.dtype, tile_, width, shape_.k);
}

bool ProductTiles::in_turns() const {
    const bool stored = strategy_.backend == Backend::tma_inline && !comes_before(kind_);
    return strategy_.split.value_or(1) == 1 && (strategy_.one_step || strategy_.kernel_sums || stored);
}

}  // namespace syncopate::tune
