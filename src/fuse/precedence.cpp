#include "syncopate/fuse/precedence.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "syncopate/fuse/inline_reads.hpp"
#include "syncopate/fuse/sum_stores.hpp"
#include "syncopate/plan/model/chunk_key.hpp"

namespace syncopate::fuse {
namespace {

using Edges = std::vector<std::vector<std::int32_t>>;

/// A topological order as positions, taking ops of small index first; shorter than `before` if there is a
/// cycle.
std::vector<std::int32_t> sort_topologically(const Edges& before, const std::vector<plan::OpRef>& ops) {
    const std::size_t count = before.size();
    Edges successors(count);
    std::vector<std::int32_t> open(count, 0);
    for (std::size_t id = 0; id < count; ++id) {
        open[id] = static_cast<std::int32_t>(before[id].size());
        for (const std::int32_t other : before[id])
            successors[other].push_back(static_cast<std::int32_t>(id));
    }
    using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // index, rank, id
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
    const auto push = [&](std::int32_t id) { ready.emplace(ops[id].index, ops[id].rank, id); };
    for (std::size_t id = 0; id < count; ++id) {
        if (open[id] == 0) push(static_cast<std::int32_t>(id));
    }
    std::vector<std::int32_t> sorted;
    sorted.reserve(count);
    while (!ready.empty()) {
        const std::int32_t id = std::get<2>(ready.top());
        ready.pop();
        sorted.push_back(id);
        for (const std::int32_t successor : successors[id]) {
            if (--open[successor] == 0) push(successor);
        }
    }
    return sorted;
}

/// `after`, and an edge between neighbours in each rank's start order.
Edges one_after_another(const Precedence& precedence) {
    Edges edges = precedence.after;
    for (const std::vector<std::int32_t>& order : precedence.start_order) {
        for (std::size_t at = 1; at < order.size(); ++at) edges[order[at]].push_back(order[at - 1]);
    }
    return edges;
}

// Larger chunks lose more by sharing the link than starting them costs: two streams are 1.35 times faster
// with 8 MiB, equal with 16, and 0.85 times as fast with 24 (bench/results/copy_engine_4xH200_…).
constexpr std::int64_t kMostBytesOfTwoStreams = std::int64_t{16} << 20;

/// Which copy streams the pushes of one rank go by, in the order `ids`: of the small chunks that its kernel
/// makes every other one by the second, of the sums each peer's by another.
void choose_copy_streams(const plan::Plan& plan, const Backends& backends, Precedence& precedence,
                         const std::vector<std::int32_t>& ids) {
    std::vector<const plan::Chunk*> summed;
    for (const std::int32_t id : ids) {
        const plan::Op& op = plan.op(precedence.ops[id]);
        if (is_sum(op)) summed.push_back(&op.dst);
    }
    std::map<plan::ChunkKey, std::int32_t> stream_of;  // by source
    for (const std::int32_t id : ids) {
        const plan::OpRef ref = precedence.ops[id];
        const plan::Op& op = plan.op(ref);
        if (op.kind != plan::OpKind::push || op.reduce != plan::Reduce::none ||
            backends[ref.rank][ref.index] != plan::Backend::copy_engine)
            continue;
        if (std::ranges::any_of(summed, [&](const plan::Chunk* sum) {
                return sum->tensor == op.src.tensor && overlaps(sum->region, op.src.region);
            })) {
            const std::int32_t distance = (op.peer - ref.rank + plan.num_ranks()) % plan.num_ranks();
            precedence.copy_stream[id] = 2 + (distance - 1) % kSummedStreams;
            continue;
        }
        if (plan.bytes(op.dst) > kMostBytesOfTwoStreams) continue;
        const bool made =
            std::any_of(plan.produced.begin(), plan.produced.end(), [&](const plan::Holding& held) {
                return held.rank == ref.rank && held.chunk.tensor == op.src.tensor &&
                       overlaps(held.chunk.region, op.src.region);
            });
        if (!made) continue;
        const auto next = static_cast<std::int32_t>(stream_of.size() % 2);
        precedence.copy_stream[id] = stream_of.try_emplace(key_of(op.src), next).first->second;
    }
}

}  // namespace

Result<Precedence> precede(const plan::Plan& plan, const Backends& backends,
                           const std::map<plan::OpRef, plan::OpRef>& done_with) {
    Precedence result;
    result.first_id.push_back(0);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto count = static_cast<std::int32_t>(plan.ranks[rank].size());
        for (std::int32_t index = 0; index < count; ++index) result.ops.push_back({rank, index});
        result.first_id.push_back(result.first_id.back() + count);
    }
    result.after.resize(result.ops.size());
    for (std::int32_t id = 0; id < result.num_ops(); ++id) {
        for (const plan::OpRef& ref : plan.op(result.ops[id]).after)
            result.after[id].push_back(result.id(ref));
        std::sort(result.after[id].begin(), result.after[id].end());
        result.after[id].erase(std::unique(result.after[id].begin(), result.after[id].end()),
                               result.after[id].end());
    }

