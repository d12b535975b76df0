// Sums of contributions in a fixed order, with the CPU: what device host does, and what the tests compare a
// GPU with.
//
// bf16 and fp16 are widened to fp32, added one after another, and rounded once at the end, to nearest, ties
// to even. int32 wraps around. A maximum is NaN if one of its elements is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

[[nodiscard]] float bf16_to_float(std::uint16_t bits);
[[nodiscard]] std::uint16_t float_to_bf16(float value);
[[nodiscard]] float fp16_to_float(std::uint16_t bits);
[[nodiscard]] std::uint16_t float_to_fp16(float value);

/// `count` elements: out[i] = sources[0][i] + sources[1][i] + …, in this order (or the largest of them).
/// `out` may be one of the sources. `dtype`: bf16, fp16, fp32 or int32; `sources` is not empty.
void reduce_elements(plan::DType dtype, plan::Reduce reduce, std::span<const std::byte* const> sources,
                     std::byte* out, std::size_t count);

/// Rows of one box that are summed: `slots` boxes a fixed distance apart, and the destination's own content.
struct SumPart {
    StridedCopy slot;       ///< from slot 0 to the destination, where the own content is and the sum goes
    std::uint64_t out = 0;  ///< where the sum goes instead, if not 0; its strides in bytes
    std::uint64_t out_pitch = 0;
    std::uint64_t out_plane = 0;
};

/// A sum, ready to be done.
struct PreparedSum {
    plan::DType dtype = plan::DType::fp32;
    plan::Reduce reduce = plan::Reduce::sum;
    std::int32_t num_slots = 0;
    std::int32_t own = -1;            ///< how many slots come before the own content; -1: there is none
    std::uint64_t slot_distance = 0;  ///< bytes from one slot to the next
    std::vector<SumPart> parts;
    /// From the destination to where the sum is stored as well, in bytes: the same place of other ranks.
    std::vector<std::uint64_t> copies{};
    /// By slot and part, where the slots lie if they are no fixed distance apart: in other ranks' memory.
    std::vector<std::vector<StridedCopy>> places{};

    /// Lets the sum go where the own content is.
    void bring_home();
};

/// From slot `slot` of part `part` to the destination.
[[nodiscard]] StridedCopy slot_of(const PreparedSum& sum, std::size_t part, std::int32_t slot);

/// Slot 0 […extents] of `staging` [slots, …extents].
[[nodiscard]] BoxView first_slot(const BoxView& staging);

/// The sum over `staging` [slots, …extents] into `destination` […extents], which holds summand `own` (-1: it
/// holds nothing). Fails when extents differ.
[[nodiscard]] Result<PreparedSum> prepare_sum(const BoxView& staging, const BoxView& destination,
                                              plan::DType dtype, plan::Reduce reduce, std::int32_t own);

/// The same over `sources`, each […extents], wherever they are. Fails when extents differ, and when they lie
/// in memory in so different ways that they cannot be summed row by row.
[[nodiscard]] Result<PreparedSum> prepare_sum(const std::vector<BoxView>& sources, const BoxView& destination,
                                              plan::DType dtype, plan::Reduce reduce, std::int32_t own);

/// Sends the sum to `out` […extents] instead. `staging`: as in prepare_sum, or the first of its sources.
/// False, and nothing changed, when `out` lies in memory in another way than the destination.
[[nodiscard]] bool redirect(PreparedSum& sum, const BoxView& staging, const BoxView& out);

/// Does it with the CPU.
void sum_on_host(const PreparedSum& sum);

}  // namespace syncopate::runtime
