// The tiles of one stage on one rank, event by event: each program takes the next slot when it has ended one,
// and goes through its phases, each when what it needs is there and memory has brought what it reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tune/play/memory.hpp"
#include "tune/play/player.hpp"

namespace syncopate::tune {

/// A part of a tile's loop, and when all that it needs is there.
struct Phase {
    double ready = 0;
    LoopPart part;
};

/// What runs in one slot.
struct Slot {
    std::vector<Phase> phases;  ///< at least one
    double us = 0;              ///< of its program
    TileRun run;                ///< it is so many
    double narrow_us = 0;
    std::span<const Block> reads;
    std::int64_t group = 0;  ///< slots of one may be taken for each other
    double loads = 0;        ///< bytes at peers
    double stores = 0;       ///< likewise
};

/// What they run on. Rates in GB/s.
struct StagePrograms {
    std::int64_t count = 1;
    double begin = 0;     ///< of the stage, µs
    double phase_us = 0;  ///< each further phase
    double read_gbps = 0;
    double store_gbps = 0;  ///< of all tiles together
    double stall_gbps = 0;  ///< the same, as the programs wait for it
    bool reads = true;      ///< more than the cache holds
    double column_bytes = 0;
    std::size_t rows_together = 1;
};

/// µs, by slot.
struct TilesPlayed {
    std::vector<double> ends;
    double begun = -1;           ///< the first tile
    std::vector<double> stored;  ///< when what it stores at peers has left; 0: it stores nothing there
};

[[nodiscard]] TilesPlayed play_tiles(std::span<const Slot> slots, const StagePrograms& programs,
                                     Memory& memory);

}  // namespace syncopate::tune
