// Plays a stage's schedule with the CPU: slot by slot it awaits what the slot awaits, has the tile made, and counts
// and posts as the emitted kernel does. What runs in the place of a kernel where there is neither a GPU nor an
// interpreter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/call/op.hpp"

namespace syncopate::runtime {

/// Between begin_call and end_call of an op on host. `make`: makes the tile of a slot; an error ends it. Ends early,
/// and well, after a fault: end_call says which.
[[nodiscard]] Status play_table(const FusedOp& op, std::size_t stage,
                                const std::function<Status(std::int64_t tile, std::int32_t slot)>& make);

/// A slot as its table has it.
struct TableSlot {
    std::int32_t tile = 0;
    std::int32_t group = 0;  ///< of a table that a call makes; and how many rows the tile has
    std::int32_t rows = 0;
};

/// As play_table, by the slots that the table has now: those of a stage whose table an earlier stage of the call makes
/// (emit/layout.hpp, "groups") stand nowhere else.
[[nodiscard]] Status play_made_table(const FusedOp& op, std::size_t stage,
                                     const std::function<Status(const TableSlot& slot)>& make);

/// What sy_post does after the slot's tile: counts it in the chunks that it makes, and posts those that it completes.
void post_slot(const FusedOp& op, std::size_t stage, std::int32_t slot);

/// What sy_offset says: elements from the kernel's own place to those where the slot's tile is stored; one of 0 where
/// that is its place.
[[nodiscard]] std::vector<std::int64_t> offsets_of(const FusedOp& op, std::size_t stage, std::int32_t slot);

/// What the table says of a slot's loads (sy_load_offset, sy_reads_own): elements from the kernel's own place, or, of
/// a kernel that loads what its rank was given, whether this tile does; 0 of a kernel that loads in its own place.
[[nodiscard]] std::int64_t load_number_of(const FusedOp& op, std::size_t stage, std::int32_t slot);

}  // namespace syncopate::runtime
