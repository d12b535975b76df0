// Where an op's memory is: at the same offsets in every rank's heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"
#include "syncopate/runtime/heap/heap.hpp"

namespace syncopate::runtime {

struct OpMemory {
    std::optional<std::uint64_t> first{};       ///< where the op's piece begins; nullopt: not allocated
    std::vector<std::uint64_t> tensor_offsets;  ///< in every rank's heap, by tensor
    std::uint64_t control_offset = 0;
    std::int64_t control_words = 0;

    /// `chunk` of the op's tensors in the memory of rank `rank`.
    [[nodiscard]] BoxView box_of(const SymmetricHeap& heap, const fuse::Schedule& schedule, int rank,
                                 const plan::Chunk& chunk) const {
        const auto tensor = static_cast<std::size_t>(chunk.tensor);
        return view_of(schedule.tensors[tensor], chunk.region, heap.address(rank, tensor_offsets[tensor]));
    }
};

}  // namespace syncopate::runtime
