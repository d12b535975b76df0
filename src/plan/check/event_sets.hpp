// Sets of events that share their tails, and the question whether all of one come before an event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/check/happens_before.hpp"

namespace syncopate::plan {

/// Sets are lists in one pool, named by their head; a set never changes, so the parts of a box that is split
/// go on with the same one. Events are added in topological order.
class EventSets {
public:
    using Set = std::int32_t;
    static constexpr Set kEmpty = -1;
    static constexpr std::int32_t kNone = -1;

    EventSets(const EventGraph& graph, HappensBefore& happens_before)
        : graph_(graph), happens_before_(happens_before) {}

    /// `set` with one more event. What comes before that event may be left out: whoever comes after the one
    /// comes after the other.
    [[nodiscard]] Set with(Set set, std::int32_t event) {
        Set rest = set;
        if (set != kEmpty) {
            const Node& head = nodes_[at(set)];
            if (head.event == event) return set;
            if (happens_before_.before(head.event, event)) rest = head.next;
        }
        nodes_.push_back({event, rest, kNone});
        return static_cast<Set>(nodes_.size() - 1);
    }

    /// A member, other than `event` itself, that does not come before `event`; kNone if all do.
    [[nodiscard]] std::int32_t unordered(Set set, std::int32_t event) {
        std::size_t looked_at = 0;
        for (Set node = set; node != kEmpty; node = nodes_[at(node)].next, ++looked_at) {
            const Node& here = nodes_[at(node)];
            if (here.bound != kNone && at_or_before(here.bound, event)) break;
            if (!at_or_before(here.event, event)) return here.event;
        }
        if (looked_at >= kWorthABound) remember_bound(set, event);
        return kNone;
    }

private:
    struct Node {
        std::int32_t event;
        Set next;
        std::int32_t bound;  ///< an event that every member from here on comes before, or is
    };
    static constexpr std::size_t kWorthABound = 4;
    static constexpr std::size_t kMaxCandidates = 4;

    static std::size_t at(Set set) { return static_cast<std::size_t>(set); }
    bool at_or_before(std::int32_t first, std::int32_t second) {
        return first == second || happens_before_.before(first, second);
    }

    /// All members come before `event`. Of what it waits for, one may be a barrier after all of them; others
    /// that wait for that barrier then need one look only.
    void remember_bound(Set set, std::int32_t event) {
        const auto waits = graph_.waits(event);
        std::int32_t bound = event;
        for (std::size_t i = 0; i < waits.size() && waits.size() <= kMaxCandidates && bound == event; ++i) {
            Set node = set;
            while (node != kEmpty && (waits.size() == 1 || at_or_before(nodes_[at(node)].event, waits[i])))
                node = waits.size() == 1 ? kEmpty : nodes_[at(node)].next;
            if (node == kEmpty) bound = waits[i];
        }
        nodes_[at(set)].bound = bound;
    }

    const EventGraph& graph_;
    HappensBefore& happens_before_;
    std::vector<Node> nodes_;
};

}  // namespace syncopate::plan
