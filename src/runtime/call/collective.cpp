#include "syncopate/runtime/host/host_collective.hpp"

#include <algorithm>
#include <cstring>

#include "syncopate/emit/table.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {
namespace {

using plan::CollectiveKind;

const std::byte* bytes_at(std::uint64_t address) { return reinterpret_cast<const std::byte*>(address); }

/// What this rank ends with, read from the participants' memory.
std::vector<std::byte> gather(const PreparedCollective& c) {
    const std::size_t shard = c.count * plan::size_of(c.dtype);
    const std::size_t own = c.position * shard;
    std::vector<std::byte> result;
    const auto append = [&](std::uint64_t from) {
        result.insert(result.end(), bytes_at(from), bytes_at(from) + shard);
    };
    switch (c.kind) {
        case CollectiveKind::all_gather:
            for (const std::uint64_t from : c.src) append(from);
            break;
        case CollectiveKind::all_to_all:
            for (const std::uint64_t from : c.src) append(from + own);
            break;
        case CollectiveKind::reduce_scatter:
        case CollectiveKind::all_reduce: {
            std::vector<const std::byte*> from;
            for (const std::uint64_t source : c.src)
                from.push_back(bytes_at(source + (c.kind == CollectiveKind::reduce_scatter ? own : 0)));
            result.resize(shard);
            reduce_elements(c.dtype, c.reduce, from, result.data(), c.count);
            break;
        }
        default: append(c.src.front());
    }
    return result;
}

}  // namespace

PreparedCollective prepare_collective(const fuse::Collective& collective, const fuse::Schedule& schedule,
                                      int rank, const std::vector<std::uint64_t>& tensors,
                                      std::uint64_t control, std::uint64_t stride) {
    const auto size = static_cast<std::int32_t>(schedule.ranks.size());
    const auto address = [&](std::int32_t where, const plan::Chunk& chunk) {
        const auto tensor = static_cast<std::size_t>(chunk.tensor);
        return view_of(schedule.tensors[tensor], chunk.region,
                       tensors[tensor] + static_cast<std::uint64_t>(where) * stride)
            .address;
    };
    const auto word_of = [&](std::int32_t where, std::int32_t from) {
        const fuse::RankSchedule& block = schedule.ranks[static_cast<std::size_t>(where)];
        return emit::joined_word(block, collective.number, size, from);
    };
    const plan::Chunk& first = collective.members.front().src;
    PreparedCollective made{.kind = collective.kind,
                            .reduce = collective.reduce,
                            .dtype = schedule.tensors[static_cast<std::size_t>(first.tensor)].dtype};
    for (const fuse::Collective::Member& member : collective.members) {
        const std::int32_t where = member.op.rank;
        if (where == rank) {
            made.position = made.ranks.size();
            made.dst = address(where, member.dst);
        }
        made.ranks.push_back(where);
        made.src.push_back(address(where, member.src));
        made.joined.push_back(control + static_cast<std::uint64_t>(where) * stride +
                              4 * static_cast<std::uint64_t>(word_of(where, rank)));
        made.joined_signal.push_back((word_of(rank, where) - emit::control::first_signal) /
                                     emit::control::signal_stride);
    }
    const bool scatters = collective.kind == CollectiveKind::reduce_scatter;
    const plan::Region& shard = scatters ? collective.members.front().dst.region : first.region;
    made.count = static_cast<std::uint64_t>(plan::num_elements(shard));
    if (collective.kind == CollectiveKind::all_to_all) made.count /= made.ranks.size();
    return made;
}

bool collect_on_host(const PreparedCollective& c, const HostControl& control, std::uint32_t epoch,
                     std::int32_t where) {
    const auto meet = [&](std::int32_t phase) {
        for (const std::uint64_t word : c.joined)
            HostControl(word).store(phase * emit::control::signal_stride, epoch);
        return std::ranges::all_of(c.joined_signal, [&](std::int32_t signal) {
            return control.wait({signal + phase, 0}, epoch, where);
        });
    };
    if (!meet(0)) return false;
    const std::vector<std::byte> result = gather(c);
    if (!meet(1)) return false;
    std::memcpy(reinterpret_cast<void*>(c.dst), result.data(), result.size());
    return true;
}

}  // namespace syncopate::runtime
