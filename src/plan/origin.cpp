#include "origin.hpp"

#include "check_passes.hpp"

namespace syncopate::plan {
namespace {

/// The lowest rank with a box that overlaps `region`; -1: none.
std::int32_t first_at(const BoxIndex<std::int32_t>& index, const Region& region) {
    std::int32_t found = -1;
    index.visit_overlapping(region, [&](const auto& entry) {
        found = entry.value;
        return false;
    });
    return found;
}

}  // namespace

Origins::Origins(const Plan& plan) : plan_(plan), contributed_(plan.tensors.size(), 0) {
    const std::vector<std::size_t> axes = key_axes(plan);
    for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
        held_.emplace_back(axes[tensor]);
        wanted_.emplace_back(axes[tensor]);
    }
    for (const auto* holdings : {&plan.initial, &plan.produced}) {
        for (const Holding& holding : *holdings) {
            const auto tensor = static_cast<std::size_t>(holding.chunk.tensor);
            if (is_empty(holding.chunk.region)) continue;
            if (holding.partial) {
                contributed_[tensor] = 1;
            } else {
                held_[tensor].insert(holding.chunk.region, holding.rank);
            }
        }
    }
    for (const Holding& holding : plan.final) {
        const auto tensor = static_cast<std::size_t>(holding.chunk.tensor);
        if (contributed_[tensor] != 0 && !is_empty(holding.chunk.region))
            wanted_[tensor].insert(holding.chunk.region, holding.rank);
    }
}

std::int32_t Origins::of(OpRef ref) const {
    const Op& op = plan_.op(ref);
    const auto tensor = static_cast<std::size_t>(op.src.tensor);
    const std::int32_t holder = first_at(held_[tensor], op.src.region);
    if (holder >= 0) return holder;
    const std::int32_t wanter = contributed_[tensor] != 0 ? first_at(wanted_[tensor], op.src.region) : -1;
    return wanter >= 0 ? wanter : op.source_rank(ref.rank);
}

}  // namespace syncopate::plan
