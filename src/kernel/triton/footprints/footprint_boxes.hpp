// From ranges of coordinates to boxes. A range is a start and terms step × index, index between bounds; both
// may move with the iterations of loops. The boxes are exactly what is reached where that takes no more than
// some thousand of them; otherwise one box around it, marked as not exact.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/triton/evaluate/value.hpp"
#include "kernel/triton/footprints/footprint.hpp"

namespace syncopate::kernel::triton {

inline constexpr std::int64_t kMostBoxes = 4096;  ///< of one access

/// step × index for indices from the largest lower to the smallest upper bound. step >= 0.
struct Term {
    static constexpr int kBounds = MaskAxis::kBounds + 1;
    std::int64_t step = 0;
    std::int32_t lower_count = 0, upper_count = 0;
    union {  // not set beyond the counts: a footprint makes many terms, and few bounds
        std::array<Affine, kBounds> lower;
    };
    union {
        std::array<Affine, kBounds> upper;
    };
    Term() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
};

/// Coordinates along one axis of the tensor.
struct Range {
    Affine start;
    std::int32_t count = 0;
    std::int64_t dense = 1;  ///< from the lowest to behind the highest coordinate of one iteration, unclipped
    std::int64_t first = 0;  ///< the lowest, from start
    std::array<Term, kRank> terms;

    Range() = default;
    Range(const Range& other)
        : start(other.start), count(other.count), dense(other.dense), first(other.first) {
        std::copy_n(other.terms.begin(), count, terms.begin());
    }
    Range& operator=(const Range&) = delete;
    ~Range() = default;
};

struct Ranges {
    std::array<Range, kRank> axes;
    std::int32_t idle_count = 0;
    /// Axes of the block that do not move the address; they may still be empty.
    std::array<Term, kRank> idle;

    Ranges() = default;
    Ranges(const Ranges& other) : axes(other.axes), idle_count(other.idle_count) {
        std::copy_n(other.idle.begin(), idle_count, idle.begin());
    }
    Ranges& operator=(const Ranges&) = delete;
    ~Ranges() = default;
};

/// Appends the boxes of the elements of `tensor` that the ranges reach over all iterations of the symbols.
/// `direct`: coordinates are the tensor's own, and those outside are left out; otherwise a coordinate behind
/// the end of an inner axis is an element of the next row. `leaves` becomes true where what they reach was
/// left out for lying outside of the tensor. Whether the boxes are exact.
[[nodiscard]] bool boxes_of(const TensorView& tensor, bool direct, std::span<const std::int64_t> trips,
                            const Ranges& ranges, std::vector<Box>& boxes, bool& leaves);

/// Appends the boxes of the elements at these offsets, counted in elements from the start of the tensor;
/// offsets between or behind its elements are left out: whether there are some. Sorts the offsets.
[[nodiscard]] bool boxes_of_offsets(const TensorView& tensor, std::vector<std::int64_t>& offsets,
                                    std::vector<Box>& boxes);

}  // namespace syncopate::kernel::triton
