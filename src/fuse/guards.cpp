#include "syncopate/fuse/guards.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace syncopate::fuse {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;  ///< from, to

/// Ops that touch one rank's memory.
struct Touching {
    std::vector<std::int32_t> reading;
    std::vector<std::int32_t> writing;
};

}  // namespace

Guards guard(const plan::Plan& plan, const Precedence& precedence, const Dependence& dependence,
             const Synchronization& synchronization) {
    const std::int32_t num_ranks = plan.num_ranks();
    const auto op_of = [&](std::int32_t id) -> const plan::Op& { return plan.op(precedence.ops[id]); };
    const auto executor_of = [&](std::int32_t id) { return precedence.ops[id].rank; };

    std::vector<Touching> touching(num_ranks);
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        touching[op_of(id).source_rank(executor_of(id))].reading.push_back(id);
        touching[op_of(id).destination_rank(executor_of(id))].writing.push_back(id);
    }
    std::vector<std::vector<const plan::Chunk*>> initial(num_ranks);
    for (const plan::Holding& holding : plan.initial) initial[holding.rank].push_back(&holding.chunk);
    const auto holds_initially = [&](std::int32_t rank, const plan::Chunk& chunk) {
        return std::any_of(initial[rank].begin(), initial[rank].end(),
                           [&](const plan::Chunk* held) { return overlaps(*held, chunk); });
    };
    std::vector<std::vector<const plan::Chunk*>> final(num_ranks);
    for (const plan::Holding& holding : plan.final) final[holding.rank].push_back(&holding.chunk);
    std::vector<std::set<std::int32_t>> read_by_kernel(num_ranks);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        for (const std::vector<Need>& needs : dependence.needs[rank]) {
            for (const Need& need : needs) read_by_kernel[rank].insert(need.op);
        }
    }

    std::set<Pair> ready;
    std::map<Pair, bool> consumed;  // at_end
    Guards guards;
    guards.end_ops.resize(num_ranks);
    std::vector<std::vector<std::int32_t>> executed(num_ranks);
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) executed[executor_of(id)].push_back(id);

    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        const std::int32_t executor = executor_of(id);
        const plan::Op& op = op_of(id);
        const std::int32_t source = op.source_rank(executor);
        const std::int32_t destination = op.destination_rank(executor);
        if (source != executor && holds_initially(source, op.src)) ready.insert({source, executor});
        if (destination == executor) continue;
        if (holds_initially(destination, op.dst)) ready.insert({destination, executor});
        // What the call leaves there is the user's until the next call.
        if (!read_by_kernel[destination].contains(id) &&
            std::any_of(final[destination].begin(), final[destination].end(),
                        [&](const plan::Chunk* left) { return overlaps(*left, op.dst); })) {
            ready.insert({destination, executor});
        }
        const Touching& there = touching[destination];
        const bool read_by_op =
            std::any_of(there.reading.begin(), there.reading.end(),
                        [&](std::int32_t other) { return overlaps(op_of(other).src, op.dst); });
        const bool written_by_other =
            std::any_of(there.writing.begin(), there.writing.end(), [&](std::int32_t other) {
                return executor_of(other) != executor && overlaps(op_of(other).dst, op.dst);
            });
        const bool at_end = read_by_op || written_by_other || !read_by_kernel[destination].contains(id);
        consumed[{destination, executor}] |= at_end;
    }
    for (const Pair& pair : ready) guards.ready.push_back({pair.first, pair.second, false});
    for (const auto& [pair, at_end] : consumed) {
        if (!ready.contains(pair)) guards.consumed.push_back({pair.first, pair.second, at_end});
    }

    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        std::vector<std::int32_t> seen = synchronization.seen_by_kernel[rank];
        seen.insert(seen.end(), executed[rank].begin(), executed[rank].end());
        const std::vector<bool> completed = completed_with(precedence, seen);
        std::vector<std::int32_t> open;
        for (const auto* ids : {&touching[rank].reading, &touching[rank].writing}) {
            for (const std::int32_t id : *ids) {
                if (!completed[id]) open.push_back(id);
            }
        }
        guards.end_ops[rank] = last_of(precedence, std::move(open));
        // What one rank's tiles fetch here they have all fetched when its kernel ends.
        std::set<std::int32_t> fetching;
        std::erase_if(guards.end_ops[rank], [&](std::int32_t id) {
            return precedence.fetched[id] && !fetching.insert(executor_of(id)).second;
        });
    }
    return guards;
}

}  // namespace syncopate::fuse
