// What XLA's backends write into HLO text for themselves, as far as it bears on what moves: the axes that a call
// of cuBLAS multiplies along, how often a loop runs, and the order of an array's axes in memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {

/// Reads an instruction's backend_config, JSON or a string of it: a loop's trip count; of a call of cuBLAS the
/// axes, and what it does with the product before it gives it.
void take_backend_config(std::string_view config, Instruction& made);

/// "{0,1}", an array's axes from minor to major, as axes from major to minor; empty if that is row by row, {-1}
/// where it is tiled.
[[nodiscard]] std::vector<std::int64_t> order_in_memory(std::string_view braces, std::size_t axes);

}  // namespace syncopate::ingest
