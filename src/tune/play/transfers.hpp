// Transfers: the plan that a strategy makes of an operator, and when its ops end on a machine, simulated.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "tune/play/play.hpp"

namespace syncopate::tune {

/// Rows of M that are rank's: the first M % ranks of them hold one more.
[[nodiscard]] Rows rows_of_rank(std::int64_t m, std::int32_t ranks, std::int32_t rank);
/// [0, extent) in so many parts, the first ones longer by one.
[[nodiscard]] std::vector<Rows> parts_of(Rows range, std::int32_t parts);

/// The extents along K of the slices of a chunk.
[[nodiscard]] std::vector<std::int64_t> slices_of(const Chunking& chunking, std::int64_t k);

/// The machine's links for so many ranks, with the engine as fast as it is with the strategy's blocks beside
/// a product. Where the machine has fewer devices, all of a node are on one switch with its first link.
/// Of several nodes each is such a machine, and between them are the paths of its network; without one, none.
[[nodiscard]] plan::Topology links_for(const Machine& machine, std::int32_t ranks, const Strategy& strategy,
                                       std::int32_t nodes = 1);

/// When what comes before a product is there, on the busiest rank: chunks of rows, from the call's start.
[[nodiscard]] Result<std::vector<Arriving>> arrivals(const Problem& problem, const ProductShape& shape,
                                                     const Machine& machine, const Strategy& strategy,
                                                     bool gathers);

/// µs of the library's collective around an operator's product, where each rank sends so many MiB.
[[nodiscard]] double library_collective_us(const Rates& rates, OperatorRow::Kind kind, double mib);

/// The chunks of a product in the order in which rank 0 makes them: what goes to the next rank first, what
/// stays last.
struct MadeOrder {
    std::vector<Made> chunks;
    std::vector<std::int32_t> offset;  ///< of each: to which rank from here; 0: it stays
    std::vector<std::int32_t> part;    ///< of each: which chunk of its shard
    std::int32_t parts = 1;
};
[[nodiscard]] MadeOrder made_order(const Problem& problem, const ProductShape& shape,
                                   const Strategy& strategy, bool reduces_everywhere);

/// When each rank has what it is to have, where chunks leave as `made` says (µs, by chunk of the order).
[[nodiscard]] Result<double> departures(const Problem& problem, const ProductShape& shape,
                                        const Machine& machine, const Strategy& strategy,
                                        const MadeOrder& order, const std::vector<double>& made);

/// Whether the sum of one part is done while the product makes others: on the chunk engine's multiprocessors,
/// or on what the plain kernel leaves of each. The Gluon kernel leaves registers for one block of sy_reduce
/// (kernels/gluon_launch.py), which does a part of it.
[[nodiscard]] bool sums_beside(const Strategy& strategy);

/// Whether tiles are stored at one rank each, as the strategy makes them: then they end where that rank's
/// rows do, or a part of them.
[[nodiscard]] bool stores_at_owners(OperatorRow::Kind kind, const Strategy& strategy);

}  // namespace syncopate::tune
