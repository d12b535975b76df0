// Tiles numbered expert after expert, so many columns of them for each block of an expert's rows. Experts of 3, 0 and 2 rows, in
// blocks of 2 rows and 2 columns:
//
//     expert   0 0 0 0   2 2
//     tile     0 1 2 3   4 5         within an expert in any order
//
// Where a program is a tile they are numbered along an axis of the grid, or several, and each number may stand for several
// programs: those of the other axes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/ragged_probes.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/ops/ragged.hpp"

namespace syncopate::ops {

/// Parameters that rows are, and their plan's tensors.
using Reads = std::vector<std::pair<std::string, std::string>>;

/// From the first row that a tile reads to the last one, of the tile that reads the most.
[[nodiscard]] std::int64_t most_rows_read(const kernel::Kernel& all, const Reads& reads);

/// How many rows its tiles could be of, by what they read and what they store into ("": nothing), and by its axes.
[[nodiscard]] std::vector<std::int64_t> blocks_of(const kernel::Kernel& all, const Reads& reads,
                                                  const std::string& stores);

/// How the tiles could be numbered: `all`, where the first expert has all rows that there
/// may be, and `one`, where it has one, and nobody else any.
[[nodiscard]] std::vector<RaggedOrder> orders_of(const kernel::Kernel& all, const kernel::Kernel& one,
                                                 const Reads& reads);

/// Whose the tile is, where experts' rows lie so; -1: nobody's, as there are no more.
[[nodiscard]] std::int32_t expert_in(const RaggedOrder& order, std::int64_t tile, const Offsets& offsets);

/// How many numbers there are then.
[[nodiscard]] std::int64_t tiles_in(const RaggedOrder& order, const Offsets& offsets);

}  // namespace syncopate::ops
