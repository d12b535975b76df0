// Programs of users: the strategies of a kernel and a plan that are no operator of the library, enumerated
// from what fuse takes, and estimated on the work graph.
//
//     configurations     the kernel with each of its @triton.autotune configurations
//       × strategies     backend, multiprocessors of the chunk engine
//       ─► decide     what fuse refuses is pruned, with its reason; what gives the graph of another is
//       left ─► estimate      transfers simulated on the machine's links, tiles played on its
//       multiprocessors, in
//                        turns, until neither moves the other any more
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {

/// µs of each tile on one program, by tile id: the longer of its arithmetic, where two operands are a matrix
/// product, and of loading what it reads, at the rates of one multiprocessor; plus its begin and end.
[[nodiscard]] std::vector<double> program_tile_us(const Machine& machine, const kernel::Kernel& kernel);

/// What fuse is told of a strategy of a program: of its fields those that Strategy marks for sy.fuse; and the
/// machine, but on the host.
[[nodiscard]] fuse::Options options_of(const Strategy& strategy, fuse::Device device, const Machine& machine);

/// A call of the program on the machine. `work` is what decide makes of it by the strategy.
[[nodiscard]] Estimate estimate_program(const fuse::StagedProgram& program, const fuse::Decisions& work,
                                        const Machine& machine, const Strategy& strategy);

/// The strategies of a plan, the default one first, all legal where fuse takes them.
[[nodiscard]] std::vector<Strategy> program_strategies(const Machine& machine, fuse::Device device);

struct ProgramCandidate {
    std::size_t configuration = 0;  ///< index of the program
    Strategy strategy;
    std::string name;  ///< "configuration 2/tma_dedicated:8"
    Estimate estimate;
    std::string pruned;  ///< what fuse refuses; "" where it does not
};

/// `configurations`: one program with each of its configurations, the default one first. Every one of them by
/// the default strategy, and the quickest few by all strategies: best first by the estimate, among equals in
/// the order given, then those that are pruned. On the host, where none is faster than another, in the order
/// given.
[[nodiscard]] std::vector<ProgramCandidate> rank_program(std::span<const fuse::StagedProgram> configurations,
                                                         const Machine& machine, fuse::Device device);

}  // namespace syncopate::tune
