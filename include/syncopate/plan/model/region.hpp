// Regions: boxes in a logical global tensor, half-open ranges per axis, in elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/plan/model/short_list.hpp"

namespace syncopate::plan {

/// Half-open range [begin, end) of elements along one axis.
struct Interval {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    [[nodiscard]] std::int64_t size() const { return end - begin; }
    [[nodiscard]] bool empty() const { return end <= begin; }
    bool operator==(const Interval&) const = default;
};

/// A box: one interval per axis, axis 0 first. A box with any empty interval holds no element.
using Region = ShortList<Interval, 4>;

[[nodiscard]] bool is_empty(const Region& region);
[[nodiscard]] std::int64_t num_elements(
    const Region& region);  ///< INT64_MAX if there are more; a scalar has 1
// The functions of two regions need both to have the same number of axes.
[[nodiscard]] bool overlaps(const Region& a, const Region& b);          ///< share at least one element
[[nodiscard]] bool contains(const Region& outer, const Region& inner);  ///< inner is a subset of outer
[[nodiscard]] std::optional<Region> intersect(const Region& a, const Region& b);  ///< nullopt when empty
[[nodiscard]] Region bounding_box(const Region& a, const Region& b);              ///< an empty box is neutral
/// The parts of `region` outside `hole`, as disjoint boxes.
[[nodiscard]] std::vector<Region> subtract(const Region& region, const Region& hole);
/// Takes `hole` out of the disjoint boxes; what is left of them is disjoint, too.
void take(std::vector<Region>& boxes, const Region& hole);
/// "[0:128, 0:256]"
[[nodiscard]] std::string to_string(const Region& region);

}  // namespace syncopate::plan
