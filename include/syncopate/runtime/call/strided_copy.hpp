// Copies of boxes between row-major arrays, cut down to what a copy engine or memcpy can do in one go:
// runs of contiguous bytes, repeated along up to two strided axes; further axes become several copies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

/// `depth` planes of `height` rows of `width` bytes. All strides in bytes. 1-D: height = depth = 1.
struct StridedCopy {
    std::uint64_t src = 0;  ///< address of the first byte
    std::uint64_t dst = 0;
    std::uint64_t width = 0;
    std::uint64_t height = 1;
    std::uint64_t depth = 1;
    std::uint64_t src_pitch = 0;  ///< from row to row
    std::uint64_t dst_pitch = 0;
    std::uint64_t src_plane = 0;  ///< from plane to plane
    std::uint64_t dst_plane = 0;

    [[nodiscard]] bool contiguous() const { return height == 1 && depth == 1; }
    [[nodiscard]] std::uint64_t bytes() const { return width * height * depth; }
    bool operator==(const StridedCopy&) const = default;
};

/// A box of elements in memory: its first byte, its extents and strides in elements, axis 0 first.
struct BoxView {
    std::uint64_t address = 0;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};

/// `region` of a row-major `tensor` whose first byte is at `address`.
[[nodiscard]] BoxView view_of(const plan::Tensor& tensor, const plan::Region& region, std::uint64_t address);

/// The copies that move `src` to `dst`, which have the same extents, axes of one element left aside. Fails
/// when they differ, or when a stride is not positive. Elements that are not adjacent are copied one by one:
/// right, but slow.
[[nodiscard]] Result<std::vector<StridedCopy>> copies_between(const BoxView& src, const BoxView& dst,
                                                              std::size_t element_size);

/// Whether one may read what another one writes, as where an operand lies in the memory that others are copied to: they are
/// then to be made in order.
[[nodiscard]] bool depend(std::span<const StridedCopy* const> copies);

/// Does them with the CPU.
void copy_on_host(const StridedCopy& copy);

}  // namespace syncopate::runtime
