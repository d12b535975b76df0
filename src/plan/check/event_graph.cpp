#include "plan/check/event_graph.hpp"

#include <algorithm>
#include <cstdint>

#include "syncopate/at.hpp"

namespace syncopate::plan {

EventGraph::EventGraph(const Plan& plan, const std::vector<CollectiveGroup>& collectives) {
    first_op_.push_back(0);
    for (const std::vector<Op>& ops : plan.ranks) first_op_.push_back(first_op_.back() + ops.size());
    const auto flat = [&](OpRef ref) {
        return first_op_[at(ref.rank)] + static_cast<std::size_t>(ref.index);
    };
    constexpr std::int32_t kAlone = -1;
    std::vector<std::int32_t> group_of(first_op_.back(), kAlone);
    for (std::size_t group = 0; group < collectives.size(); ++group) {
        for (const OpRef ref : collectives[group]) group_of[flat(ref)] = static_cast<std::int32_t>(group);
    }

    event_of_.assign(first_op_.back(), -1);
    member_begin_.push_back(0);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto count = static_cast<std::int32_t>(plan.ranks[at(rank)].size());
        for (std::int32_t index = 0; index < count; ++index) {
            const OpRef ref{rank, index};
            if (event_of_[flat(ref)] >= 0) continue;  // a later participant
            const std::int32_t group = group_of[flat(ref)];
            const CollectiveGroup alone{ref};
            for (const OpRef member : group == kAlone ? alone : collectives[at(group)]) {
                event_of_[flat(member)] = num_events();
                members_.push_back(member);
            }
            member_begin_.push_back(members_.size());
        }
    }

    wait_begin_.push_back(0);
    for (std::int32_t at = 0; at < num_events(); ++at) {
        for (const OpRef member : members(at)) {
            for (const OpRef ref : plan.op(member).after) {
                const bool exists = ref.rank >= 0 && ref.rank < plan.num_ranks() && ref.index >= 0 &&
                                    static_cast<std::size_t>(ref.index) <
                                        plan.ranks[static_cast<std::size_t>(ref.rank)].size();
                if (exists) waits_.push_back(event(ref));
            }
        }
        const auto mine = waits_.begin() + static_cast<std::ptrdiff_t>(wait_begin_.back());
        std::sort(mine, waits_.end());
        waits_.erase(std::unique(mine, waits_.end()), waits_.end());
        wait_begin_.push_back(waits_.size());
    }
}

Followers followers_of(const EventGraph& graph) {
    return {static_cast<std::size_t>(graph.num_events()), [&](auto&& edge) {
                for (std::int32_t event = 0; event < graph.num_events(); ++event) {
                    for (const std::int32_t earlier : graph.waits(event)) edge(earlier, event);
                }
            }};
}

std::vector<std::int32_t> program_order(const EventGraph& graph) {
    // Events are numbered rank by rank: in that order each goes behind those of its own index.
    const auto index_of = [&](std::int32_t event) { return at(graph.members(event).front().index); };
    return topological_order_in(followers_of(graph), in_order_of(at(graph.num_events()), index_of));
}

}  // namespace syncopate::plan
