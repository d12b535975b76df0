#include "syncopate/plan/templates/push_reduce.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/model/cut.hpp"
#include "plan/templates/push_reduce_nodes.hpp"
#include "plan/templates/push_request.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// Of each rank's shard its chunks; an empty shard has none.
std::vector<std::vector<Region>> chunks_of_shards(const Tensor& tensor, std::int32_t ranks, std::size_t axis,
                                                  std::size_t split_axis, std::int32_t split) {
    std::vector<std::vector<Region>> chunks;
    for (const Interval& shard : split_evenly(0, tensor.shape[axis], ranks)) {
        const Region whole = with_axis(tensor.whole(), axis, shard);
        std::vector<Region>& parts = chunks.emplace_back();
        if (shard.empty()) continue;
        for (const Interval& part : split_nonempty(whole[split_axis], split))
            parts.push_back(with_axis(whole, split_axis, part));
    }
    return chunks;
}

class PushReduce {
public:
    PushReduce(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options,
               std::vector<std::vector<Region>> chunks)
        : options_(options), ranks_(mesh.num_ranks()), chunks_(std::move(chunks)) {
        plan_.mesh = mesh;
        plan_.tensors = {tensor};
        plan_.ranks.resize(chunks_.size());
        for (const std::vector<Region>& of_shard : chunks_) {
            contributions_.emplace_back(of_shard.size());
            split_ = std::max(split_, of_shard.size());
        }
    }

    Plan run() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            declare(rank);
            if (options_.by_part) {
                add_by_part(rank);
            } else {
                add_by_shard(rank);
            }
        }
        for (const auto& [ref, chunk] : sends_) op_of(ref).after = contributions_[index(ref.rank)][chunk];
        return std::move(plan_);
    }

private:
    static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
    Op& op_of(OpRef ref) { return plan_.ranks[index(ref.rank)][index(ref.index)]; }

    /// What the rank makes, and what it has at the end.
    void declare(std::int32_t rank) {
        const std::vector<Region>& own = chunks_[index(rank)];
        const Region whole = plan_.tensors.front().whole();
        plan_.produced.push_back({.rank = rank, .chunk = {0, whole}, .partial = true});
        if (!options_.all && own.empty()) return;
        const Region kept = options_.all ? whole : bounding_box(own.front(), own.back());
        plan_.final.push_back({.rank = rank, .chunk = {0, kept}, .of_all = true});
    }

    /// A chunk is summed when the contributions to the next one leave, and goes on after them.
    void add_by_part(std::int32_t rank) {
        for (std::size_t part = 0; part < split_; ++part) {
            for (std::int32_t offset = 1; offset < ranks_; ++offset) contribute(rank, offset, part);
            if (part > 0) send_on(rank, part - 1);
        }
        send_on(rank, split_ - 1);
    }

    void add_by_shard(std::int32_t rank) {
        for (std::int32_t offset = 1; offset < ranks_; ++offset) {
            for (std::size_t chunk = 0; chunk < split_; ++chunk) contribute(rank, offset, chunk);
        }
        for (std::size_t chunk = 0; chunk < split_; ++chunk) send_on(rank, chunk);
    }

    /// The contribution of this rank to the shard of the rank `offset` behind it; with pull of that one to its own.
    void contribute(std::int32_t rank, std::int32_t offset, std::size_t chunk) {
        const bool pull = options_.pull;
        const std::int32_t peer = (rank + offset) % ranks_;
        const std::size_t owner = index(pull ? rank : peer);
        if (chunk >= chunks_[owner].size()) return;
        contributions_[owner][chunk].push_back(next(rank));
        Op& op = plan_.ranks[index(rank)].emplace_back();
        op.kind = pull ? OpKind::pull : OpKind::push;
        op.peer = peer;
        op.src = op.dst = {0, chunks_[owner][chunk]};
        op.reduce = options_.reduce;
        const auto distance = static_cast<std::size_t>(offset - 1);
        if (distance < options_.backends.size()) op.backend = options_.backends[distance];
    }

    /// Sends a chunk of the rank's own shard to all others, once it is summed.
    void send_on(std::int32_t rank, std::size_t chunk) {
        const std::vector<Region>& own = chunks_[index(rank)];
        if (!options_.all || chunk >= own.size()) return;
        for (std::int32_t offset = 1; offset < ranks_; ++offset) {
            sends_.push_back({next(rank), chunk});
            Op& op = plan_.ranks[index(rank)].emplace_back();
            op.kind = OpKind::push;
            op.peer = (rank + offset) % ranks_;
            op.src = op.dst = {0, own[chunk]};
        }
    }

    [[nodiscard]] OpRef next(std::int32_t rank) const {
        return {rank, static_cast<std::int32_t>(plan_.ranks[index(rank)].size())};
    }

    const PushReduceOptions& options_;
    std::int32_t ranks_;
    std::vector<std::vector<Region>> chunks_;  ///< by shard
    std::size_t split_ = 0;                    ///< the most chunks of a shard
    Plan plan_;
    std::vector<std::vector<std::vector<OpRef>>> contributions_;  ///< by shard and chunk
    std::vector<std::pair<OpRef, std::size_t>> sends_;            ///< of which chunk of its rank's shard
};

}  // namespace

