// The products of an operator, as their tiles go by the figures of a machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "tune/play/player.hpp"

namespace syncopate::tune {

/// One of them, as a strategy makes it.
struct Product {
    ProductShape shape;
    TileConfig tile;
    OperatorRow::Kind kind = OperatorRow::Kind::other;
};
[[nodiscard]] std::vector<Product> products_of(const Problem& problem, const Strategy& strategy);

/// Whether what is moved comes before the product.
[[nodiscard]] bool comes_before(OperatorRow::Kind kind);

/// Of a call, whatever it moves: µs of launches, signals, and its end.
[[nodiscard]] double fixed_us(const Rates& rates, const Strategy& strategy, OperatorRow::Kind kind);

/// All that is given must outlive it.
class ProductTiles {
public:
    ProductTiles(const Problem& problem, const Machine& machine, const Strategy& strategy,
                 const Product& product);

    /// What the graph is made of: tiles of a row that make one chunk, but no more than run at once, as if they
    /// were one, and as many fewer programs.
    [[nodiscard]] TileConfig run_tile() const;
    [[nodiscard]] std::int32_t run_programs() const;

    /// Of all tiles, with nothing beside them.
    [[nodiscard]] double alone_us() const;
    /// Of each further phase of a tile.
    [[nodiscard]] double phase_us() const { return gluon() ? rates_.gluon_phase_us : rates_.phase_us; }
    /// Of the shortest tile.
    [[nodiscard]] double least_tile_us() const;
    /// What the tiles of a kernel of run_tile() cost.
    [[nodiscard]] StageTiles stage(const kernel::Kernel& kernel) const;

private:
    [[nodiscard]] TileConfig coarse(const TileConfig& tile) const;
    [[nodiscard]] std::int64_t runs() const;
    [[nodiscard]] bool gluon() const { return strategy_.kernel == ProductKernel::gluon; }
    [[nodiscard]] std::int32_t programs() const { return strategy_.programs.value_or(machine_.num_sms); }
    [[nodiscard]] std::int32_t at_once() const {
        return std::max(1, programs() / std::max(1, tile_.split_k));
    }
    [[nodiscard]] double long_call() const;
    [[nodiscard]] double one_tile_us(std::int32_t width) const;
    [[nodiscard]] bool in_turns() const;

    const Problem& problem_;
    const Machine& machine_;
    const Rates& rates_;
    const Strategy& strategy_;
    const ProductShape& shape_;
    const TileConfig& tile_;
    OperatorRow::Kind kind_;
    TileGrid grid_;
    TileConfig played_;  ///< larger ones, of many
    TileGrid played_grid_;
};

}  // namespace syncopate::tune
