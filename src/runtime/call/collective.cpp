#include "syncopate/runtime/call/collective.hpp"

#include "syncopate/at.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime {

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
        const fuse::RankSchedule& block = schedule.ranks[at(where)];
        return emit::joined_word(block, collective.number, size, from);
    };
    const plan::Chunk& first = collective.members.front().src;
    PreparedCollective made{.kind = collective.kind,
                            .reduce = collective.reduce,
                            .dtype = schedule.tensors[at(first.tensor)].dtype};
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
    const bool scatters = collective.kind == plan::CollectiveKind::reduce_scatter;
    const plan::Region& shard = scatters ? collective.members.front().dst.region : first.region;
    made.count = static_cast<std::uint64_t>(plan::num_elements(shard));
    if (collective.kind == plan::CollectiveKind::all_to_all) made.count /= made.ranks.size();
    return made;
}

}  // namespace syncopate::runtime
