#include "syncopate/plan/templates/push_groups.hpp"

#include <optional>
#include <utility>
#include <vector>

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
    const auto known = [](const std::optional<Tensor>& one) { return one ? &*one : nullptr; };
    for (const Tensor* one : {&rows, known(options.more), known(options.back)}) {
        if (one == nullptr) continue;
        if (one->shape.size() != 2 || one->shape[0] < 1 || one->shape[0] != rows.shape[0])
            return usage_error(
                fmt::format("tensor {}: expected [bound, columns], with one bound", one->name));
    }
    Plan plan;
    plan.mesh = mesh;
    plan.tensors = {grouped(rows, ranks, experts), {options.counts, {ranks, experts}, DType::int32}};
    std::vector<std::int32_t> brought{0};
    const auto add = [&](const Tensor& one) {
        plan.tensors.push_back(grouped(one, ranks, experts));
        return static_cast<std::int32_t>(plan.tensors.size()) - 1;
    };
    if (options.more) brought.push_back(add(*options.more));
    const std::int32_t back = options.back ? add(*options.back) : -1;
    const auto chunk = [&](std::int32_t tensor, Interval sources, Interval of) {
        return Chunk{tensor, {sources, of, {0, plan.tensors[at(tensor)].shape[2]}}};
    };
    plan.ranks.resize(at(ranks));
    for (std::int32_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        const Interval self{rank, rank + 1}, mine{rank * own, (rank + 1) * own}, all{0, experts};
        const auto push = [&](std::int32_t peer, Chunk moved) {
            Op& op = plan.ranks[at(rank)].emplace_back();
            op.kind = OpKind::push;
            op.peer = peer;
            op.src = op.dst = std::move(moved);
        };
        for (const std::int32_t tensor : brought) {
            plan.initial.push_back({rank, chunk(tensor, self, all)});
            if (options.keep) plan.final.push_back({rank, chunk(tensor, {0, ranks}, mine)});
            for (std::int32_t step = 1; step < mesh.num_ranks(); ++step) {
                const std::int32_t peer = (rank + step) % mesh.num_ranks();
                push(peer, chunk(tensor, self, {peer * own, (peer + 1) * own}));
            }
        }
        plan.initial.push_back({rank, {1, {self, all}}});
        if (back < 0) continue;
        plan.produced.push_back({rank, chunk(back, {0, ranks}, mine)});
        plan.final.push_back({rank, chunk(back, self, all)});
        for (std::int32_t step = 1; step < mesh.num_ranks(); ++step) {
            const std::int32_t peer = (rank + step) % mesh.num_ranks();
            push(peer, chunk(back, {peer, peer + 1}, mine));
        }
    }
    return plan;
}

}  // namespace syncopate::plan
