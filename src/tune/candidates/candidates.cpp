#include "syncopate/tune/candidates/candidates.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/choose.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using plan::Backend;

constexpr std::int32_t kMostSplit = 8;
constexpr std::int64_t kLeastSlice = 128;  // of K

class Enumeration {
public:
    Enumeration(const Problem& problem, const Machine& machine)
        : problem_(problem),
          machine_(machine),
          shapes_(problem.products()),
          only_gluon_(problem.item() == 1 && complete(problem, machine, {}).kernel == ProductKernel::gluon) {}

    std::vector<Strategy> all() {
        add({.placement = Placement::unfused});
        add({});
        const OperatorRow* row = operator_row(problem_.op);
        if (problem_.ranks == 1 || shapes_.empty()) return made_;
        if (problem_.nodes > 1) {
            over_nodes(row->kind);
            neighbours();
            return made_;
        }
        switch (row->kind) {
            case Kind::gathers:
            case Kind::exchanges: before(row->kind); break;
            case Kind::scatters:
            case Kind::reduces: reductions(); break;
            case Kind::sends: departures(); break;
            case Kind::block: blocks(); break;
            case Kind::other: break;
        }
        neighbours();
        return made_;
    }

private:
    void add(const Strategy& strategy) {
        Strategy whole = complete(problem_, machine_, strategy);
        const bool left_out =
            only_gluon_ && whole.kernel == ProductKernel::plain && whole.placement != Placement::unfused;
        if (!left_out && names_.insert(name_of(whole)).second) made_.push_back(std::move(whole));
        add_gluon(strategy);
    }

    /// The same by the Gluon kernel, with its quickest tiles, where the machine's figures know it.
    void add_gluon(Strategy strategy) {
        if (strategy.placement != Placement::fused || machine_.rates.gluon_tflops <= 0 ||
            !gluon_multiplies(problem_.dtype))
            return;
        strategy.kernel = ProductKernel::gluon;
        strategy.tiles.clear();
        add_whole(strategy);
    }

    void add_whole(const Strategy& strategy) {
        Strategy whole = complete(problem_, machine_, strategy);
        if (names_.insert(name_of(whole)).second) made_.push_back(std::move(whole));
    }

    /// All tiles wait together, where those that begin later would read the weights from memory again: by so
    /// many blocks of the engine, and, as the programs do not work yet, by more.
    void add_together(Strategy strategy) {
        constexpr std::int32_t kMost = 32;  // blocks; more gain nothing
        if (uncached_weight_bytes(machine_, problem_.dtype, shapes_.front()) == 0) return;
        strategy.together = true;
        add(strategy);
        if (!fuse::is_engine(strategy.backend) ||
            strategy.engine_blocks !=
                static_cast<std::int32_t>(machine_.rates.engine_gbps.points.back().first))
            return;
        strategy.engine_blocks = std::max(kMost, *strategy.engine_blocks);
        add(strategy);
    }

    /// Each backend that a device has, with each number of multiprocessors that was measured.
    template <typename Visit>
    void each_backend(const Curve& blocks, Visit visit) {
        // Loads and stores before bulk copies: among equals the first counts.
        const auto rows = fuse::backend_rows();
        for (auto at = rows.rbegin(); at != rows.rend(); ++at) {
            const fuse::BackendTraits& row = *at;
            if (!row.on_cuda || row.lane == fuse::LaneKind::library || row.lane == fuse::LaneKind::channel)
                continue;  // that is unfused
            Strategy strategy{.backend = row.backend};
            if (row.lane != fuse::LaneKind::engine) {
                visit(strategy);
                continue;
            }
            for (const auto& [count, gbps] : blocks.points) {
                strategy.engine_blocks = static_cast<std::int32_t>(count);
                visit(strategy);
            }
        }
    }

    /// Those of one shape, which phases need.
    [[nodiscard]] std::vector<TileConfig> one_shape() const {
        return tile_configs(problem_.dtype, shapes_.front());
    }

