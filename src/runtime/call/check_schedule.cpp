#include "runtime/call/check_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

Status check_chunk(const fuse::Schedule& schedule, plan::OpRef op, const plan::Chunk& chunk) {
    if (chunk.tensor < 0 || static_cast<std::size_t>(chunk.tensor) >= schedule.tensors.size()) {
        return error_at(op, fmt::format("there is no tensor {}", chunk.tensor));
    }
    const plan::Tensor& tensor = schedule.tensors[at(chunk.tensor)];
    if (chunk.region.size() != tensor.shape.size() || !plan::contains(tensor.whole(), chunk.region)) {
        return error_at(
            op, fmt::format("region {} is not in tensor {}", plan::to_string(chunk.region), tensor.name));
    }
    return Done{};
}

Status check_sum(const fuse::Schedule& schedule, const fuse::Transfer& transfer, int rank, int size) {
    const fuse::Sum& sum = *transfer.sum();
    if (transfer.src_rank != rank || transfer.dst_rank != rank) {
        return error_at(transfer.op,
                        fmt::format("it sums ({}) over ranks: contributions are staged first (fuse does)",
                                    plan::name_of(sum.reduce)));
    }
    const auto source = static_cast<std::size_t>(transfer.src.tensor);
    if (source < schedule.tensors.size() && !fuse::can_reduce(schedule.tensors[source].dtype)) {
        return error_at(transfer.op, fmt::format("elements of type {} are not reduced",
                                                 plan::name_of(schedule.tensors[source].dtype)));
    }
    if (!sum.sources.empty()) {
        if (sum.own > static_cast<std::int64_t>(sum.sources.size()))
            return error_at(transfer.op, "its own content comes after more contributions than there are");
        if (sum.sources.size() > fuse::kMostSumSources && !is_by_engine(transfer)) {
            return error_at(transfer.op,
                            fmt::format("only the chunk engine sums more than {} contributions where "
                                        "they are",
                                        fuse::kMostSumSources));
        }
        for (const fuse::Source& read : sum.sources) {
            if (read.rank < 0 || read.rank >= size)
                return error_at(transfer.op, fmt::format("there is no rank {}", read.rank));
            SYNCOPATE_TRY(check_chunk(schedule, transfer.op, read.chunk));
            if (schedule.tensors[at(read.chunk.tensor)].dtype !=
                schedule.tensors[at(transfer.dst.tensor)].dtype)
                return error_at(transfer.op, "its sources and the destination differ in dtype");
            const plan::Region& region = read.chunk.region;
            const std::size_t axes = transfer.dst.region.size();
            const bool in_slot = region.size() == axes + 1 && region.front().size() == 1;
            if (region.size() != axes && !in_slot) {
                return error_at(transfer.op,
                                fmt::format("{} is no contribution to {}", plan::to_string(region),
                                            plan::to_string(transfer.dst.region)));
            }
        }
        return Done{};
    }
    if (transfer.src.region.size() != transfer.dst.region.size() + 1 ||
        transfer.src.region.front().size() < 1 || sum.own > transfer.src.region.front().size()) {
        return error_at(transfer.op, fmt::format("{} is no list of slots to sum into {}",
                                                 plan::to_string(transfer.src.region),
                                                 plan::to_string(transfer.dst.region)));
    }
    return Done{};
}

/// A kernel may store only within the tensors of the op.
Status check_stores(const fuse::Schedule& schedule, const fuse::RankSchedule& rank) {
    const auto rows_of = [&](std::int32_t tensor) {
        const std::vector<std::int64_t>& shape = schedule.tensors[at(tensor)].shape;
        const std::vector<std::int64_t>& own = schedule.tensors[at(schedule.stores()->tensor)].shape;
        std::int64_t rows = 1;
        for (std::size_t axis = 0; axis + own.size() < shape.size() + 1; ++axis) rows *= shape[axis];
        return rows;
    };
    for (const fuse::MadeChunk& chunk : rank.chunks) {
        for (const fuse::Place& store : chunk.stores) {
            const plan::Interval rows =
                chunk.chunk.region.empty() ? plan::Interval{0, 1} : chunk.chunk.region[0];
            if (!schedule.stores() || chunk.chunk.tensor != schedule.stores()->tensor ||
                schedule.tensors[at(store.tensor)].dtype != schedule.tensors[at(chunk.chunk.tensor)].dtype ||
                rows.begin + store.rows < 0 || rows.end + store.rows > rows_of(store.tensor)) {
                return Error{fmt::format("the stores of chunk {} do not lie in the schedule's tensors",
                                         plan::to_string(chunk.chunk.region))};
            }
        }
    }
    return Done{};
}

