#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// The strongly connected components that contain a cycle, each sorted: Tarjan, "Depth-first search and
/// linear graph algorithms" (SIAM J. Comput. 1972), with a stack of its own since a chain may be a million
/// ops long. Only `suspects` are searched.
class CyclicComponents {
public:
    CyclicComponents(const EventGraph& graph, const std::vector<bool>& suspects)
        : graph_(graph),
          suspects_(suspects),
          number_(suspects.size(), 0),
          low_(suspects.size(), 0),
          on_stack_(suspects.size(), false) {}

    std::vector<std::vector<std::int32_t>> find() {
        for (std::int32_t event = 0; event < graph_.num_events(); ++event) {
            if (suspects_[at(event)] && number_[at(event)] == 0) search(event);
        }
        return std::move(components_);
    }

private:
    struct Frame {
        std::int32_t event;
        std::size_t next_wait;
    };
    void search(std::int32_t root) {
        enter(root);
        while (!frames_.empty()) {
            Frame& frame = frames_.back();
            const auto waits = graph_.waits(frame.event);
            if (frame.next_wait < waits.size()) {
                const std::int32_t earlier = waits[frame.next_wait++];
                if (!suspects_[at(earlier)]) continue;
                if (number_[at(earlier)] == 0) {
                    enter(earlier);
                } else if (on_stack_[at(earlier)]) {
                    low_[at(frame.event)] = std::min(low_[at(frame.event)], number_[at(earlier)]);
                }
                continue;
            }
            const std::int32_t event = frame.event;
            frames_.pop_back();
            if (!frames_.empty()) {
                std::int32_t& below = low_[at(frames_.back().event)];
                below = std::min(below, low_[at(event)]);
            }
            if (low_[at(event)] == number_[at(event)]) leave(event);
        }
    }

    void enter(std::int32_t event) {
        number_[at(event)] = low_[at(event)] = ++count_;
        stack_.push_back(event);
        on_stack_[at(event)] = true;
        frames_.push_back({event, 0});
    }

    void leave(std::int32_t root) {
        std::vector<std::int32_t> component;
        std::int32_t event = -1;
        do {
            event = stack_.back();
            stack_.pop_back();
            on_stack_[at(event)] = false;
            component.push_back(event);
        } while (event != root);
        const auto waits = graph_.waits(root);
        const bool waits_for_itself = std::find(waits.begin(), waits.end(), root) != waits.end();
        if (component.size() == 1 && !waits_for_itself) return;
        std::sort(component.begin(), component.end());
        components_.push_back(std::move(component));
    }

    const EventGraph& graph_;
    const std::vector<bool>& suspects_;
    std::vector<std::int32_t> number_;  ///< order of discovery from 1; 0: not yet
    std::vector<std::int32_t> low_;
    std::vector<bool> on_stack_;
    std::vector<std::int32_t> stack_;
    std::vector<Frame> frames_;
    std::int32_t count_ = 0;
    std::vector<std::vector<std::int32_t>> components_;
};

/// A shortest cycle through the component's first event, as events each waiting for the next; the last one
/// waits for the first. Breadth first along the waits. `came_from` is scratch: -1 everywhere before and
/// after.
std::vector<std::int32_t> shortest_cycle(const EventGraph& graph, const std::vector<std::int32_t>& component,
                                         std::vector<std::int32_t>& came_from) {
    const std::int32_t start = component.front();
    const auto member = [&](std::int32_t event) {
        return std::binary_search(component.begin(), component.end(), event);
    };
    std::vector<std::int32_t> queue{start};
    std::int32_t last = -1;
    for (std::size_t next = 0; last < 0; ++next) {
        const std::int32_t event = queue[next];
        for (const std::int32_t earlier : graph.waits(event)) {
            if (earlier == start) {
                last = event;
                break;
            }
            if (came_from[at(earlier)] >= 0 || !member(earlier)) continue;
            came_from[at(earlier)] = event;
            queue.push_back(earlier);
        }
    }
    std::vector<std::int32_t> cycle;
    for (std::int32_t event = last; event != start; event = came_from[at(event)]) {
        cycle.push_back(event);
    }
    cycle.push_back(start);
    std::reverse(cycle.begin(), cycle.end());
    for (const std::int32_t event : queue) came_from[at(event)] = -1;
    return cycle;
}

/// The op of `event` that waits for `earlier`: of a collective, the participant with that `after`.
OpRef waiting_op(const Plan& plan, const EventGraph& graph, std::int32_t event, std::int32_t earlier) {
    const auto members = graph.members(event);
    const auto targets = graph.members(earlier);
    for (const OpRef member : members) {
        for (const OpRef ref : plan.op(member).after) {
            if (std::find(targets.begin(), targets.end(), ref) != targets.end()) return member;
        }
    }
    return members.front();
}

}  // namespace

std::vector<Finding> check_cycles(const Plan& plan, const EventGraph& graph,
                                  std::span<const std::int32_t> topological) {
    if (topological.size() == static_cast<std::size_t>(graph.num_events())) return {};
    std::vector<bool> suspects(static_cast<std::size_t>(graph.num_events()), true);
    for (const std::int32_t event : topological) suspects[at(event)] = false;

    std::vector<Finding> findings;
    std::vector<std::int32_t> came_from(suspects.size(), -1);
    for (const std::vector<std::int32_t>& component : CyclicComponents(graph, suspects).find()) {
        const std::vector<std::int32_t> cycle = shortest_cycle(graph, component, came_from);
        std::vector<OpRef> ops;
        for (std::size_t i = 0; i < cycle.size(); ++i) {
            ops.push_back(waiting_op(plan, graph, cycle[i], cycle[(i + 1) % cycle.size()]));
        }
        std::string text;
        constexpr std::size_t kShown = 64;  // beyond that a person looks for the ends only
        for (std::size_t i = 0; i < ops.size(); ++i) {
            if (ops.size() > kShown && i == kShown / 2) {
                text += fmt::format("({} more) -> ", ops.size() - kShown);
                i = ops.size() - kShown / 2;
            }
            text += fmt::format("{}:{} -> ", ops[i].rank, ops[i].index);
        }
        text += fmt::format("{}:{}", ops.front().rank, ops.front().index);
        findings.push_back({Finding::Kind::cycle, ops.front().rank, ops.front().index,
                            text + " (rank:op, each waits for the next)"});
    }
    return findings;
}

}  // namespace syncopate::plan
