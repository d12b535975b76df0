// Schedules made by hand: the direct all-gather of one tensor along axis 0, by pushes or by pulls, with the
// guards that fuse derives (fuse/passes/guard.hpp). One slot per rank's chunk, the own one first.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/launch.hpp"

namespace syncopate::runtime::testing {

inline plan::Region rows_of(const plan::Tensor& tensor, int rank, int size) {
    plan::Region region = tensor.whole();
    const std::int64_t rows = tensor.shape[0] / size;
    region[0] = {rank * rows, (rank + 1) * rows};
    return region;
}

inline fuse::Schedule direct_all_gather(int size, bool pull, std::vector<std::int64_t> shape,
                                        plan::Backend backend = plan::Backend::host) {
    using Kind = fuse::SignalMeaning::Kind;
    fuse::Schedule schedule;
    schedule.mesh.axes = {{"gpu", size}};
    schedule.tensors = {{"A", std::move(shape), plan::DType::int32}};
    schedule.stages = {{.count = size}};
    schedule.ranks.resize(static_cast<std::size_t>(size));
    const auto rank_of = [&](int rank) -> fuse::RankSchedule& {
        return schedule.ranks[static_cast<std::size_t>(rank)];
    };
    // Signals of each rank: arrived from the i-th next rank (i = 1 …) at i - 1; then what the i-th next rank
    // tells: push: that it has consumed; pull: that it is ready; and for pull that it has fetched.
    const auto op_index = [&](int owner, int peer) { return (peer - owner + size) % size - 1; };
    for (int rank = 0; rank < size; ++rank) {
        fuse::RankSchedule& mine = rank_of(rank);
        const auto peer = [&](int step) { return (rank + step) % size; };
        for (int i = 1; i < size; ++i) {
            mine.signals.push_back({Kind::arrived, pull ? plan::OpRef{rank, i - 1}
                                                        : plan::OpRef{peer(i), op_index(peer(i), rank)}});
        }
        for (int i = 1; i < size; ++i)
            mine.signals.push_back({pull ? Kind::ready : Kind::consumed, {peer(i), -1}});
        if (pull) {
            for (int i = 1; i < size; ++i)
                mine.signals.push_back({Kind::fetched, {peer(i), op_index(peer(i), rank)}});
        }
    }
    const auto arrived = [&](int at, int from) { return op_index(at, from); };
    const auto told = [&](int at, int by) { return size - 1 + op_index(at, by); };
    const auto fetched = [&](int at, int by) { return 2 * (size - 1) + op_index(at, by); };
    for (int rank = 0; rank < size; ++rank) {
        fuse::RankSchedule& mine = rank_of(rank);
        mine.slots.push_back({.tile = rank});
        for (int step = 1; step < size; ++step) {
            const int peer = (rank + step) % size;
            mine.slots.push_back({.tile = peer, .waits = {{arrived(rank, peer), 0}}});
            const int source = pull ? peer : rank;
            const int destination = pull ? rank : peer;
            const plan::Chunk chunk{0, rows_of(schedule.tensors[0], source, size)};
            fuse::Transfer transfer{.op = {rank, step - 1},
                                    .backend = backend,
                                    .src_rank = source,
                                    .dst_rank = destination,
                                    .src = chunk,
                                    .dst = chunk};
            transfer.posts = {{destination, arrived(destination, source)}};
            if (pull) {
                transfer.posts.push_back({source, fetched(source, rank)});
                mine.begin_posts.push_back({peer, told(peer, rank)});
                mine.begin_waits.push_back({told(rank, peer), 0});
                mine.end_waits.push_back({fetched(rank, peer), 0});
            } else {
                mine.kernel_posts.push_back({peer, told(peer, rank)});
                mine.begin_waits.push_back({told(rank, peer), 1});
            }
            mine.transfers.push_back(std::move(transfer));
        }
    }
    return fuse::lay_out_heap(fuse::decide_engine(fuse::launch(std::move(schedule)), fuse::Device::host, 8));
}

}  // namespace syncopate::runtime::testing
