#include "syncopate/plan/templates/push_exchange.hpp"

#include <utility>

#include <fmt/format.h>

#include "plan/model/cut.hpp"
#include "plan/templates/push_exchange_nodes.hpp"
#include "plan/templates/push_request.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {

Result<Plan> push_exchange(const Mesh& mesh, const Tensor& from, const std::string& to,
                           const PushExchangeOptions& options) {
    SYNCOPATE_TRY(judge_push(mesh, from, 0, 0, options.split));
    const std::int32_t ranks = mesh.num_ranks();
    if (from.shape[0] % ranks != 0) {
        return usage_error(fmt::format("the first axis of tensor {}, {}, is no multiple of {} ranks",
                                       from.name, from.shape[0], ranks));
    }
    if ((options.transient || options.for_kernel) && options.produced)
        return usage_error("transient is for what is held initially and the kernel reads");
    const Cut cut{0, options.split, options.minor_axis, options.minor_split, options.minor_sizes};
    SYNCOPATE_TRY(judge(cut, from));
    const std::int64_t block = from.shape[0] / ranks;
    const auto block_of = [&](std::int32_t rank) {
        return with_axis(from.whole(), 0, {rank * block, (rank + 1) * block});
    };
    const std::int32_t slices = cut.minor_axis < 0 ? 1 : cut.num_slices(from.shape[at(cut.minor_axis)]);
    if (cut.num_chunks(block_of(0)) > kMaxOps / ranks / ranks)
        return usage_error(fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps));
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {from, {to, from.shape, from.dtype}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        (options.produced ? plan.produced : plan.initial)
            .push_back({.rank = rank, .chunk = {0, from.whole()}, .partial = true});
        const bool kept = !options.transient && !options.for_kernel;
        for (std::int32_t source = 0; source < ranks && kept; ++source)
            plan.final.push_back({.rank = rank, .chunk = {1, block_of(source)}, .of = {source}});
    }
    if (mesh.num_nodes() > 1 && mesh.ranks_of_node() > 1 && !options.transient) {
        push_exchange_nodes(plan, options, cut);
        return plan;
    }
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        std::vector<Op>& list = plan.ranks[at(rank)];
        const auto exchange = [&](std::int32_t peer, const Cut& by, std::int32_t slice) {
            const std::int32_t to_rank = options.transient ? rank : peer;
            const std::int32_t of_rank = options.transient ? peer : rank;
            const std::vector<Chunk> sources = by.chunks({0, block_of(to_rank)}, slice);
            const std::vector<Chunk> destinations = by.chunks({1, block_of(of_rank)}, slice);
            for (std::size_t part = 0; part < sources.size(); ++part) {
                Op& op = list.emplace_back();
                const OpKind moves = options.transient ? OpKind::pull : OpKind::push;
                op.kind = peer == rank ? OpKind::local : moves;
                op.peer = peer == rank ? -1 : peer;
                op.src = sources[part];
                op.dst = destinations[part];
            }
        };
        const auto exchange_own = [&] { exchange(rank, {0, options.split}, 0); };
        // The own block is made last, as it leaves for nowhere; of what is held it is used first.
        if (!options.produced) exchange_own();
        const std::int32_t peers = ranks - 1;
        for (std::int32_t step = 0; step < peers * slices; ++step) {
            const std::int32_t offset = 1 + (options.peer_by_peer ? step / slices : step % peers);
            exchange((rank + offset) % ranks, cut, options.peer_by_peer ? step % slices : step / peers);
        }
        if (options.produced) exchange_own();
    }
    return plan;
}

}  // namespace syncopate::plan
