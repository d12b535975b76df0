// What an instruction computes of whole numbers: the indices of loops and the places that they write to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {

/// The elements of an array in row-major order, each as the number that its type means: never below zero where
/// that is unsigned, 0 or 1 for pred.
using WholeNumbers = std::vector<std::int64_t>;

/// Whether elements of this type (HLO's name) are whole numbers or truth values.
[[nodiscard]] bool is_whole(const std::string& dtype);

/// The result of `by` for `operands`, of the shapes `shapes`: arithmetic (which wraps around as XLA's does),
/// logic, shifts, comparisons, selections, conversions, iota, and what moves elements along one axis. Nothing if
/// it is some other instruction, or its result is no whole numbers or more than kMaxLiteral of them.
[[nodiscard]] std::optional<WholeNumbers> compute_whole(const Instruction& by,
                                                        const std::vector<const WholeNumbers*>& operands,
                                                        const std::vector<const Shape*>& shapes);

}  // namespace syncopate::ingest
