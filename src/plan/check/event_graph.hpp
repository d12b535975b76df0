// The order that `after` imposes: events, and what each waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/check/collectives.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/topological_order.hpp"

namespace syncopate::plan {

/// An event is one op, or one collective with all its participants: these wait for everything that any of
/// them waits for, and complete together. Events are numbered from 0 in the order of their first participant.
class EventGraph {
public:
    /// References in `after` to ops that do not exist are left out (check_malformed reports them).
    EventGraph(const Plan& plan, const std::vector<CollectiveGroup>& collectives);

    [[nodiscard]] std::int32_t num_events() const {
        return static_cast<std::int32_t>(member_begin_.size()) - 1;
    }
    [[nodiscard]] std::span<const OpRef> members(std::int32_t event) const {
        return between(members_, member_begin_, event);
    }
    /// The events that must complete before this one starts, rising, each once.
    [[nodiscard]] std::span<const std::int32_t> waits(std::int32_t event) const {
        return between(waits_, wait_begin_, event);
    }
    [[nodiscard]] std::int32_t event(OpRef ref) const {
        return event_of_[first_op_[at(ref.rank)] + static_cast<std::size_t>(ref.index)];
    }

private:
    template <typename T>
    static std::span<const T> between(const std::vector<T>& items, const std::vector<std::size_t>& begin,
                                      std::int32_t event) {
        const auto at = static_cast<std::size_t>(event);
        return std::span<const T>(items).subspan(begin[at], begin[at + 1] - begin[at]);
    }

    std::vector<std::size_t> first_op_;   ///< by rank: where its ops begin in event_of_
    std::vector<std::int32_t> event_of_;  ///< by op, all ranks in a row
    std::vector<std::size_t> member_begin_;
    std::vector<OpRef> members_;
    std::vector<std::size_t> wait_begin_;
    std::vector<std::int32_t> waits_;
};

/// For each event the events that wait for it, rising: waits() turned round.
[[nodiscard]] Followers followers_of(const EventGraph& graph);

/// All events in an order that `after` allows; of those that may come next, who stands first in its rank's
/// list. Events on a cycle, or after one, are missing.
[[nodiscard]] std::vector<std::int32_t> program_order(const EventGraph& graph);

}  // namespace syncopate::plan
