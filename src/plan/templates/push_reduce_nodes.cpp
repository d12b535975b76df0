#include "plan/templates/push_reduce_nodes.hpp"

#include <algorithm>
#include <utility>

namespace syncopate::plan {
namespace {

class PushReduceNodes {
public:
    PushReduceNodes(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options,
                    std::vector<std::vector<Region>> chunks)
        : options_(options),
          ranks_(mesh.num_ranks()),
          nodes_(mesh.num_nodes()),
          places_(mesh.ranks_of_node()),
          chunks_(std::move(chunks)),
          summed_(static_cast<std::size_t>(ranks_)) {
        plan_.mesh = mesh;
        plan_.tensors = {tensor};
        plan_.ranks.resize(chunks_.size());
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            for (std::int32_t shard = rank % places_; shard < ranks_; shard += places_)
                summed_[index(rank)].emplace_back(chunks_[index(shard)].size());
        }
        reserve();
    }

    Plan run() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const Region whole = plan_.tensors.front().whole();
            plan_.produced.push_back({.rank = rank, .chunk = {0, whole}, .partial = true});
            const std::vector<Region>& own = chunks_[index(rank)];
            if (!options_.all && own.empty()) continue;
            const Region kept = options_.all ? whole : bounding_box(own.front(), own.back());
            plan_.final.push_back({.rank = rank, .chunk = {0, kept}, .of_all = true});
        }
        for (std::int32_t turn = 1; turn <= nodes_; ++turn) {
            for (std::int32_t rank = 0; rank < ranks_; ++rank) collect(rank, turn % nodes_);
            for (std::int32_t rank = 0; rank < ranks_ && turn < nodes_; ++rank) cross(rank, turn);
        }
        for (std::int32_t rank = 0; rank < ranks_ && options_.all; ++rank) hand_out(rank);
        return std::move(plan_);
    }

private:
    static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
    /// The rank of the same place `turn` nodes on.
    [[nodiscard]] std::int32_t across(std::int32_t rank, std::int32_t turn) const {
        return (rank + turn * places_) % ranks_;
    }
    [[nodiscard]] std::int32_t beside(std::int32_t rank, std::int32_t offset) const {
        return rank / places_ * places_ + (rank + offset) % places_;
    }

    /// Room for all that each rank pushes: of many ranks that is a million ops.
    void reserve() {
        std::vector<std::size_t> of_place(index(places_), 0);  // chunks of the shards of ranks there
        std::size_t all = 0;
        for (std::int32_t shard = 0; shard < ranks_; ++shard) {
            of_place[index(shard % places_)] += chunks_[index(shard)].size();
            all += chunks_[index(shard)].size();
        }
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const std::size_t own = chunks_[index(rank)].size();
            const std::size_t handed =
                own * index(nodes_ - 1) + of_place[index(rank % places_)] * index(places_ - 1);
            plan_.ranks[index(rank)].reserve(all - own + (options_.all ? handed : 0));
        }
    }

    /// What is added to what `rank` makes of a shard, whose rank has its place in another node or in its own.
    [[nodiscard]] std::vector<OpRefs>& summed(std::int32_t rank, std::int32_t shard) {
        return summed_[index(rank)][index(shard / places_)];
    }

    /// A push of a chunk to where it lies at `peer`, too.
    OpRef push(std::int32_t rank, std::int32_t peer, const Region& chunk, Reduce reduce, OpRefs after) {
        std::vector<Op>& list = plan_.ranks[index(rank)];
        Op& op = list.emplace_back();
        op.kind = OpKind::push;
        op.peer = peer;
        op.src = op.dst = {0, chunk};
        op.reduce = reduce;
        op.after = std::move(after);
        return {rank, static_cast<std::int32_t>(list.size()) - 1};
    }

    /// What a rank adds, inside its node, to the shards of the node `turn` on.
    void collect(std::int32_t rank, std::int32_t turn) {
        for (std::int32_t offset = 1; offset < places_; ++offset) {
            const std::int32_t via = beside(rank, offset);
            const std::int32_t shard = across(via, turn);
            const std::vector<Region>& chunks = chunks_[index(shard)];
            for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
                summed(via, shard)[chunk].push_back(push(rank, via, chunks[chunk], options_.reduce, {}));
        }
    }

    void cross(std::int32_t rank, std::int32_t turn) {
        const std::int32_t owner = across(rank, turn);
        const std::vector<Region>& chunks = chunks_[index(owner)];
        for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
            summed(owner, owner)[chunk].push_back(
                push(rank, owner, chunks[chunk], options_.reduce, summed(rank, owner)[chunk]));
    }

    /// What a rank has summed of its own shard: to other nodes once, and inside each.
    void hand_out(std::int32_t rank) {
        for (std::size_t chunk = 0; chunk < chunks_[index(rank)].size(); ++chunk) {
            const Region& region = chunks_[index(rank)][chunk];
            const OpRefs& sum = summed(rank, rank)[chunk];
            for (std::int32_t turn = 1; turn <= nodes_; ++turn) {
                const std::int32_t at = across(rank, turn % nodes_);
                OpRefs there = sum;
                if (turn < nodes_) there = {push(rank, at, region, Reduce::none, sum)};
                for (std::int32_t offset = 1; offset < places_; ++offset)
                    push(at, beside(at, offset), region, Reduce::none, there);
            }
        }
    }

    const PushReduceOptions& options_;
    std::int32_t ranks_;
    std::int32_t nodes_;
    std::int32_t places_;                      ///< ranks of a node
    std::vector<std::vector<Region>> chunks_;  ///< by shard
    Plan plan_;
    std::vector<std::vector<std::vector<OpRefs>>> summed_;  ///< by rank, node of a shard's rank, and chunk
};

}  // namespace

Plan push_reduce_nodes(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options,
                       std::vector<std::vector<Region>> chunks) {
    return PushReduceNodes(mesh, tensor, options, std::move(chunks)).run();
}

}  // namespace syncopate::plan
