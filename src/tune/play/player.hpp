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

/// What the tiles of one stage cost.
struct StageTiles {
    std::vector<double> us;     ///< by tile: on one program, while all work
    std::int64_t programs = 1;  ///< that work at once
    double phase_us = 0;        ///< of each further phase
    double memory_gbps = 0;     ///< of operands that the cache does not hold
};

/// A call of the program. `work` is what decide makes of it by the strategy; `stages`: of each stage;
/// `fixed_us`: of launches, signals, and the ends of a call.
[[nodiscard]] Estimate play(const fuse::StagedProgram& program, const fuse::Decisions& work,
                            const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
                            const Strategy& strategy);

}  // namespace syncopate::tune
