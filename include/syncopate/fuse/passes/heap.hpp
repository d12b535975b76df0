// Heap: the last pass. It gives each tensor of a schedule, staging included, and the control block their
// places in the symmetric heap, the same on every rank. The runtime allocates one piece for an op and follows
// this:
//
//   | tensor | tensor | … | control block |
//   ^ Heap::alignment                     ^ Heap::bytes
//
// A kernel that stores or loads by rows in all ranks' heaps, through one descriptor that spans them, needs
// whole rows between any two places: then tensors begin, and heaps are apart, by multiples of such a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

/// The schedule with its heap.
[[nodiscard]] Schedule lay_out_heap(Schedule schedule);

/// Bytes that a rank's heap must have that holds this op, so many bytes `beside` it, and nothing else: whole rows, and whole
/// pages of 2 MiB.
[[nodiscard]] std::uint64_t heap_bytes(const Schedule& schedule, std::uint64_t beside = 0);

/// The tensors that the kernel stores or loads in all ranks' heaps by rows, through a descriptor that spans
/// them all.
[[nodiscard]] std::vector<std::int32_t> tensors_by_row(const Schedule& schedule);

/// Bytes of such a row, or the least common multiple of two; 1 where nothing goes by rows.
[[nodiscard]] std::uint64_t bytes_of_row(const Schedule& schedule);

/// Collectives that the transfers name: they are numbered from 0.
[[nodiscard]] std::size_t num_collectives(const Schedule& schedule);

/// Where the tensors are in every other call, in a heap where they are at `offsets` (then whatever follows
/// them): those that kernels sum from have two places.
[[nodiscard]] std::vector<std::uint64_t> in_turn(const Schedule& schedule,
                                                 std::vector<std::uint64_t> offsets);

/// Why memory could not be laid out so; empty if it can: a place for each tensor and for the control block
/// with all its words, which do not overlap.
[[nodiscard]] std::string heap_objection(const Schedule& schedule);

}  // namespace syncopate::fuse
