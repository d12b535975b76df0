#include "syncopate/fuse/inline/sum_stores.hpp"

#include <algorithm>
#include <map>

#include "syncopate/at.hpp"

namespace syncopate::fuse {

bool follows_sums(const plan::Plan& lowered, plan::OpRef ref) {
    const plan::Op& op = lowered.op(ref);
    return !op.after.empty() && std::ranges::all_of(op.after, [&](plan::OpRef before) {
        return before.rank == ref.rank && is_sum(lowered.op(before));
    });
}

std::string sum_store_objection(const plan::Plan& lowered, plan::OpRef ref) {
    const plan::Op& op = lowered.op(ref);
    const std::string can = "ldst_inline lets a sum store what it makes at peers: ";
    if (op.kind != plan::OpKind::push || op.reduce != plan::Reduce::none || !follows_sums(lowered, ref))
        return can + "this op is no push of a sum";
    if (op.after.size() > 1)
        return can + "this op sends what " + std::to_string(op.after.size()) + " sums make";
    const plan::Op& sum = lowered.op(op.after.front());
    if (op.src.tensor != sum.dst.tensor || op.src.region != sum.dst.region)
        return can + "this op sends " + to_string(op.src.region) + ", the sum is " +
               to_string(sum.dst.region);
    if (op.dst.tensor != op.src.tensor || op.dst.region != op.src.region)
        return can + "to the same place, not from " + to_string(op.src.region) + " to " +
               to_string(op.dst.region);
    return {};
}

Status check_sum_stores(const plan::Plan& lowered, const Backends& backends) {
    std::map<plan::OpRef, std::int32_t> stores;  // by sum
    for (std::int32_t rank = 0; rank < lowered.num_ranks(); ++rank) {
        const auto& chosen = backends[at(rank)];
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(chosen.size()); ++index) {
            const plan::OpRef ref{rank, index};
            if (!is_inline(chosen[at(index)]) || !follows_sums(lowered, ref)) continue;
            if (++stores[lowered.op(ref).after.front()] <= kMostSumStores) continue;
            return error_at(ref, "ldst_inline: one sum stores its result at no more than " +
                                     std::to_string(kMostSumStores) + " peers: send it by copy_engine");
        }
    }
    return Done{};
}

}  // namespace syncopate::fuse
