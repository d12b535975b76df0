#include "syncopate/plan/model/region.hpp"

#include <algorithm>
#include <cassert>
#include <limits>

#include <fmt/format.h>

namespace syncopate::plan {

bool is_empty(const Region& region) {
    return std::any_of(region.begin(), region.end(), [](const Interval& axis) { return axis.empty(); });
}

std::int64_t num_elements(const Region& region) {
    if (is_empty(region)) return 0;
    std::int64_t count = 1;
    for (const Interval& axis : region) {
        if (__builtin_mul_overflow(count, axis.size(), &count))
            return std::numeric_limits<std::int64_t>::max();
    }
    return count;
}

bool overlaps(const Region& a, const Region& b) {
    assert(a.size() == b.size());
    for (std::size_t axis = 0; axis < a.size(); ++axis) {
        if (std::max(a[axis].begin, b[axis].begin) >= std::min(a[axis].end, b[axis].end)) return false;
    }
    return true;
}

bool contains(const Region& outer, const Region& inner) {
    assert(outer.size() == inner.size());
    if (is_empty(inner)) return true;
    for (std::size_t axis = 0; axis < outer.size(); ++axis) {
        if (inner[axis].begin < outer[axis].begin || inner[axis].end > outer[axis].end) return false;
    }
    return true;
}

std::optional<Region> intersect(const Region& a, const Region& b) {
    if (!overlaps(a, b)) return std::nullopt;
    Region common(a.size());
    for (std::size_t axis = 0; axis < a.size(); ++axis) {
        common[axis] = {std::max(a[axis].begin, b[axis].begin), std::min(a[axis].end, b[axis].end)};
    }
    return common;
}

Region bounding_box(const Region& a, const Region& b) {
    if (is_empty(a)) return b;
    if (is_empty(b)) return a;
    assert(a.size() == b.size());
    Region box(a.size());
    for (std::size_t axis = 0; axis < a.size(); ++axis) {
        box[axis] = {std::min(a[axis].begin, b[axis].begin), std::max(a[axis].end, b[axis].end)};
    }
    return box;
}

std::vector<Region> subtract(const Region& region, const Region& hole) {
    if (is_empty(region)) return {};
    const std::optional<Region> common = intersect(region, hole);
    if (!common) return {region};
    // Peel off, axis by axis, the slabs before and after the hole; what is left narrows to the hole itself.
    std::vector<Region> parts;
    Region rest = region;
    for (std::size_t axis = 0; axis < region.size(); ++axis) {
        const Interval kept = (*common)[axis];
        if (rest[axis].begin < kept.begin) {
            parts.push_back(rest);
            parts.back()[axis].end = kept.begin;
        }
        if (kept.end < rest[axis].end) {
            parts.push_back(rest);
            parts.back()[axis].begin = kept.end;
        }
        rest[axis] = kept;
    }
    return parts;
}

void take(std::vector<Region>& boxes, const Region& hole) {
    std::vector<Region> rest;
    rest.reserve(boxes.size());
    for (Region& box : boxes) {
        if (!is_empty(box) && !overlaps(box, hole)) {
            rest.push_back(std::move(box));
            continue;
        }
        for (Region& part : subtract(box, hole)) rest.push_back(std::move(part));
    }
    boxes = std::move(rest);
}

std::string to_string(const Region& region) {
    std::string text = "[";
    for (std::size_t axis = 0; axis < region.size(); ++axis) {
        fmt::format_to(std::back_inserter(text), "{}{}:{}", axis == 0 ? "" : ", ", region[axis].begin,
                       region[axis].end);
    }
    return text + "]";
}

}  // namespace syncopate::plan
