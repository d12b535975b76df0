// The player: a call on a machine, µs by µs. It plays the work graph that fuse made:
//
//     tiles       on programs, in the order of `orders`; each waits for what its edges name, phase by phase
//     memory      one rate for all tiles: blocks of operands that the cache holds no more are read again
//     transfers   on the machine's links (plan::simulate); what tiles store or load at peers, on the rank's
//     sums        one after another, in the time that their bytes take
//
// Tiles and transfers are played in turns, each with the other's times, until these stay: a gather and a
// reduction settle in one turn.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

/// Tiles side by side in a row, which need and make the same: the graph's tile stands for all of them.
struct TileRun {
    std::int64_t wide = 1;
    std::int64_t narrow = 0;        ///< half as wide, behind them
    std::int32_t first_column = 0;  ///< number of the block of the first one's columns
};

/// What the tiles of one stage cost.
struct StageTiles {
    std::vector<double> us;     ///< by tile: on one program, while all work
    std::int64_t programs = 1;  ///< that work at once
    double phase_us = 0;        ///< of each further phase
    double memory_gbps = 0;     ///< of operands that are read the first time; 0: the cache holds all
    double again_gbps = 0;      ///< of those that the cache holds no more
    double alone_us = 0;        ///< of all, with nothing beside them; 0: as they are played
    std::vector<TileRun> runs;  ///< by tile; empty: each is one
    double narrow_us = 0;       ///< as us, of narrow ones
    double column_bytes = 0;    ///< of the block of a wide tile's columns; 0: runs share all that they read
    std::int32_t columns = 0;   ///< blocks of columns
    std::size_t rows_together = 1;  ///< runs of as many rows go column by column
    bool sums_wait = false;         ///< sums of what they make begin when all tiles have ended

    /// Of tiles, as many as there are programs each; 1 where all are made at once.
    [[nodiscard]] double rounds() const;
};

/// A call of the program. `work` is what decide makes of it by the strategy; `stages`: of each stage;
/// `fixed_us`: of launches, signals, and the ends of a call. `alike`: all ranks do the same, so one is played.
[[nodiscard]] Estimate play(const fuse::StagedProgram& program, const fuse::Decisions& work,
                            const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
                            const Strategy& strategy, bool alike = false);

}  // namespace syncopate::tune
