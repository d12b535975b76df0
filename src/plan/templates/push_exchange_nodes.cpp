#include "plan/templates/push_exchange_nodes.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

class PushExchangeNodes {
public:
    PushExchangeNodes(Plan& plan, const PushExchangeOptions& options, const Cut& cut)
        : plan_(plan),
          options_(options),
          cut_(cut),
          nodes_(plan.mesh.num_nodes()),
          places_(plan.mesh.ranks_of_node()),
          block_(plan.tensors[0].shape[0] / plan.num_ranks()),
          relay_(static_cast<std::int32_t>(plan.tensors.size())),
          held_(plan.ranks.size()) {
        Tensor relay = plan.tensors[1];
        relay.name += ".relay";
        plan.tensors.push_back(std::move(relay));
    }

    void run() {
        const Tensor& from = plan_.tensors[0];
        const std::int32_t slices =
            cut_.minor_axis < 0 ? 1 : cut_.num_slices(from.shape[at(cut_.minor_axis)]);
        const auto each_rank = [&](auto&& add) {
            for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) add(rank);
        };
        const auto keep_own = [&](std::int32_t rank) {
            for (const auto& [src, dst] : pieces(rank, rank, {0, options_.split}, 0)) copy(rank, src, dst);
        };
        // The own block is made last, as it leaves for nowhere; of what is held it is used first.
        if (!options_.produced) each_rank(keep_own);
        for (std::int32_t slice = 0; slice < slices; ++slice) {
            for (std::int32_t turn = 1; turn < nodes_; ++turn) {
                each_rank([&](std::int32_t rank) { collect(rank, turn, slice); });
                if (turn > 1) each_rank([&](std::int32_t rank) { cross(rank, turn - 1, slice); });
            }
            each_rank([&](std::int32_t rank) { deliver(rank, slice); });
            each_rank([&](std::int32_t rank) { cross(rank, nodes_ - 1, slice); });
        }
        if (options_.produced) each_rank(keep_own);
    }

private:
    using Piece = std::pair<Chunk, Chunk>;  ///< from and to

    /// The rank of the same place `turn` nodes on.
    [[nodiscard]] std::int32_t across(std::int32_t rank, std::int32_t turn) const {
        return (rank + turn * places_) % plan_.num_ranks();
    }
    [[nodiscard]] std::int32_t beside(std::int32_t rank, std::int32_t offset) const {
        return rank / places_ * places_ + (rank + offset) % places_;
    }
    /// Blocks [first, last) of a tensor.
    [[nodiscard]] Chunk blocks(std::int32_t tensor, std::int32_t first, std::int32_t last) const {
        return {tensor, with_axis(plan_.tensors[0].whole(), 0, {first * block_, last * block_})};
    }
    [[nodiscard]] std::vector<Piece> paired(const Chunk& from, const Chunk& to, const Cut& by,
                                            std::int32_t slice) const {
        std::vector<Piece> made;
        const std::vector<Chunk> sources = by.chunks(from, slice), targets = by.chunks(to, slice);
        for (std::size_t i = 0; i < sources.size(); ++i) made.emplace_back(sources[i], targets[i]);
        return made;
    }
    /// What `rank` has for `receiver`, which gets it at once.
    [[nodiscard]] std::vector<Piece> pieces(std::int32_t rank, std::int32_t receiver, const Cut& by,
                                            std::int32_t slice) const {
        return paired(blocks(0, receiver, receiver + 1), blocks(1, rank, rank + 1), by, slice);
    }

    OpRef add(std::int32_t rank, OpKind kind, std::int32_t peer, const Chunk& src, const Chunk& dst) {
        std::vector<Op>& list = plan_.ranks[at(rank)];
        Op& op = list.emplace_back();
        op.kind = kind;
        op.peer = peer;
        op.src = src;
        op.dst = dst;
        return {rank, static_cast<std::int32_t>(list.size()) - 1};
    }
    OpRef copy(std::int32_t rank, const Chunk& src, const Chunk& dst) {
        return add(rank, OpKind::local, -1, src, dst);
    }

    /// What a rank has for those of the node `turn` on: to who has their places here.
    void collect(std::int32_t rank, std::int32_t turn, std::int32_t slice) {
        const Cut whole{0, 1, cut_.minor_axis, cut_.minor_split, cut_.minor_sizes};
        for (std::int32_t offset = 1; offset <= places_; ++offset) {
            const std::int32_t via = beside(rank, offset);
            const std::int32_t receiver = across(via, turn);
            const std::int32_t place = across(rank, turn);  // of its block among the node's
            for (const auto& [src, dst] :
                 paired(blocks(0, receiver, receiver + 1), blocks(relay_, place, place + 1), whole, slice)) {
                std::vector<OpRef>& held = held_[at(via)];
                held.resize(static_cast<std::size_t>(plan_.num_ranks()));
                held[at(place)] = via == rank ? copy(rank, src, dst) : add(rank, OpKind::push, via, src, dst);
            }
        }
    }

    /// What a rank has brought together for its place in the node `turn` on.
    void cross(std::int32_t rank, std::int32_t turn, std::int32_t slice) {
        const Cut whole{0, 1, cut_.minor_axis, cut_.minor_split, cut_.minor_sizes};
        const std::int32_t receiver = across(rank, turn);
        const std::int32_t there = receiver / places_ * places_;
        const std::int32_t here = rank / places_ * places_;
        for (const Interval& group : split_nonempty({0, places_}, options_.split)) {
            const auto begin = static_cast<std::int32_t>(group.begin);
            const auto end = static_cast<std::int32_t>(group.end);
            for (const auto& [src, dst] : paired(blocks(relay_, there + begin, there + end),
                                                 blocks(1, here + begin, here + end), whole, slice)) {
                const OpRef ref = add(rank, OpKind::push, receiver, src, dst);
                OpRefs& after = plan_.ranks[at(rank)][at(ref.index)].after;
                for (std::int32_t place = begin; place < end; ++place)
                    after.push_back(held_[at(rank)][at(there + place)]);
            }
        }
    }

    void deliver(std::int32_t rank, std::int32_t slice) {
        for (std::int32_t offset = 1; offset < places_; ++offset) {
            const std::int32_t receiver = beside(rank, offset);
            for (const auto& [src, dst] : pieces(rank, receiver, cut_, slice))
                add(rank, OpKind::push, receiver, src, dst);
        }
    }

    Plan& plan_;
    const PushExchangeOptions& options_;
    const Cut& cut_;
    std::int32_t nodes_;
    std::int32_t places_;  ///< ranks of a node
    std::int64_t block_;   ///< rows for one rank
    std::int32_t relay_;   ///< the tensor
    /// By rank, and block of its relay: what brought it in this slice.
    std::vector<std::vector<OpRef>> held_;
};

}  // namespace

void push_exchange_nodes(Plan& plan, const PushExchangeOptions& options, const Cut& cut) {
    PushExchangeNodes(plan, options, cut).run();
}

}  // namespace syncopate::plan