/// A kernel may load only from tensors of the op that are like its own.
Status check_loads(const fuse::Schedule& schedule, int rank) {
    for (const fuse::Slot& slot : schedule.ranks[at(rank)].slots) {
        if (!slot.from) continue;
        if (schedule.loads()->own && slot.from->rank != rank) {
            return Error{fmt::format(
                "tile {} would load what rank {} was given, but the kernel loads only what its own "
                "rank was",
                slot.tile, slot.from->rank)};
        }
        const plan::Tensor& own = schedule.tensors[at(schedule.loads()->tensor)];
        const plan::Tensor& there = schedule.tensors[at(slot.from->tensor)];
        const bool alike = own.dtype == there.dtype && !own.shape.empty() &&
                           own.shape.size() == there.shape.size() &&
                           std::equal(own.shape.begin() + 1, own.shape.end(), there.shape.begin() + 1);
        if (!alike || slot.from->rows <= -own.shape[0] || slot.from->rows >= there.shape[0]) {
            return Error{fmt::format("tile {} would load {} rows further on in tensor {}, which is not in it",
                                     slot.tile, slot.from->rows, there.name)};
        }
    }
    return Done{};
}

/// Contiguous regions, of sizes that fit the kind, and this rank among those that take part.
Status check_collective(const fuse::Schedule& schedule, const fuse::Transfer& transfer, int rank) {
    const fuse::Collective& collective = *transfer.collective();
    const auto size = static_cast<std::int64_t>(collective.members.size());
    bool takes_part = false;
    std::int64_t src = -1;  // elements
    std::int64_t dst = -1;
    for (const fuse::Collective::Member& member : collective.members) {
        takes_part = takes_part || member.op == transfer.op;
        for (const plan::Chunk* chunk : {&member.src, &member.dst}) {
            SYNCOPATE_TRY(check_chunk(schedule, transfer.op, *chunk));
            if (fuse::is_contiguous(schedule.tensors[at(chunk->tensor)], chunk->region)) continue;
            return error_at(transfer.op, fmt::format("a collective moves contiguous regions, not {}",
                                                     plan::to_string(chunk->region)));
        }
        const std::int64_t from = plan::num_elements(member.src.region);
        const std::int64_t to = plan::num_elements(member.dst.region);
        if (src >= 0 && (from != src || to != dst)) return error_at(transfer.op, "shards of several sizes");
        src = from;
        dst = to;
    }
    using enum plan::CollectiveKind;
    const bool fits = collective.kind == all_gather       ? dst == size * src
                      : collective.kind == reduce_scatter ? src == size * dst
                      : collective.kind == all_to_all     ? src == dst && src % size == 0
                                                          : src == dst;
    const bool known = collective.number >= 0 &&
                       static_cast<std::size_t>(collective.number) < fuse::num_collectives(schedule);
    if (takes_part && fits && known && transfer.op.rank == rank) return Done{};
    return error_at(transfer.op,
                    fmt::format("its regions or ranks make no {}", plan::name_of(collective.kind)));
}

}  // namespace

