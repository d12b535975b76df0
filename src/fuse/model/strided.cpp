#include "syncopate/fuse/model/strided.hpp"

#include <algorithm>
#include <vector>

namespace syncopate::fuse {
namespace {

constexpr std::int32_t kMostLevels = 3;

/// Nested loops that walk `extents` in both tensors, merging an axis into the one before it where both are
/// contiguous.
std::int32_t levels_of(const std::vector<std::int64_t>& extents, const std::vector<std::int64_t>& src_shape,
                       const std::vector<std::int64_t>& dst_shape) {
    std::int32_t levels = 1;  // the contiguous run
    bool whole = true;        // every axis further in is covered whole by the run so far
    for (std::size_t axis = extents.size(); axis-- > 0;) {
        if (extents[axis] != 1 && !whole) {
            ++levels;
            whole = true;  // the next axis out merges with this one if this one is whole
        }
        if (extents[axis] != src_shape[axis] || extents[axis] != dst_shape[axis]) whole = false;
    }
    return levels;
}

std::vector<std::int64_t> extents_of(const plan::Region& region) {
    std::vector<std::int64_t> extents;
    extents.reserve(region.size());
    for (const plan::Interval& interval : region) extents.push_back(interval.size());
    return extents;
}

/// The first axis of the slots of a staging tensor, and of a slot in it, left aside.
struct Box {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> extents;
    std::int64_t first = 0;  ///< element
};

Box box_of(const plan::Plan& plan, const plan::Chunk& chunk, std::size_t axes) {
    Box box{plan.tensors[chunk.tensor].shape, extents_of(chunk.region)};
    for (std::size_t axis = 0; axis < box.shape.size(); ++axis)
        box.first = box.first * box.shape[axis] + chunk.region[axis].begin;
    while (box.extents.size() > axes) {
        box.extents.erase(box.extents.begin());
        box.shape.erase(box.shape.begin());
    }
    return box;
}

/// What of the box is no multiple of 16 bytes: its first byte, its runs, or a stride from run to run.
std::string odd_part(const Box& box, const std::vector<std::int64_t>& other_shape, std::int64_t element) {
    constexpr std::int64_t kUnit = 16;
    const auto odd = [&](std::int64_t elements) { return elements * element % kUnit != 0; };
    if (odd(box.first)) return "begins at byte " + std::to_string(box.first * element);
    std::int64_t run = 1;     // elements that are contiguous on both sides
    std::int64_t stride = 1;  // of the axis
    bool whole = true;
    for (std::size_t axis = box.extents.size(); axis-- > 0;) {
        if (box.extents[axis] != 1) {
            if (whole) {
                run *= box.extents[axis];
            } else if (odd(stride)) {
                return "has rows " + std::to_string(stride * element) + " bytes apart";
            }
            whole = whole && box.extents[axis] == box.shape[axis] && box.extents[axis] == other_shape[axis];
        } else if (box.shape[axis] != 1 || other_shape[axis] != 1) {
            whole = false;
        }
        stride *= box.shape[axis];
    }
    if (odd(run)) return "has rows of " + std::to_string(run * element) + " bytes";
    return {};
}

}  // namespace

std::int32_t strided_levels(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst) {
    std::vector<std::int64_t> src_shape = plan.tensors[src.tensor].shape;
    std::vector<std::int64_t> dst_shape = plan.tensors[dst.tensor].shape;
    std::vector<std::int64_t> src_extents = extents_of(src.region);
    std::vector<std::int64_t> dst_extents = extents_of(dst.region);
    // A slot of a staging tensor has an axis more, of extent 1.
    while (dst_extents.size() > src_extents.size() && dst_extents.front() == 1) {
        dst_extents.erase(dst_extents.begin());
        dst_shape.erase(dst_shape.begin());
    }
    if (src_extents == dst_extents) return levels_of(src_extents, src_shape, dst_shape);
    const bool contiguous = levels_of(src_extents, src_shape, src_shape) == 1 &&
                            levels_of(dst_extents, dst_shape, dst_shape) == 1 &&
                            num_elements(src.region) == num_elements(dst.region);
    return contiguous ? 1 : 0;
}

std::string level_objection(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst,
                            plan::Backend backend) {
    const std::int32_t levels = strided_levels(plan, src, dst);
    if (levels == 0) {
        return std::string(name_of(backend)) + " copies between regions of the same extents, not from " +
               to_string(src.region) + " to " + to_string(dst.region);
    }
    if (levels > kMostLevels) {
        return std::string(name_of(backend)) + " copies boxes of at most three strided levels; " +
               to_string(src.region) + " has " + std::to_string(levels) +
               ": split the op along its first axis";
    }
    return {};
}

std::string engine_objection(const plan::Plan& plan, const plan::Chunk& src, const plan::Chunk& dst,
                             plan::Backend backend) {
    plan::Chunk slot = src;  // of a sum: its first
    if (src.region.size() > dst.region.size()) slot.region.front().end = slot.region.front().begin + 1;
    const bool is_slot = slot.region.size() > dst.region.size();
    if (std::string why = level_objection(plan, is_slot ? dst : slot, is_slot ? slot : dst, backend);
        !why.empty())
        return why;
    const std::size_t axes = std::min(slot.region.size(), dst.region.size());
    const Box from = box_of(plan, slot, axes);
    const Box to = box_of(plan, dst, axes);
    const auto element = static_cast<std::int64_t>(size_of(plan.tensors[dst.tensor].dtype));
    const bool alike = from.extents == to.extents;  // else both are contiguous
    const auto say = [&](const plan::Chunk& chunk, const Box& box, const Box& other) -> std::string {
        const std::string odd = odd_part(box, alike ? other.shape : box.shape, element);
        if (odd.empty()) return {};
        return std::string(name_of(backend)) + " moves multiples of 16 bytes, and " +
               plan.tensors[chunk.tensor].name + to_string(chunk.region) + " " + odd +
               ": use copy_engine or auto";
    };
    if (std::string why = say(src, from, to); !why.empty()) return why;
    if (std::string why = say(dst, to, from); !why.empty()) return why;
    if (src.region.size() > dst.region.size() && src.region.front().size() > 1) {
        const std::vector<std::int64_t>& staging = plan.tensors[src.tensor].shape;
        std::int64_t slot_bytes = element;
        for (std::size_t axis = 1; axis < staging.size(); ++axis) slot_bytes *= staging[axis];
        if (slot_bytes % 16 != 0) {
            return std::string(name_of(backend)) + " moves multiples of 16 bytes, and the slots of " +
                   plan.tensors[src.tensor].name + " are " + std::to_string(slot_bytes) +
                   " bytes apart: use copy_engine or auto";
        }
    }
    return {};
}

}  // namespace syncopate::fuse
