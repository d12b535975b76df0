#include "syncopate/fuse/passes/engine.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/scope.hpp"

namespace syncopate::fuse {
namespace {

using Counts = std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>;  // by rank and signal: posts

bool goes_by_engine(const Transfer& transfer) { return is_engine(transfer.backend); }

std::int64_t bytes_of(const Schedule& schedule, const plan::Chunk& chunk) {
    return plan::num_elements(chunk.region) *
           static_cast<std::int64_t>(plan::size_of(schedule.tensors[at(chunk.tensor)].dtype));
}

bool sums_alike(const Schedule& schedule, const std::vector<const Transfer*>& own) {
    constexpr std::int64_t kMostBytes = std::int64_t{1} << 35;  // 2^31 units of 16
    const Transfer& like = *own.front();
    const auto dtype_of = [&](const Transfer& transfer) {
        return schedule.tensors[at(transfer.dst.tensor)].dtype;
    };
    return std::ranges::all_of(own, [&](const Transfer* one) {
        const std::int64_t bytes = bytes_of(schedule, one->dst);
        return one->backend == plan::Backend::ldst_dedicated && one->sum() != nullptr &&
               like.sum() != nullptr && one->sum()->reduce == like.sum()->reduce &&
               dtype_of(*one) == dtype_of(like) && bytes > 0 && bytes <= kMostBytes;
    });
}

bool fits_at_once(const Schedule& schedule, const RankSchedule& rank, const std::vector<const Transfer*>& own,
                  std::int32_t blocks) {
    constexpr std::size_t kBoxAxes = 3;  // more may be several boxes
    const std::int64_t most = blocks / static_cast<std::int64_t>(own.size()) * kBytesAtOnce;
    return std::ranges::all_of(own, [&](const Transfer* one) {
        const std::int64_t bytes = bytes_of(schedule, one->src);
        return one->backend == plan::Backend::ldst_dedicated && one->copy() != nullptr &&
               !one->posts.empty() && one->src.region.size() <= kBoxAxes && bytes > 0 && bytes <= most &&
               std::ranges::all_of(one->waits, [&](const Wait& wait) { return rank.has_begun(wait); });
    });
}

EngineKernel kernel_of(const Schedule& schedule, const RankSchedule& rank, std::int32_t blocks) {
    std::vector<const Transfer*> own;
    for (const Transfer& transfer : rank.transfers) {
        if (goes_by_engine(transfer)) own.push_back(&transfer);
    }
    if (own.empty()) return rank.num_relays > 0 ? EngineKernel::relays : EngineKernel::none;
    if (rank.num_relays == 0 && sums_alike(schedule, own)) return EngineKernel::sums;
    if (rank.num_relays == 0 && fits_at_once(schedule, rank, own, blocks)) return EngineKernel::at_once;
    const bool in_bulk = std::ranges::all_of(own, [&](const Transfer* one) {
        return one->backend == plan::Backend::tma_dedicated || bytes_of(schedule, one->dst) == 0;
    });
    return in_bulk ? EngineKernel::bulk : EngineKernel::pieces;
}

/// How often blocks add to each signal of one node in a call, if all its engines go at once and only tiles wait for what
/// they bring.
Counts counted_by_block(const Schedule& schedule, Scope node, std::int32_t blocks) {
    Counts counts;
    for (std::int32_t number = node.first; number < node.end; ++number) {
        const RankSchedule& rank = schedule.ranks[at(number)];
        if (rank.engine != EngineKernel::at_once) return {};
        const auto count = static_cast<std::int32_t>(std::ranges::count_if(rank.transfers, goes_by_engine));
        std::int32_t index = 0;
        for (const Transfer& transfer : rank.transfers) {
            if (!goes_by_engine(transfer)) continue;
            const std::int32_t of_op = (blocks - index++ + count - 1) / count;
            for (const Post& post : transfer.posts) counts[{post.rank, post.signal}] = of_op;
        }
    }
    for (std::int32_t number = node.first; number < node.end; ++number) {
        const RankSchedule& rank = schedule.ranks[at(number)];
        const auto meet = [&](const std::vector<Wait>& waits) {
            return std::ranges::any_of(
                waits, [&](const Wait& wait) { return counts.contains({number, wait.signal}); });
        };
        if (meet(rank.begin_waits) || meet(rank.end_waits) ||
            std::ranges::any_of(rank.transfers,
                                [&](const Transfer& transfer) { return meet(transfer.waits); }))
            return {};
    }
    return counts;
}

/// The same of kernels that sum: each program adds to what its tiles' chunks post.
Counts counted_by_program(const Schedule& schedule) {
    Counts counts;
    for (const RankSchedule& rank : schedule.ranks) {
        for (const MadeChunk& chunk : rank.chunks) {
            for (const Post& post : chunk.posts)
                counts[{post.rank, post.signal}] += static_cast<std::int32_t>(chunk.counting.size());
        }
    }
    return counts;
}

}  // namespace

Schedule decide_engine(Schedule schedule, Device device, std::int32_t blocks) {
    schedule.engine_blocks = std::clamp(blocks, 1, kMostEngineBlocks);
    for (RankSchedule& rank : schedule.ranks) {
        rank.counted.clear();
        rank.engine = kernel_of(schedule, rank, schedule.engine_blocks);
        rank.takes_turns = rank.engine != EngineKernel::none || sums_in_kernel(rank);
    }
    Counts counts;
    if (kernel_summands(schedule) > 0) {
        counts = counted_by_program(schedule);
    } else if (device == Device::cuda && schedule.stages.size() == 1) {
        const auto size = static_cast<std::int32_t>(schedule.ranks.size());
        const std::int32_t of_node = size / schedule.mesh.num_nodes();
        for (Scope node{0, of_node}; node.first < size; node = {node.end, node.end + of_node}) {
            const Counts of_engines = counted_by_block(schedule, node, schedule.engine_blocks);
            if (of_engines.empty()) continue;
            counts.insert(of_engines.begin(), of_engines.end());
            for (std::int32_t rank = node.first; rank < node.end; ++rank)
                schedule.ranks[at(rank)].engine = EngineKernel::counted;
        }
    }
    for (const auto& [signal, posts] : counts)
        schedule.ranks[at(signal.first)].counted.push_back({signal.second, posts});
    return schedule;
}

std::string engine_objection(const Schedule& schedule, const RankSchedule& rank) {
    const EngineKernel fits = kernel_of(schedule, rank, schedule.engine_blocks);
    if (rank.engine == fits || (rank.engine == EngineKernel::counted && fits == EngineKernel::at_once))
        return {};
    return "its transfers are not what the kernel of its chunk engine carries out";
}

}  // namespace syncopate::fuse
