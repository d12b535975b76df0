// Boxes of one tensor with a value each, found by overlap.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "plan/model/budget.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::plan {

/// A multimap from box to T, ordered by where boxes begin along one axis, in classes of boxes whose length
/// along it is alike (the same power of two). A look-up visits, in each class, the boxes that begin between
/// the query's end and its begin less the class's longest box: few, where boxes hardly overlap along the
/// axis. So choose the axis along which plans cut (key_axes in check_passes.hpp); without the classes one
/// tensor-long box would slow every look-up down. Each box visited is one step of `budget`, which must outlive
/// this, each one put in or taken out some more.
template <typename T>
class BoxIndex {
public:
    struct Entry {
        Region box;
        T value;
    };

    BoxIndex(std::size_t axis, Budget& budget) : axis_(axis), budget_(&budget) {}
    /// Without a budget: for plans that have passed check, or whose size bounds the work anyway.
    explicit BoxIndex(std::size_t axis = 0) : axis_(axis) {}

    void insert(Region box, T value) {
        spend(kStepsOfInsert);
        const Interval key = box[axis_];
        classes_[width_of(key)].emplace(key.begin, Entry{std::move(box), std::move(value)});
    }

    /// The entry with exactly this box; null if there is none.
    [[nodiscard]] Entry* find(const Region& box) {
        const auto entries = classes_.find(width_of(box[axis_]));
        if (entries == classes_.end()) return nullptr;
        const auto [first, last] = entries->second.equal_range(box[axis_].begin);
        for (auto at = first; at != last; ++at) {
            spend();
            if (at->second.box == box) return &at->second;
        }
        return nullptr;
    }

    /// Calls visit(entry) for each entry that overlaps `query`, long boxes first; visit returns false to
    /// stop.
    template <typename Visit>
    void visit_overlapping(const Region& query, Visit visit) const {
        visit_in(classes_, query, visit);
    }
    /// The same, and visit may change the entry's value.
    template <typename Visit>
    void update_overlapping(const Region& query, Visit visit) {
        visit_in(classes_, query, visit);
    }

    /// Removes the entries that overlap `query` and for which `wanted` holds, and returns them whole.
    template <typename Wanted>
    std::vector<Entry> extract_overlapping(const Region& query, Wanted wanted) {
        std::vector<Entry> found;
        for (auto& [width, entries] : classes_) {
            const auto last = entries.lower_bound(query[axis_].end);
            for (auto at = first_candidate(entries, width, query); at != last;) {
                spend();
                if (!overlaps(at->second.box, query) || !wanted(at->second)) {
                    ++at;
                    continue;
                }
                spend(kStepsOfInsert);
                found.push_back(std::move(at->second));
                at = entries.erase(at);
            }
        }
        return found;
    }
    std::vector<Entry> extract_overlapping(const Region& query) {
        return extract_overlapping(query, [](const Entry&) { return true; });
    }

private:
    using Class = std::multimap<std::int64_t, Entry>;
    static constexpr std::int64_t kStepsOfInsert = 8;  ///< it allocates

    static int width_of(const Interval& key) {
        return std::bit_width(static_cast<std::uint64_t>(key.size()));
    }

    /// Boxes of this class are at most 2^width - 1 long: one that begins that far before the query ends at or
    /// before it.
    template <typename Entries>
    auto first_candidate(Entries& entries, int width, const Region& query) const {
        const auto longest = static_cast<std::int64_t>((std::uint64_t{1} << width) - 1);
        return entries.upper_bound(query[axis_].begin - longest);
    }

    template <typename Classes, typename Visit>
    void visit_in(Classes& classes, const Region& query, Visit& visit) const {
        for (auto& [width, entries] : classes) {
            const auto last = entries.lower_bound(query[axis_].end);
            for (auto at = first_candidate(entries, width, query); at != last; ++at) {
                spend();
                if (overlaps(at->second.box, query) && !visit(at->second)) return;
            }
        }
    }

    void spend(std::int64_t steps = 1) const {
        if (budget_ != nullptr) budget_->spend(steps);
    }

    std::size_t axis_;
    Budget* budget_ = nullptr;
    std::map<int, Class, std::greater<>> classes_;  ///< by bit width of the length
};

}  // namespace syncopate::plan