Result<Plan> push_reduce(const Mesh& mesh, const Tensor& tensor, const PushReduceOptions& options) {
    const std::int32_t split_axis = options.split_axis.value_or(options.axis);
    SYNCOPATE_TRY(judge_push(mesh, tensor, options.axis, split_axis, options.split));
    if (options.reduce == Reduce::none) return usage_error("a reduction is sum or max");
    std::vector<std::vector<Region>> chunks =
        chunks_of_shards(tensor, mesh.num_ranks(), static_cast<std::size_t>(options.axis),
                         static_cast<std::size_t>(split_axis), options.split);
    if (mesh.num_nodes() == 1) return PushReduce(mesh, tensor, options, std::move(chunks)).run();
    const bool open =
        std::ranges::all_of(options.backends, [](Backend backend) { return backend == Backend::automatic; });
    if (options.pull || !open)
        return usage_error("over several nodes contributions are pushed, and none has a backend of its own");
    return push_reduce_nodes(mesh, tensor, options, std::move(chunks));
}

Result<Plan> push_reduce_to_all(const Mesh& mesh, const Tensor& from, const std::string& to,
                                const PushReduceToAllOptions& options) {
    SYNCOPATE_TRY(judge_push(mesh, from, 0, options.split_axis, options.split));
    if (options.reduce == Reduce::none) return usage_error("a reduction is sum or max");
    const std::int32_t ranks = mesh.num_ranks();
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {from, {to, from.shape, from.dtype}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    const auto axis = static_cast<std::size_t>(options.split_axis);
    const std::int64_t rows = options.rows.value_or(from.shape[0]);
    if (rows < 0 || rows > from.shape[0])
        return usage_error(
            fmt::format("{} rows of tensor {} are asked for, which has {}", rows, from.name, from.shape[0]));
    const std::vector<Interval> shares = split_evenly(0, rows, ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        plan.produced.push_back({.rank = rank, .chunk = {0, from.whole()}, .partial = true});
        const Interval share = options.all ? Interval{0, rows} : shares[at(rank)];
        const Region kept = with_axis(from.whole(), 0, share);
        if (!share.empty()) plan.final.push_back({.rank = rank, .chunk = {1, kept}, .of_all = true});
        std::vector<Op>& list = plan.ranks[at(rank)];
        for (const Interval& part : split_nonempty(from.whole()[axis], options.split)) {
            const Region chunk = with_axis(from.whole(), axis, part);
            const auto own = static_cast<std::int32_t>(list.size());  // at all ranks alike
            for (std::int32_t offset = 0; offset < ranks; ++offset) {
                Op& op = list.emplace_back();
                op.kind = offset == 0 ? OpKind::local : OpKind::push;
                op.peer = (rank + offset) % ranks;
                op.src = {0, chunk};
                op.dst = {1, chunk};
                if (offset == 0) continue;
                op.reduce = options.reduce;
                op.after = {{op.peer, own}};
            }
        }
    }
    return plan;
}

}  // namespace syncopate::plan