    /// The extents of slices that grow as sending keeps up with multiplying: one is sent while the one before
    /// is multiplied, so that nobody waits again.
    [[nodiscard]] std::vector<std::int64_t> growing(const TileConfig& tile, std::int32_t count,
                                                    double gbps) const {
        const ProductShape& shape = shapes_.front();
        const double bytes = static_cast<double>(shape.m) / problem_.ranks * static_cast<double>(shape.k) *
                             problem_.item() * (problem_.ranks - 1);
        const double sending = bytes / (std::max(1.0, gbps) * 1e3);
        const double multiplying = tile_us(machine_, problem_.dtype, tile, tile.block_n, shape.k);
        const double growth = std::clamp(multiplying / std::max(sending, 1e-3), 0.25, 8.0);
        double whole = 0;
        for (std::int32_t i = 0; i < count; ++i) whole += std::pow(growth, i);
        const std::int64_t blocks = shape.k / tile.block_k;
        std::vector<std::int64_t> extents;
        std::int64_t before = 0;
        double share = 0;
        for (std::int32_t i = 0; i + 1 < count; ++i) {
            share += std::pow(growth, i);
            const std::int64_t edge =
                std::max<std::int64_t>(before + 1, std::llround(static_cast<double>(blocks) * share / whole));
            if (edge >= blocks) break;
            extents.push_back((edge - before) * tile.block_k);
            before = edge;
        }
        extents.push_back(shape.k - before * tile.block_k);
        return extents;
    }

    void before(Kind kind) {
        const std::int64_t k = shapes_.front().k;
        each_backend(machine_.rates.engine_gbps, [&](Strategy strategy) {
            if (fuse::is_inline(strategy.backend)) {
                strategy.pull = kind == Kind::gathers;
                add(strategy);
                return;
            }
            for (const std::int32_t rows : {1, 2, 4}) {
                strategy.chunking = {.rows = rows};
                add(strategy);
            }
            strategy.chunking = {};
            add_together(strategy);
            for (const TileConfig& tile : one_shape()) {
                strategy.tiles = {tile};
                strategy.chunking = {};
                add(strategy);
                // By loads and stores the short rows of slices take half as long again, or twice as
                // long.
                if (strategy.backend == Backend::ldst_dedicated) continue;
                for (const std::int32_t count : {2, 3, 4}) {
                    if (k / count < kLeastSlice || k % (std::int64_t{count} * tile.block_k) != 0) continue;
                    for (const bool peer_by_peer : {true, false}) {
                        strategy.chunking = {.num_slices = count, .peer_by_peer = peer_by_peer};
                        add(strategy);
                    }
                }
                if (!fuse::is_engine(strategy.backend) || k < 8 * kLeastSlice) continue;
                for (const std::int32_t count : {2, 3, 4}) {
                    const double gbps = machine_.rates.engine_gbps.at(strategy.engine_blocks.value_or(0));
                    strategy.chunking = {.slices = growing(tile, count, gbps)};
                    if (strategy.chunking.slices.size() > 1) add(strategy);
                }
            }
            strategy.tiles.clear();
            strategy.chunking = {};
            strategy.pull = true;
            if (kind == Kind::gathers && strategy.backend == Backend::copy_engine) add(strategy);
        });
    }

    /// Over nodes, where each estimate plays all ranks: what a node's links are used by, and how chunks are cut.
    void over_nodes(Kind kind) {
        if (kind == Kind::block) return blocks();
        const bool before = kind == Kind::gathers || kind == Kind::exchanges;
        for (const std::int32_t parts : {1, 2, 4}) {
            Strategy strategy;
            if (before)
                strategy.chunking.rows = parts;
            else
                strategy.split = parts;
            add(strategy);
            if (!before) continue;
            strategy.backend = Backend::ldst_dedicated;
            add(strategy);
        }
    }

    /// Parts of columns, and parts of rows.
    template <typename Visit>
    void each_cut(Strategy strategy, Visit visit) {
        strategy.split = 1;
        visit(strategy);
        for (std::int32_t split = 2; split <= kMostSplit; ++split) {
            strategy.split = split;
            strategy.split_axis = 1;
            visit(strategy);
            if (split == 2 || split == 4) {
                strategy.split_axis = 0;
                visit(strategy);
            }
        }
    }

    /// Of the peers at which contributions are stored: all numbers of few, of many as they double.
    static std::vector<std::int32_t> stored_counts(std::int32_t others) {
        constexpr std::int32_t kFew = 8;
        std::vector<std::int32_t> counts;
        for (std::int32_t count = 1; count < others; count += count < kFew ? 1 : count)
            counts.push_back(count);
        counts.push_back(others);
        return counts;
    }

