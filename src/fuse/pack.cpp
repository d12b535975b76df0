#include "syncopate/fuse/pack.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

namespace syncopate::fuse {
namespace {

/// Simulates the run: whenever a program is free it gets what `take` gives for that moment.
template <typename Take>
std::vector<std::int64_t> fill_slots(const std::vector<double>& times, const std::vector<double>& ready,
                                     std::int64_t num_programs, const Take& take) {
    const auto num_tiles = static_cast<std::int64_t>(times.size());
    std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tiles), -1);
    using Free = std::tuple<double, std::int64_t>;  // when, which program
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    for (std::int64_t program = 0; program < std::min(num_programs, num_tiles); ++program)
        free.emplace(0.0, program);
    std::vector<std::int64_t> next_slot(static_cast<std::size_t>(num_programs));
    for (std::int64_t program = 0; program < num_programs; ++program) next_slot[program] = program;
    while (!free.empty()) {
        const auto [now, program] = free.top();
        free.pop();
        const std::int64_t tile = take(now);
        slots[next_slot[program]] = tile;
        next_slot[program] += num_programs;
        if (next_slot[program] < num_tiles) free.emplace(std::max(now, ready[tile]) + times[tile], program);
    }
    return slots;
}

}  // namespace

std::vector<std::int64_t> pack_tiles(const std::vector<double>& times, const std::vector<double>& ready,
                                     std::int64_t num_programs) {
    const auto num_tiles = static_cast<std::int64_t>(times.size());
    // Tiles of about one cost form a queue in order of arrival; the longest queue is looked at first.
    struct Queue {
        std::vector<std::int64_t> tiles;
        std::size_t next = 0;
    };
    std::map<long, Queue, std::greater<>> queues;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        const long cost = std::lround(4 * std::log2(std::max(times[tile], 1e-3)));  // steps of 19 %
        queues[cost].tiles.push_back(tile);
    }
    for (auto& [cost, queue] : queues) {
        std::stable_sort(queue.tiles.begin(), queue.tiles.end(),
                         [&](std::int64_t a, std::int64_t b) { return ready[a] < ready[b]; });
    }
    const auto take = [&](double now) {
        Queue* first = nullptr;
        for (auto& [cost, queue] : queues) {
            if (queue.next == queue.tiles.size()) continue;
            const double arrives = ready[queue.tiles[queue.next]];
            if (arrives <= now) return queue.tiles[queue.next++];
            if (first == nullptr || arrives < ready[first->tiles[first->next]]) first = &queue;
        }
        return first->tiles[first->next++];
    };

    return fill_slots(times, ready, num_programs, take);
}

std::vector<std::int64_t> pack_by_deadline(const std::vector<double>& times,
                                           const std::vector<std::int64_t>& deadlines,
                                           std::int64_t num_programs) {
    std::vector<std::int64_t> tiles(times.size());
    std::iota(tiles.begin(), tiles.end(), 0);
    std::stable_sort(tiles.begin(), tiles.end(), [&](std::int64_t a, std::int64_t b) {
        return std::pair(deadlines[a], -times[a]) < std::pair(deadlines[b], -times[b]);
    });
    std::size_t next = 0;
    return fill_slots(times, std::vector<double>(times.size(), 0.0), num_programs,
                      [&](double) { return tiles[next++]; });
}

}  // namespace syncopate::fuse
