#include "event_graph.hpp"

#include <algorithm>

namespace syncopate::plan {

EventGraph::EventGraph(const Plan& plan, const std::vector<CollectiveGroup>& collectives) {
    first_op_.push_back(0);
    for (const std::vector<Op>& ops : plan.ranks) first_op_.push_back(first_op_.back() + ops.size());
    const auto flat = [&](OpRef ref) {
        return first_op_[static_cast<std::size_t>(ref.rank)] + static_cast<std::size_t>(ref.index);
    };
    constexpr std::int32_t kAlone = -1;
    std::vector<std::int32_t> group_of(first_op_.back(), kAlone);
    for (std::size_t group = 0; group < collectives.size(); ++group) {
        for (const OpRef ref : collectives[group]) group_of[flat(ref)] = static_cast<std::int32_t>(group);
    }

    event_of_.assign(first_op_.back(), -1);
    member_begin_.push_back(0);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto count = static_cast<std::int32_t>(plan.ranks[static_cast<std::size_t>(rank)].size());
        for (std::int32_t index = 0; index < count; ++index) {
            const OpRef ref{rank, index};
            if (event_of_[flat(ref)] >= 0) continue;  // a later participant
            const std::int32_t group = group_of[flat(ref)];
            const CollectiveGroup alone{ref};
            for (const OpRef member :
                 group == kAlone ? alone : collectives[static_cast<std::size_t>(group)]) {
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

std::vector<std::int32_t> topological_order(const EventGraph& graph) {
    const auto count = static_cast<std::size_t>(graph.num_events());
    std::vector<std::int32_t> missing(count, 0);  // waits not yet in the order
    std::vector<std::size_t> follower_begin(count + 1, 0);
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        missing[static_cast<std::size_t>(event)] = static_cast<std::int32_t>(graph.waits(event).size());
        for (const std::int32_t earlier : graph.waits(event))
            ++follower_begin[static_cast<std::size_t>(earlier) + 1];
    }
    for (std::size_t i = 0; i < count; ++i) follower_begin[i + 1] += follower_begin[i];
    std::vector<std::int32_t> followers(follower_begin.back());
    std::vector<std::size_t> fill(follower_begin.begin(), follower_begin.end() - 1);
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        for (const std::int32_t earlier : graph.waits(event))
            followers[fill[static_cast<std::size_t>(earlier)]++] = event;
    }

    std::vector<std::int32_t> order;
    order.reserve(count);
    for (std::int32_t event = 0; event < graph.num_events(); ++event) {
        if (missing[static_cast<std::size_t>(event)] == 0) order.push_back(event);
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
        const auto event = static_cast<std::size_t>(order[next]);
        for (std::size_t i = follower_begin[event]; i < follower_begin[event + 1]; ++i) {
            if (--missing[static_cast<std::size_t>(followers[i])] == 0) order.push_back(followers[i]);
        }
    }
    return order;
}

HappensBefore::HappensBefore(const EventGraph& graph, std::span<const std::int32_t> topological)
    : graph_(graph) {
    const auto count = static_cast<std::size_t>(graph.num_events());
    level_.assign(count, 0);
    chain_.assign(count, -1);
    visited_.assign(count, 0);
    std::vector<std::int32_t> tail;  // of each chain
    for (const std::int32_t event : topological) {
        std::int32_t& level = level_[static_cast<std::size_t>(event)];
        std::int32_t& chain = chain_[static_cast<std::size_t>(event)];
        for (const std::int32_t earlier : graph.waits(event)) {
            level = std::max(level, level_[static_cast<std::size_t>(earlier)] + 1);
            const std::int32_t candidate = chain_[static_cast<std::size_t>(earlier)];
            if (chain < 0 && tail[static_cast<std::size_t>(candidate)] == earlier) chain = candidate;
        }
        if (chain < 0) {
            chain = static_cast<std::int32_t>(tail.size());
            tail.push_back(event);
        } else {
            tail[static_cast<std::size_t>(chain)] = event;
        }
    }
}

bool HappensBefore::before(std::int32_t first, std::int32_t second) {
    const std::int32_t floor = level_[static_cast<std::size_t>(first)];
    const std::int32_t chain = chain_[static_cast<std::size_t>(first)];
    if (level_[static_cast<std::size_t>(second)] <= floor) return false;
    if (chain_[static_cast<std::size_t>(second)] == chain) return true;
    ++search_;
    stack_.assign(1, second);
    while (!stack_.empty()) {
        const std::int32_t event = stack_.back();
        stack_.pop_back();
        const auto waits = graph_.waits(event);
        // A barrier may wait for every op of the plan: look before walking.
        if (std::binary_search(waits.begin(), waits.end(), first)) return true;
        for (const std::int32_t earlier : waits) {
            const auto at = static_cast<std::size_t>(earlier);
            if (level_[at] < floor || visited_[at] == search_) continue;
            if (chain_[at] == chain) return true;  // at `first`'s level or above, on its chain
            visited_[at] = search_;
            if (level_[at] > floor) stack_.push_back(earlier);
        }
    }
    return false;
}

}  // namespace syncopate::plan
