// Lists of arrays that stand for one: XLA writes an all-to-all along an axis as slices of an array, an
// all-to-all of this list, and the concatenation of what it delivers.
//
//      x ── slice [0:4] ──┐              ┌── element 0 ──┐
//      x ── slice [4:8] ──┴─ all-to-all ─┴── element 1 ──┴── concatenate
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ingest/candidates/dataflow.hpp"

namespace syncopate::ingest {

/// Which part of a collective's result is that of its operand k; nullopt: all of it.
[[nodiscard]] std::optional<std::int64_t> element_of(const Instruction& by, std::size_t k);

/// The concatenation of all that the list's all-to-all delivers, in the order of the list, and its axis; nullopt:
/// there is none.
[[nodiscard]] std::optional<Dataflow::Meeting> joined_list(const Dataflow& flow, Site site);

/// What makes the array whose `parts` equal slices, in their order, are the list, and the axis along which that
/// is cut, there; nullopt: the list is none of these.
[[nodiscard]] std::optional<Dataflow::Meeting> cut_list(const Dataflow& flow, Site site, std::int64_t parts);

}  // namespace syncopate::ingest
