// Who writes what into each rank's memory: to say why something has not surely arrived.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/check/check_passes.hpp"
#include "plan/model/box_index.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {

inline constexpr std::int32_t kAtStart = -1;  ///< in place of an event: held before the first op, or produced

class Arrivals {
public:
    /// The arguments must outlive this, but for `key_axes`.
    Arrivals(const Plan& plan, const EventGraph& graph, const std::vector<std::size_t>& key_axes,
             Budget& budget)
        : num_tensors_(static_cast<std::int64_t>(plan.tensors.size())), axes_(key_axes), budget_(budget) {
        for (const Holding& holding : plan.initial) add(holding.rank, holding.chunk, kAtStart, Reduce::none);
        for (const Holding& holding : plan.produced) add(holding.rank, holding.chunk, kAtStart, Reduce::none);
        for (std::int32_t event = 0; event < graph.num_events(); ++event) {
            for (const OpRef ref : graph.members(event)) {
                const Op& op = plan.op(ref);
                const bool reduces = op.kind != OpKind::collective && op.reduce != Reduce::none;
                add(op.destination_rank(ref.rank), op.dst, event, reduces ? op.reduce : Reduce::none);
            }
        }
    }

    struct Writer {
        std::int32_t event;
        Reduce reduce;  ///< not none: it needs something to be there before
    };

    /// Calls visit(box, writer) for each write that overlaps the chunk in the rank's memory, until it returns
    /// false.
    template <typename Visit>
    void visit(std::int32_t rank, const Chunk& chunk, Visit visit) const {
        const auto memory = memories_.find(key(rank, chunk.tensor));
        if (memory == memories_.end()) return;
        memory->second.visit_overlapping(chunk.region, [&](const auto& entry) {
            return !budget_.exhausted() && visit(entry.box, entry.value);
        });
    }

private:
    std::int64_t key(std::int32_t rank, std::int32_t tensor) const { return rank * num_tensors_ + tensor; }

    void add(std::int32_t rank, const Chunk& chunk, std::int32_t event, Reduce reduce) {
        const std::size_t axis = axes_[at(chunk.tensor)];
        memories_.try_emplace(key(rank, chunk.tensor), axis, budget_)
            .first->second.insert(chunk.region, {event, reduce});
    }

    std::int64_t num_tensors_;
    std::vector<std::size_t> axes_;
    Budget& budget_;
    std::unordered_map<std::int64_t, BoxIndex<Writer>> memories_;
};

}  // namespace syncopate::plan
