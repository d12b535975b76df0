#include "syncopate/plan/check/rounds.hpp"

#include <algorithm>
#include <cstddef>

#include "plan/check/event_graph.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/check/taken_rounds.hpp"

namespace syncopate::plan {

std::vector<std::vector<std::int32_t>> rounds_between_nodes(const Plan& plan) {
    std::vector<std::vector<std::int32_t>> rounds;
    for (const std::vector<Op>& list : plan.ranks) rounds.emplace_back(list.size(), -1);
    const EventGraph graph(plan, match_collectives(plan).groups);
    std::vector<std::int32_t> last(static_cast<std::size_t>(graph.num_events()), -1);
    std::vector<TakenRounds> sends(plan.ranks.size()), receives(plan.ranks.size());  // by rank
    for (const std::int32_t event : topological_order(followers_of(graph))) {
        std::int32_t& round = last[at(event)];
        for (const std::int32_t before : graph.waits(event)) round = std::max(round, last[at(before)]);
        const OpRef ref = graph.members(event).front();
        const Op& op = plan.op(ref);
        if (op.kind != OpKind::push && op.kind != OpKind::pull) continue;
        const std::int32_t from = op.source_rank(ref.rank);
        const std::int32_t to = op.destination_rank(ref.rank);
        if (plan.mesh.node_of(from) == plan.mesh.node_of(to)) continue;
        round = take_first(sends[at(from)], receives[at(to)], round + 1);
        rounds[at(ref.rank)][at(ref.index)] = round;
    }
    return rounds;
}

}  // namespace syncopate::plan
