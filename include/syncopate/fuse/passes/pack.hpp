// Pack: which program of a persistent kernel runs which tile when, for tiles that take unequal times.
//
// Tiles of one cost run well in order of arrival, each program taking every P-th one. With wide and narrow
// tiles that order leaves some programs with too many wide ones. So the run is simulated: whenever a program
// is free it takes, of the tiles whose chunks are expected by then, the longest (list scheduling, longest
// first: R. L. Graham, Bounds on Multiprocessing Timing Anomalies, 1969); if none has arrived, the one that
// arrives first. The short tiles so fill the last wave, and stand in early on for long ones that have not
// arrived.
//
//   slot s is the (s / P)-th tile of program s mod P, so that the number of tiles per program is fixed, and
//   the order in which programs that are free at once choose matters; of two orders the better one is kept:
//
//      program 0 | wide  wide  wide  narrow |          slots 0, P, 2P, 3P
//      program 1 | narrow  wide  wide  wide |          slots 1, P + 1, …
//
//   A short tile may go to a program that has no slot after it, while one with more slots gets long ones
//   only. So it is also tried to give each program, in advance, so many long and so many short ones: the
//   longest first, to the program with least to do. Of all runs the one that ends first is kept.
#pragma once

#include <cstdint>
#include <vector>

namespace syncopate::fuse {

/// By slot, the tile that runs there. `times`: by tile id, how long it takes; `ready`: by tile id, when its
/// last chunk is expected; both in microseconds. Among equals the earlier arrival goes first, then the lower
/// id.
[[nodiscard]] std::vector<std::int64_t> pack_tiles(const std::vector<double>& times,
                                                   const std::vector<double>& ready,
                                                   std::int64_t num_programs);

/// The same for tiles that make chunks: `deadlines` (by tile id) go first, so that a chunk is not held up by
/// a tile kept back for the last wave; among tiles of one deadline the longest goes first.
[[nodiscard]] std::vector<std::int64_t> pack_by_deadline(const std::vector<double>& times,
                                                         const std::vector<std::int64_t>& deadlines,
                                                         std::int64_t num_programs);

}  // namespace syncopate::fuse
