// Footprints: from a block of pointers and the mask over it to boxes of the tensor. Strides tell which axis
// of the tensor each axis of the block runs along; the boxes together hold every element that is touched, and
// no other unless that would take too many of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernel/triton/evaluate/value.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::kernel::triton {

/// A tensor as the kernel addresses it. Extents and strides in elements.
struct TensorView {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  ///< of axes of extent 1, which may have any, those of axes around all
    std::vector<std::int64_t> given_strides;  ///< for messages
    std::vector<std::int32_t> by_stride;      ///< axes from the largest stride to the smallest

    TensorView() = default;
    explicit TensorView(const TensorArgument& tensor);
    /// Whether elements lie by these strides where they lie by its own.
    [[nodiscard]] bool has_strides(std::span<const std::int64_t> others) const;
};

using Box = std::array<plan::Interval, kRank>;  ///< the first `rank` entries count

/// How a box moves with the innermost loop: it starts at `base` and advances by `step` along `dim`.
struct Advance {
    std::int32_t dim = -1;
    std::int64_t base = 0;
    std::int64_t step = 0;
    std::int64_t extent = 0;
    bool several = false;  ///< there is no one such box
    bool operator==(const Advance&) const = default;
};

struct Access {
    const TensorView* tensor = nullptr;
    const Block* pointer = nullptr;
    const Mask* mask = nullptr;  ///< null: none
    bool direct = false;         ///< axis i of the block is axis i of the tensor (host-made descriptors)
    std::span<const std::int64_t> trips;  ///< iterations of each symbol; those beyond the span do not occur
    std::int32_t innermost = -1;          ///< the symbol whose Advance is wanted
    std::int32_t walked = -1;             ///< … and that of which `walk` is wanted
};

/// Whether all numbers are those of some memory: `footprint` needs it, and gives arithmetic without overflow
/// in turn.
[[nodiscard]] bool fits(const Block& block, const Mask* mask, std::span<const std::int64_t> trips);

/// Appends the boxes that the access touches over all iterations, clipped to the tensor. `exact` becomes
/// false where they hold more than that, since exact ones would be too many. `leaves`: pointers reach elements
/// outside of the tensor, too; it says so for sure where `exact` holds. `walk`: the box of one iteration
/// of `access.walked`, over all iterations of the other symbols; its dim is below 0 where each iteration may
/// touch all of the boxes.
[[nodiscard]] Advance footprint(const Access& access, std::vector<Box>& boxes, bool& exact, bool& leaves,
                                Advance& walk);

/// … of an access in parts, each under a mask of its own: how it moves where all parts move alike. `first`: of them.
void add_part(const Access& access, bool first, std::vector<Box>& boxes, bool& exact, bool& leaves,
              Advance& advance, Advance& walk);

}  // namespace syncopate::kernel::triton
