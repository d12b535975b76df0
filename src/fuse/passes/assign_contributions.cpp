// What contributions imply: which are staged, which their sum reads where they are, and what it goes by. assign.hpp
// declares it.
#include <algorithm>
#include <iterator>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/strided.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/lower.hpp"

namespace syncopate::fuse {
namespace {

/// Whether the two boxes have the same extents in tensors of the same shape.
bool lie_alike(const plan::Plan& plan, const plan::Chunk& a, const plan::Chunk& b) {
    return plan.tensors[at(a.tensor)].shape == plan.tensors[at(b.tensor)].shape &&
           std::ranges::equal(a.region, b.region, {}, &plan::Interval::size, &plan::Interval::size);
}

}  // namespace

Backends backends_named(const plan::Plan& plan) {
    Backends named;
    named.reserve(plan.ranks.size());
    for (const std::vector<plan::Op>& list : plan.ranks) {
        std::vector<plan::Backend>& of_rank = named.emplace_back();
        of_rank.reserve(list.size());
        for (const plan::Op& op : list) of_rank.push_back(op.backend);
    }
    return named;
}

Contributions assign_contributions(const plan::Plan& plan, std::int32_t rank, const plan::Chunk& chunk,
                                   const std::vector<plan::OpRef>& contributions, plan::Backend preferred) {
    const auto backend_of = [&](plan::OpRef ref) {
        const plan::Backend named = plan.op(ref).backend;
        return named == plan::Backend::automatic ? preferred : named;
    };
    Contributions result;
    const plan::Backend first = backend_of(contributions.front());
    const auto is_near = [&](plan::OpRef ref) {
        const plan::Op& op = plan.op(ref);
        return plan.mesh.node_of(op.source_rank(ref.rank)) == plan.mesh.node_of(rank);
    };
    const bool by_engine = std::ranges::all_of(contributions, [&](plan::OpRef ref) {
        return is_near(ref) && is_engine(backend_of(ref)) &&
               engine_objection(plan, plan.op(ref).src, chunk, first).empty();
    });
    if (by_engine) result.engine = first;

    // Pulls of the destination's rank, from boxes that lie in memory alike, and as staged ones do.
    std::vector<plan::OpRef> pulls;
    std::ranges::copy_if(contributions, std::back_inserter(pulls), [&](plan::OpRef ref) {
        return plan.op(ref).kind == plan::OpKind::pull && ref.rank == rank && is_near(ref) &&
               (by_engine || backend_of(ref) == plan::Backend::ldst_inline);
    });
    const bool all = pulls.size() == contributions.size();
    if (by_engine ? !all : contributions.size() > kMostSumSources) return result;
    const plan::Chunk& like = all ? plan.op(contributions.front()).src : chunk;
    std::erase_if(pulls, [&](plan::OpRef ref) { return !lie_alike(plan, plan.op(ref).src, like); });
    if (!all || pulls.size() == contributions.size()) result.direct = std::move(pulls);
    return result;
}

Backends name_implied(const Lowered& lowered, bool kernel_sums) {
    const plan::Plan& plan = lowered.plan;
    Backends named = backends_named(plan);
    const auto backend_of = [&](plan::OpRef ref) -> plan::Backend& {
        return named[at(ref.rank)][at(ref.index)];
    };
    for (const auto& [ref, side] : lowered.channel) backend_of(ref) = plan::Backend::channel;
    for (const auto& [sum, own] : lowered.own) {
        if (kernel_sums) backend_of(sum) = plan::Backend::ldst_inline;
        const auto engine = lowered.engine.find(sum);
        if (engine != lowered.engine.end() &&
            engine_objection(plan, plan.op(sum).src, plan.op(sum).dst, engine->second).empty())
            backend_of(sum) = engine->second;
    }
    for (const auto& [pull, sum] : lowered.done_with) {
        const auto engine = lowered.engine.find(sum);
        backend_of(pull) = engine == lowered.engine.end() ? plan::Backend::automatic : engine->second;
    }
    return named;
}

}  // namespace syncopate::fuse
