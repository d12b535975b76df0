// Regions that lie in one rank's memory, found by overlap: for passes that ask of every op what else touches what it
// touches. Of a plan over many ranks, going through them all each time would take the square of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/graph.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

class MemoryIndex {
public:
    struct Entry {
        std::int32_t tensor = -1;
        NodeId op = kNoNode;                   ///< whose it is; none: it is there before all ops
        const plan::Region* region = nullptr;  ///< outlives the index
    };

    MemoryIndex() = default;
    explicit MemoryIndex(std::vector<Entry> entries);

    /// Calls visit(entry) for each that shares an element with `box` of `tensor`, until it returns true; says whether
    /// one did. Those of one tensor come as they begin along the axis that tells them apart best, equals as given.
    template <typename Visit>
    bool any_overlap(std::int32_t tensor, const plan::Region& box, const Visit& visit) const {
        const Group* const group = find(tensor);
        if (group == nullptr) return false;
        const plan::Interval wanted = along(box, group->axis);
        for (std::size_t i = first_reaching(*group, wanted.begin); i < group->end; ++i) {
            if (along(*entries_[i].region, group->axis).begin >= wanted.end) break;
            if (overlaps(*entries_[i].region, box) && visit(entries_[i])) return true;
        }
        return false;
    }
    [[nodiscard]] bool any_overlap(const plan::Chunk& chunk) const {
        return any_overlap(chunk.tensor, chunk.region, [](const Entry&) { return true; });
    }

private:
    /// The entries of one tensor, sorted by where they begin along `axis`.
    struct Group {
        std::int32_t tensor = -1;
        std::size_t begin = 0, end = 0;  ///< in entries_
        std::size_t axis = 0;
    };

    /// A scalar is a box of one element.
    [[nodiscard]] static plan::Interval along(const plan::Region& region, std::size_t axis) {
        return region.empty() ? plan::Interval{0, 1} : region[axis];
    }
    [[nodiscard]] const Group* find(std::int32_t tensor) const;
    /// The first entry that may end behind `begin`.
    [[nodiscard]] std::size_t first_reaching(const Group& group, std::int64_t begin) const;

    std::vector<Entry> entries_;              ///< by tensor
    std::vector<std::int64_t> furthest_end_;  ///< beside each, of those of its group so far
    std::vector<Group> groups_;               ///< by tensor, rising
};

}  // namespace syncopate::fuse