    result.start_order.resize(plan.ranks.size());
    for (std::int32_t id = 0; id < result.num_ops(); ++id)
        result.start_order[result.ops[id].rank].push_back(id);
    result.sorted = sort_topologically(one_after_another(result), result.ops);
    if (result.sorted.size() < result.ops.size()) {  // the lists' own order would block
        result.sorted = sort_topologically(result.after, result.ops);
        if (result.sorted.size() < result.ops.size()) {
            return Error{"ops wait for each other in a circle: `syncopate plan check` prints it"};
        }
        for (auto& order : result.start_order) order.clear();
        for (const std::int32_t id : result.sorted) result.start_order[result.ops[id].rank].push_back(id);
    }
    result.before = result.after;
    result.stream_previous.assign(result.ops.size(), -1);
    result.started_before.assign(result.ops.size(), -1);
    result.copy_stream.assign(result.ops.size(), 0);
    for (const plan::OpRef ref : result.ops)
        result.fetched.push_back(is_inline(backends[ref.rank][ref.index]) && is_fetched(plan, ref));
    for (const std::vector<std::int32_t>& order : result.start_order) {
        choose_copy_streams(plan, backends, result, order);
        std::map<std::pair<plan::Backend, bool>, std::int32_t> last;  // by backend
        std::int32_t last_sent = -1;                                  // of what follows no sum, by anything
        std::map<std::tuple<plan::Backend, bool, std::int32_t>, std::int32_t> last_in_lane;
        for (const std::int32_t id : order) {
            const plan::OpRef ref = result.ops[id];
            const plan::Backend backend = backends[ref.rank][ref.index];
            const bool sent = !is_sum(plan.op(ref)) && !follows_sums(plan, ref);
            const std::int32_t before = sent ? std::exchange(last_sent, id) : -1;
            if (is_inline(backend)) {
                // By tiles, in no order, but best in the list's (order.cpp): else the tiles of all ranks
                // would begin with the same peer, or before those of chunks that take longer on their way; or
                // by a sum.
                result.started_before[id] = before;
                continue;
            }
            const bool engine = lane_of(backend) == plan::Backend::tma_dedicated;
            const bool collective = plan.op(ref).kind == plan::OpKind::collective;
            const bool sums = plan.op(ref).reduce != plan::Reduce::none && !engine && !collective;
            const plan::Backend lane = collective ? plan::Backend::nccl : lane_of(backend);
            if (const auto [found, first] = last.try_emplace({lane, sums}, id); !first)
                result.started_before[id] = std::exchange(found->second, id);
            if ((backend == plan::Backend::host && !collective) || engine || done_with.contains(ref))
                continue;  // begin one before another has ended
            const auto [found, first] = last_in_lane.try_emplace({lane, sums, result.copy_stream[id]}, id);
            if (first) continue;
            result.stream_previous[id] = std::exchange(found->second, id);
            result.before[id].push_back(result.stream_previous[id]);
        }
    }
    result.position.resize(result.ops.size());
    for (std::size_t at = 0; at < result.sorted.size(); ++at)
        result.position[result.sorted[at]] = static_cast<std::int32_t>(at);
    return result;
}

std::vector<bool> completed_with(const Precedence& precedence, const std::vector<std::int32_t>& ids) {
    std::vector<bool> completed(precedence.ops.size(), false);
    std::vector<std::int32_t> open;
    const auto visit = [&](std::int32_t id) {
        if (!completed[id]) {
            completed[id] = true;
            open.push_back(id);
        }
    };
    for (const std::int32_t id : ids) visit(id);
    while (!open.empty()) {
        const std::int32_t id = open.back();
        open.pop_back();
        for (const std::int32_t other : precedence.before[id]) visit(other);
    }
    return completed;
}

std::vector<std::int32_t> last_of(const Precedence& precedence, std::vector<std::int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (ids.size() < 2) return ids;
    std::int32_t earliest = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> strictly_before;
    for (const std::int32_t id : ids) {
        earliest = std::min(earliest, precedence.position[id]);
        strictly_before.insert(strictly_before.end(), precedence.before[id].begin(),
                               precedence.before[id].end());
    }
    std::vector<bool> implied(precedence.ops.size(), false);
    while (!strictly_before.empty()) {
        const std::int32_t id = strictly_before.back();
        strictly_before.pop_back();
        if (implied[id] || precedence.position[id] < earliest) continue;
        implied[id] = true;
        strictly_before.insert(strictly_before.end(), precedence.before[id].begin(),
                               precedence.before[id].end());
    }
    std::erase_if(ids, [&](std::int32_t id) { return implied[id]; });
    return ids;
}

}  // namespace syncopate::fuse
