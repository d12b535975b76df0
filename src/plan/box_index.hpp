// Boxes of one tensor with a value each, found by overlap.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "syncopate/plan/region.hpp"

namespace syncopate::plan {

/// A multimap from box to T, ordered by where boxes begin along one axis, in classes of boxes whose length
/// along it is alike (the same power of two). A look-up visits, in each class, the boxes that begin between
/// the query's end and its begin less the class's longest box: few, where boxes hardly overlap along the
/// axis. So choose the axis along which plans cut (key_axes in check_passes.hpp); without the classes one
/// tensor-long box would slow every look-up down.
template <typename T>
class BoxIndex {
public:
    struct Entry {
        Region box;
        T value;
    };

    explicit BoxIndex(std::size_t axis = 0) : axis_(axis) {}

    void insert(Region box, T value) {
        const Interval key = box[axis_];
        Class& entries = classes_[std::bit_width(static_cast<std::uint64_t>(key.size()))];
        entries.emplace(key.begin, Entry{std::move(box), std::move(value)});
    }

    /// Calls visit(entry) for each entry that overlaps `query`, long boxes first; visit returns false to
    /// stop.
    template <typename Visit>
    void visit_overlapping(const Region& query, Visit visit) const {
        for (const auto& [width, entries] : classes_) {
            const auto last = entries.lower_bound(query[axis_].end);
            for (auto at = first_candidate(entries, width, query); at != last; ++at) {
                if (overlaps(at->second.box, query) && !visit(at->second)) return;
            }
        }
    }

    /// Removes the entries that overlap `query` and returns them whole.
    std::vector<Entry> extract_overlapping(const Region& query) {
        std::vector<Entry> found;
        for (auto& [width, entries] : classes_) {
            const auto last = entries.lower_bound(query[axis_].end);
            for (auto at = first_candidate(entries, width, query); at != last;) {
                if (!overlaps(at->second.box, query)) {
                    ++at;
                    continue;
                }
                found.push_back(std::move(at->second));
                at = entries.erase(at);
            }
        }
        return found;
    }

private:
    using Class = std::multimap<std::int64_t, Entry>;

    /// Boxes of this class are at most 2^width - 1 long: one that begins that far before the query ends at or
    /// before it.
    template <typename Entries>
    auto first_candidate(Entries& entries, int width, const Region& query) const {
        const auto longest = static_cast<std::int64_t>((std::uint64_t{1} << width) - 1);
        return entries.upper_bound(query[axis_].begin - longest);
    }

    std::size_t axis_;
    std::map<int, Class, std::greater<>> classes_;  ///< by bit width of the length
};

}  // namespace syncopate::plan
