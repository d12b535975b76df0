#include "plan/draw/origin.hpp"

#include <set>

#include "plan/check/check_passes.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// Rank, tensor and region as one key.
std::vector<std::int64_t> place(std::int32_t rank, const Chunk& chunk) {
    std::vector<std::int64_t> key{rank, chunk.tensor};
    for (const Interval& axis : chunk.region) key.insert(key.end(), {axis.begin, axis.end});
    return key;
}

/// The rank of some a box that overlaps `region`; -1: none.
std::int32_t first_at(const BoxIndex<std::int32_t>& index, const Region& region) {
    std::int32_t found = -1;
    index.visit_overlapping(region, [&](const auto& entry) {
        found = entry.value;
        return false;
    });
    return found;
}

}  // namespace

Origins::Origins(const Plan& plan) : plan_(plan) {
    const std::vector<std::size_t> axes = key_axes(plan);
    for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) {
        held_.emplace_back(axes[tensor]);
        sums_.emplace_back(axes[tensor]);
    }
    for (const auto* holdings : {&plan.initial, &plan.produced}) {
        for (const Holding& holding : *holdings) {
            if (holding.partial || is_empty(holding.chunk.region)) continue;
            held_[at(holding.chunk.tensor)].insert(holding.chunk.region, holding.rank);
        }
    }
    std::set<std::vector<std::int64_t>> passed_on;  // rank, tensor and region of reducing ops' sources
    for (const bool sources : {true, false}) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            for (const Op& op : plan.ranks[at(rank)]) {
                if (op.reduce == Reduce::none || op.kind == OpKind::collective || is_empty(op.dst.region))
                    continue;
                if (sources) {
                    passed_on.insert(place(op.source_rank(rank), op.src));
                } else if (passed_on.insert(place(op.destination_rank(rank), op.dst)).second) {
                    sums_[at(op.dst.tensor)].insert(op.dst.region, op.destination_rank(rank));
                }
            }
        }
    }
}

std::int32_t Origins::of(OpRef ref) const {
    const Op& op = plan_.op(ref);
    const auto tensor = static_cast<std::size_t>(op.src.tensor);
    const std::int32_t holder = first_at(held_[tensor], op.src.region);
    if (holder >= 0) return holder;
    const std::int32_t sum = first_at(sums_[tensor], op.src.region);
    return sum >= 0 ? sum : op.source_rank(ref.rank);
}

}  // namespace syncopate::plan
