// Transfers: how a strategy cuts what it moves, and the links by which it goes.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// What passing K and V on costs a call beyond its links: on four H200s (bench/results/attention_kinds_4xH200.csv, causal, 32
/// heads) rings took 1,208 µs for an estimate of 1,060 and 3,669 for 3,500 (4,096 and 8,192 rows a rank). The backward's took
/// 1,762 for 1,210 without it, where all_gather took 1,556 for 1,298 (2,048 rows a rank), and 4,110 for 3,276 beside 3,973 for
/// 3,538 (4,096). At 8,192 rows a ring took 12,639, all_gather 12,961: there it is too much.
inline constexpr double kPassingOn = 1.12;

/// The extents along K of the slices of a chunk.
[[nodiscard]] std::vector<std::int64_t> slices_of(const Chunking& chunking, std::int64_t k);

/// The chunk engine's: an op begins before the one before it has ended.
inline constexpr std::int32_t kEngineLanes = 2;

/// The machine's links for so many ranks, with the engine as fast as it is with the strategy's blocks beside
/// a product. Where the machine has fewer devices, all of a node are on one switch with its first link.
/// Of several nodes each is such a machine, and between them are the paths of its network; without one, none.
[[nodiscard]] plan::Topology links_for(const Machine& machine, std::int32_t ranks, const Strategy& strategy,
                                       std::int32_t nodes = 1);

/// µs in which a call copies so many bytes within a device.
[[nodiscard]] double local_copy_us(const Machine& machine, double bytes);

/// µs of the library's collective around an operator's product, where each rank sends so many MiB.
[[nodiscard]] double library_collective_us(const Rates& rates, OperatorRow::Kind kind, double mib);

/// Whether tiles are stored at one rank each, as the strategy makes them: then they end where that rank's
/// rows do, or a part of them.
[[nodiscard]] bool stores_at_owners(OperatorRow::Kind kind, const Strategy& strategy);

}  // namespace syncopate::tune
