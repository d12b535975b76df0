#include "syncopate/fuse/inline/kernel_sums.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/fuse/passes/lower.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::int64_t kUnit = 16;  // bytes that a thread of the kernel loads at a time

constexpr const char* kAllSum = "where kernels sum, each rank sums something of all ranks";

/// How many summands the sum has: slots, and what the destination holds.
std::int32_t summands_of(const Transfer& transfer) {
    const std::int64_t slots = transfer.src.region.front().size();
    return static_cast<std::int32_t>(slots) + (transfer.sum()->own >= 0 ? 1 : 0);
}

}  // namespace

std::int64_t first_element(const plan::Tensor& tensor, const plan::Region& region) {
    std::int64_t first = 0;
    for (std::size_t axis = 0; axis < region.size(); ++axis)
        first = first * tensor.shape[axis] + region[axis].begin;
    return first;
}

plan::Region asked_of_sum(const plan::Plan& plan, std::int32_t rank, const plan::Chunk& chunk) {
    plan::Region asked;
    for (const plan::Holding& held : plan.final) {
        if (held.rank != rank || held.chunk.tensor != chunk.tensor) continue;
        const auto part = plan::intersect(held.chunk.region, chunk.region);
        if (part) asked = asked.empty() ? *part : plan::bounding_box(asked, *part);
    }
    if (!asked.empty()) return asked;
    asked = chunk.region;
    for (plan::Interval& interval : asked) interval.end = interval.begin;
    return asked;
}

std::string kernel_sum_objection(const BoundKernel& program, const Lowered& lowered, plan::OpRef ref) {
    const plan::Plan& plan = lowered.plan;
    const plan::Op& sum = plan.op(ref);
    const kernel::Kernel& kernel = program.kernel;
    if (!kernel.sums) return kernel.name + " does not state that it sums";
    if (lowered.direct.contains(ref))
        return "the kernel adds up what is staged, not what lies at other ranks";
    if (sum.src.region.size() != sum.dst.region.size() + 1) return "the kernel adds up what is staged";
    plan::Chunk slot = sum.src;
    slot.region.front() = {0, 1};
    if (plan::is_empty(sum.dst.region)) return kAllSum;
    const auto tensor_of = [&](const plan::Chunk& chunk) -> const plan::Tensor& {
        return plan.tensors[at(chunk.tensor)];
    };
    for (const plan::Chunk& chunk : {slot, sum.dst}) {
        if (!is_contiguous(tensor_of(chunk), chunk.region))
            return "the kernel adds up runs of elements, not " + to_string(sum.dst.region);
    }
    if (sum.reduce != plan::Reduce::sum) return "the kernel adds up, and this op takes the largest";
    const auto item = static_cast<std::int64_t>(plan::size_of(tensor_of(sum.dst).dtype));
    const std::int64_t bytes = plan::num_elements(sum.dst.region) * item;
    if (bytes > std::numeric_limits<std::int32_t>::max() || bytes % kUnit != 0)
        return "the kernel adds up multiples of 16 bytes, less than 2 GiB, not " + std::to_string(bytes);
    plan::Chunk second = slot;  // of the slots, which lie as far apart as it is from the first one
    second.region.front() = {1, 2};
    for (const plan::Chunk& chunk : {slot, second, sum.dst}) {
        const std::int64_t begin = first_element(tensor_of(chunk), chunk.region) * item;
        if (begin % kUnit != 0)
            return "the kernel loads 16 bytes at a time, and a summand begins at byte " +
                   std::to_string(begin);
    }
    for (const std::vector<plan::Op>& list : plan.ranks) {
        for (const plan::Op& op : list) {
            if (std::ranges::find(op.after, ref) != op.after.end())
                return "the kernel's sums come last, and another op comes after this one";
        }
    }
    return {};
}

Status check_kernel_sums(const plan::Plan& lowered, const Backends& backends) {
    bool any = false;
    std::int32_t without = -1;  // a rank
    for (std::int32_t rank = 0; rank < lowered.num_ranks(); ++rank) {
        std::int32_t sums = 0;
        const auto& chosen = backends[at(rank)];
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(chosen.size()); ++index) {
            const plan::OpRef ref{rank, index};
            if (!is_sum(lowered.op(ref)) || !is_inline(chosen[at(index)])) continue;
            any = true;
            if (++sums > 1) return error_at(ref, "the kernel adds up once, and this rank has two sums");
            std::set<std::int32_t> others;
            for (const plan::OpRef from : lowered.op(ref).after)
                others.insert(lowered.op(from).source_rank(from.rank));
            others.insert(rank);
            if (static_cast<std::int32_t>(others.size()) < lowered.num_ranks()) return error_at(ref, kAllSum);
        }
        without = sums == 0 ? rank : without;
    }
    if (!any) return Done{};
    if (without >= 0) return plan::error_at({without, -1}, kAllSum);
    if (lowered.num_ranks() > kMostSummingRanks)
        return Error{
            fmt::format("kernels sum for {} ranks at most, not {}", kMostSummingRanks, lowered.num_ranks())};
    for (std::int32_t rank = 0; rank < lowered.num_ranks(); ++rank) {
        const auto& chosen = backends[at(rank)];
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(chosen.size()); ++index) {
            if (is_inline(chosen[at(index)])) continue;
            return plan::error_at(
                {rank, index},
                "where the kernel sums its tiles store all contributions, and this op goes by " +
                    std::string(name_of(chosen[at(index)])));
        }
    }
    return Done{};
}

Status check_kernel_sums(const Schedule& schedule) {
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(schedule.ranks.size()); ++rank) {
        const RankSchedule& own = schedule.ranks[at(rank)];
        if (!sums_in_kernel(own) ||
            (own.kernel_posts.empty() && own.begin_waits.empty() && own.end_waits.empty()))
            continue;
        return plan::error_at({rank, -1},
                              "where the kernel sums nothing may arrive for its tiles, or after it");
    }
    return Done{};
}

std::vector<std::int32_t> alternating_tensors(const Schedule& schedule) {
    std::vector<std::int32_t> tensors;
    for (const RankSchedule& rank : schedule.ranks) {
        for (const Transfer& transfer : rank.transfers) {
            if (is_kernel_sum(transfer) && std::ranges::find(tensors, transfer.src.tensor) == tensors.end())
                tensors.push_back(transfer.src.tensor);
        }
    }
    return tensors;
}

bool is_kernel_sum(const Transfer& transfer) {
    return transfer.sum() != nullptr && is_inline(transfer.backend);
}

bool sums_in_kernel(const RankSchedule& rank) { return std::ranges::any_of(rank.transfers, is_kernel_sum); }

std::int32_t kernel_summands(const Schedule& schedule) {
    std::int32_t most = 0;
    for (const RankSchedule& rank : schedule.ranks) {
        for (const Transfer& transfer : rank.transfers) {
            if (is_kernel_sum(transfer)) most = std::max(most, summands_of(transfer));
        }
    }
    return most;
}

}  // namespace syncopate::fuse
