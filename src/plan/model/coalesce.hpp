// Boxes with equal values that touch, made into larger ones.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <utility>
#include <vector>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::plan {

/// Merges entries {box, value} whose boxes agree on all axes but one, where they touch or overlap, and whose
/// values are equal; axis by axis, the last first, so that a grid of boxes becomes one. Entries with
/// different values must not overlap. Different values must differ in order_of(value), an integer. O(axes ·
/// n log n).
template <typename Entry>
void coalesce(std::vector<Entry>& entries) {
    if (entries.size() < 2) return;
    const std::size_t axes = entries.front().box.size();
    for (std::size_t axis = axes; axis-- > 0;) {
        // By value, then by the other axes, then along this one.
        const auto compare_others = [&](const Entry& a, const Entry& b) -> std::strong_ordering {
            if (a.value != b.value) return order_of(a.value) <=> order_of(b.value);
            for (std::size_t other = 0; other < axes; ++other) {
                if (other == axis) continue;
                if (const auto order = a.box[other].begin <=> b.box[other].begin; order != 0) return order;
                if (const auto order = a.box[other].end <=> b.box[other].end; order != 0) return order;
            }
            return std::strong_ordering::equal;
        };
        std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
            const auto order = compare_others(a, b);
            return order != 0 ? order < 0 : a.box[axis].begin < b.box[axis].begin;
        });
        std::size_t kept = 0;
        for (std::size_t i = 1; i < entries.size(); ++i) {
            Interval& last = entries[kept].box[axis];
            const Interval& next = entries[i].box[axis];
            if (compare_others(entries[kept], entries[i]) == 0 && next.begin <= last.end) {
                last.end = std::max(last.end, next.end);
            } else if (++kept != i) {
                entries[kept] = std::move(entries[i]);
            }
        }
        entries.resize(kept + 1);
    }
}

}  // namespace syncopate::plan