    void reductions() {
        const std::int32_t others = problem_.ranks - 1;
        each_backend(machine_.rates.engine_sum_gbps, [&](const Strategy& by) {
            if (fuse::is_engine(by.backend)) {
                Strategy pulled = by;
                pulled.pull = true;
                for (const std::int32_t split : {1, 2, 4, kMostSplit}) {
                    pulled.split = split;
                    if (split > 1) pulled.split_axis = 1;
                    add(pulled);
                }
                return;
            }
            Strategy strategy = by;
            strategy.pull = by.backend == Backend::ldst_inline;
            each_cut(strategy, [&](const Strategy& cut) { add(cut); });
        });
        // Transfers whose backend is open are copied, and small sums stored at their peers by who adds them
        // up.
        each_cut({}, [&](const Strategy& cut) { add(cut); });
        for (const std::int32_t count : stored_counts(others)) {
            for (const TileConfig& tile : tiles_of_last_round()) {
                add({.tiles = {tile}, .split = 1, .stored = count});
            }
        }
        if (operator_row(problem_.op)->kind == Kind::reduces) {
            for (const TileConfig& tile : tiles_of_last_round())
                add({.tiles = {tile}, .split = 1, .one_step = true, .backend = Backend::tma_inline});
        }
        kernel_sums();
    }

    /// The product's programs sum: of all that every rank makes, or, where tiles end with the ranks' rows, of
    /// what is for them.
    void kernel_sums() {
        if (machine_.rates.gluon_tflops <= 0 || !gluon_multiplies(problem_.dtype)) return;
        add_gluon({.split = 1, .one_step = true, .kernel_sums = true});
        if (operator_row(problem_.op)->kind != Kind::scatters) return;
        const std::int32_t programs = problem_.num_sms > 0 ? problem_.num_sms : machine_.num_sms;
        std::vector<TileConfig> tiles = gluon_tile_configs(problem_.operands(), shapes_.front(), programs);
        std::erase_if(tiles, [&](const TileConfig& tile) {
            return shapes_.front().m % (std::int64_t{problem_.ranks} * tile.block_m) != 0;
        });
        if (tiles.empty()) return;
        const TileConfig quickest =
            quickest_of(tiles, machine_, problem_.operands(), shapes_.front(), programs);
        add_whole({.kernel = ProductKernel::gluon, .tiles = {quickest}, .split = 1, .kernel_sums = true});
    }

    /// The default strategy with other stages and warps, which the estimate takes for equal, too.
    void neighbours() {
        const Strategy usual = complete(problem_, machine_, {});
        if (usual.kernel != ProductKernel::plain) return;
        for (std::size_t i = 0; i < usual.tiles.size(); ++i) {
            for (const TileConfig& tile : neighbours_of(problem_.dtype, usual.tiles[i])) {
                Strategy strategy{.tiles = usual.tiles};
                strategy.tiles[i] = tile;
                add(strategy);
            }
        }
    }

    /// The quickest tiles, and those of one shape.
    [[nodiscard]] std::vector<TileConfig> tiles_of_last_round() const {
        std::vector<TileConfig> tiles = one_shape();
        const std::int32_t sms = problem_.num_sms > 0 ? problem_.num_sms : machine_.num_sms;
        tiles.push_back(quickest_tiles(machine_, problem_.dtype, shapes_.back(), sms, false));
        return tiles;
    }

    void departures() {
        each_backend(machine_.rates.engine_gbps, [&](Strategy strategy) {
            for (const std::int32_t split : {1, 2, 4}) {
                strategy.split = split;
                add(strategy);
            }
        });
    }

    void blocks() {
        add({.placement = Placement::apart});
        for (const std::int32_t rows : {1, 2, 4}) {
            for (const std::int32_t split : {1, 2, 4}) add({.chunking = {.rows = rows}, .split = split});
        }
    }

    const Problem& problem_;
    const Machine& machine_;
    std::vector<ProductShape> shapes_;
    bool only_gluon_;  ///< fp8, for which complete() takes no other kernel by itself
    std::vector<Strategy> made_;
    std::set<std::string> names_;
};

/// Of a chain on one rank: its two launches by the vendor's library, and fused by either kernel.
std::vector<Strategy> chain_candidates(const Problem& problem, const Machine& machine) {
    std::vector<Strategy> made;
    for (const Strategy& open :
         {Strategy{.placement = Placement::unfused}, Strategy{.kernel = ProductKernel::plain},
          Strategy{.kernel = ProductKernel::gluon}}) {
        Strategy whole = complete(problem, machine, open);
        if (std::ranges::find(made, whole) == made.end()) made.push_back(std::move(whole));
    }
    return made;
}

}  // namespace

std::vector<Strategy> candidates(const Problem& problem, const Machine& machine) {
    if (problem.is_mixture()) return mixture_candidates(problem, machine);
    if (operator_row(problem.op)->kind == Kind::other) return chain_candidates(problem, machine);
    return Enumeration(problem, machine).all();
}

}  // namespace syncopate::tune
