#include "tune/play/over_nodes.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::tune {

using plan::OpRef;

plan::OpRef Started::of(OpRef ref) const { return {ref.rank, place[at(ref.rank)][at(ref.index)]}; }

Started in_start_order(const plan::Plan& transfers, const fuse::Graph& graph) {
    Started made{transfers, {}};
    for (std::size_t rank = 0; rank < graph.start_order.size(); ++rank) {
        std::vector<std::int32_t>& place = made.place.emplace_back(transfers.ranks[rank].size(), 0);
        for (std::size_t next = 0; next < graph.start_order[rank].size(); ++next)
            place[at(graph.ref(graph.start_order[rank][next]).index)] = static_cast<std::int32_t>(next);
    }
    for (std::size_t rank = 0; rank < made.place.size(); ++rank) {
        for (std::size_t index = 0; index < transfers.ranks[rank].size(); ++index) {
            plan::Op op = transfers.ranks[rank][index];
            for (OpRef& before : op.after) before = made.of(before);
            made.plan.ranks[rank][at(made.place[rank][index])] = std::move(op);
        }
    }
    return made;
}

void meet_between_nodes(const fuse::Lowered& lowered, const fuse::Graph& graph, plan::Plan& transfers) {
    std::vector<std::pair<std::int32_t, OpRef>> sides;
    for (const auto& [ref, side] : lowered.channel) sides.emplace_back(graph.round(graph.op(ref)), ref);
    std::ranges::sort(sides);
    struct Rounds {
        std::int32_t now = -1;
        std::vector<OpRef> ends;    ///< of this round: a side ends with its receive
        std::vector<OpRef> before;  ///< of the one before
    };
    std::vector<Rounds> of_rank(transfers.ranks.size());
    for (const auto& [round, ref] : sides) {
        const fuse::ChannelSide& side = lowered.channel.at(ref);
        Rounds& rounds = of_rank[at(ref.rank)];
        if (rounds.now != round) {
            rounds.before = std::exchange(rounds.ends, {});
            rounds.now = round;
        }
        rounds.ends.push_back(side.sends ? side.other : ref);
        plan::Op& op = transfers.ranks[at(ref.rank)][at(ref.index)];
        op.after.insert(op.after.end(), rounds.before.begin(), rounds.before.end());
        op.backend = plan::Backend::automatic;  // of a plan, nothing within a node goes by the channel
        if (side.sends) continue;
        op.kind = plan::OpKind::pull;
        op.peer = side.other.rank;
    }
}

}  // namespace syncopate::tune
