#include "syncopate/plan/templates/push_groups.hpp"

#include <utility>

#include <fmt/format.h>

#include "plan/templates/push_request.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// `given`, whose rows come in groups.
Tensor grouped(const Tensor& given, std::int64_t ranks, std::int64_t experts) {
    const std::int64_t bound = given.shape[0];
    return {given.name,
            {ranks, experts, given.shape[1]},
            given.dtype,
            Ragged{0, {"rows_from_rank", "expert"}, bound, bound}};
}

}  // namespace

Result<Plan> push_groups(const Mesh& mesh, const Tensor& rows, const PushGroupsOptions& options) {
    SYNCOPATE_TRY(judge_push(mesh, rows, 0, 0, 1));
    const std::int64_t ranks = mesh.num_ranks(), experts = options.experts, own = experts / ranks;
    if (experts < 1 || experts % ranks != 0)
        return usage_error(fmt::format("{} experts are no multiple of {} ranks", experts, ranks));
    for (const Tensor* one : {&rows, options.back ? &*options.back : nullptr}) {
        if (one == nullptr) continue;
        if (one->shape.size() != 2 || one->shape[0] < 1 || one->shape[0] != rows.shape[0])
            return usage_error(
                fmt::format("tensor {}: expected [bound, columns], with one bound", one->name));
    }
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {grouped(rows, ranks, experts), {options.counts, {ranks, experts}, DType::int32}};
    if (options.back) plan.tensors.push_back(grouped(*options.back, ranks, experts));
    const auto chunk = [&](std::int32_t tensor, Interval sources, Interval of) {
        return Chunk{tensor, {sources, of, {0, plan.tensors[at(tensor)].shape[2]}}};
    };
    plan.ranks.resize(at(ranks));
    for (std::int32_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        const Interval self{rank, rank + 1}, mine{rank * own, (rank + 1) * own}, all{0, experts};
        plan.initial.push_back({rank, chunk(0, self, all)});
        plan.initial.push_back({rank, {1, {self, all}}});
        if (options.back) {
            plan.produced.push_back({rank, chunk(2, {0, ranks}, mine)});
            plan.final.push_back({rank, chunk(2, self, all)});
        }
        const auto push = [&](std::int32_t peer, Chunk moved) {
            Op& op = plan.ranks[at(rank)].emplace_back();
            op.kind = OpKind::push;
            op.peer = peer;
            op.src = op.dst = std::move(moved);
        };
        for (const std::int32_t tensor : {0, 2}) {
            for (std::int32_t step = 1; step < mesh.num_ranks() && (tensor == 0 || options.back); ++step) {
                const std::int32_t peer = (rank + step) % mesh.num_ranks();
                push(peer, tensor == 0 ? chunk(0, self, {peer * own, (peer + 1) * own})
                                       : chunk(2, {peer, peer + 1}, mine));
            }
        }
    }
    return plan;
}

}  // namespace syncopate::plan