Status check_schedule(const fuse::Schedule& schedule, int rank, int size) {
    if (static_cast<int>(schedule.ranks.size()) != size) {
        return Error{
            fmt::format("the schedule is for {} ranks, this run has {}", schedule.ranks.size(), size)};
    }
    if (schedule.part && (rank < schedule.part->first || rank >= schedule.part->end))
        return Error{fmt::format("the schedule is a part, of ranks {} to {}, and this is rank {}",
                                 schedule.part->first, schedule.part->end - 1, rank)};
    for (const plan::Tensor& tensor : schedule.tensors) {
        const bool sane = std::ranges::all_of(tensor.shape, [](std::int64_t extent) { return extent >= 0; });
        if (!sane || plan::num_elements(tensor.whole()) > (std::int64_t{1} << 42)) {
            return Error{fmt::format("tensor {} has no sensible size", tensor.name)};
        }
    }
    if (const std::string why = fuse::heap_objection(schedule); !why.empty()) return Error{why};
    if (const std::string why = fuse::channel_objection(schedule); !why.empty()) return Error{why};
    const fuse::RankSchedule& mine = schedule.ranks[at(rank)];
    const auto check_posts = [&](const std::vector<fuse::Post>& posts) -> Status {
        for (const fuse::Post& post : posts) {
            if (post.rank < 0 || post.rank >= size || post.signal < 0 ||
                static_cast<std::size_t>(post.signal) >= schedule.ranks[at(post.rank)].signals.size()) {
                return Error{fmt::format("a post to signal {} of rank {}, which has none such", post.signal,
                                         post.rank),
                             {.rank = rank}};
            }
        }
        return Done{};
    };
    const auto check_waits = [&](const std::vector<fuse::Wait>& waits) -> Status {
        for (const fuse::Wait& wait : waits) {
            if (wait.signal < 0 || static_cast<std::size_t>(wait.signal) >= mine.signals.size() ||
                wait.lag < 0) {
                return Error{fmt::format("a wait for signal {} (lag {}), of which there is none", wait.signal,
                                         wait.lag),
                             {.rank = rank}};
            }
        }
        return Done{};
    };
    for (const auto* posts : {&mine.begin_posts, &mine.kernel_posts, &mine.end_posts}) {
        SYNCOPATE_TRY(check_posts(*posts));
    }
    for (const fuse::MadeChunk& chunk : mine.chunks) {
        SYNCOPATE_TRY(check_posts(chunk.posts));
        SYNCOPATE_TRY(check_chunk(schedule, {rank, -1}, chunk.chunk));
    }
    SYNCOPATE_TRY(check_stores(schedule, mine));
    SYNCOPATE_TRY(check_loads(schedule, rank));
    for (const auto* waits : {&mine.begin_waits, &mine.end_waits}) {
        SYNCOPATE_TRY(check_waits(*waits));
    }
    for (const fuse::Transfer& transfer : mine.transfers) {
        for (const std::int32_t end : {transfer.src_rank, transfer.dst_rank}) {
            if (end < 0 || end >= size) return error_at(transfer.op, fmt::format("there is no rank {}", end));
        }
        if (transfer.sum() != nullptr) {
            SYNCOPATE_TRY(check_chunk(schedule, transfer.op, transfer.dst));
            SYNCOPATE_TRY(check_sum(schedule, transfer, rank, size));
        }
        for (const plan::Chunk* chunk : {&transfer.src, &transfer.dst}) {
            SYNCOPATE_TRY(check_chunk(schedule, transfer.op, *chunk));
        }
        if (schedule.tensors[at(transfer.src.tensor)].dtype !=
            schedule.tensors[at(transfer.dst.tensor)].dtype) {
            return error_at(transfer.op, "the source and the destination differ in dtype");
        }
        const auto index = static_cast<std::size_t>(&transfer - mine.transfers.data());
        if (std::string why = fuse::step_objection(mine, index); !why.empty())
            return error_at(transfer.op, std::move(why));
        if (transfer.collective() != nullptr) {
            SYNCOPATE_TRY(check_collective(schedule, transfer, rank));
        }
        SYNCOPATE_TRY(check_posts(transfer.posts));
        SYNCOPATE_TRY(check_waits(transfer.waits));
    }
    if (std::string why = fuse::engine_objection(schedule, mine); !why.empty())
        return plan::error_at({rank, -1}, std::move(why));
    return Done{};
}

}  // namespace syncopate::runtime
