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

struct Run {
    std::vector<std::int64_t> slots;
    double end = 0;
};

/// Simulates the run: whenever a program is free it gets what `take` gives for that moment. Of those that are
/// free at once the first one chooses first, or (`fewer_first`) one that has fewer slots to come.
template <typename Take>
Run simulate_run(const std::vector<double>& times, const std::vector<double>& ready,
                 std::int64_t num_programs, bool fewer_first, Take take) {
    const auto num_tiles = static_cast<std::int64_t>(times.size());
    Run run{std::vector<std::int64_t>(static_cast<std::size_t>(num_tiles), -1)};
    using Free =
        std::tuple<double, std::int64_t, std::int64_t, std::int64_t>;  // when, slots left, program, slot
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    const auto add = [&](double when, std::int64_t slot) {
        if (slot >= num_tiles) return;
        const std::int64_t left = fewer_first ? (num_tiles - 1 - slot) / num_programs : 0;
        free.emplace(when, left, slot % num_programs, slot);
    };
    for (std::int64_t program = 0; program < num_programs; ++program) add(0.0, program);
    while (!free.empty()) {
        const auto [now, left, program, slot] = free.top();
        free.pop();
        const std::int64_t tile = take(now);
        run.slots[slot] = tile;
        const double end = std::max(now, ready[tile]) + times[tile];
        run.end = std::max(run.end, end);
        add(end, slot + num_programs);
    }
    return run;
}

/// The shorter of the two runs; `make_take` gives a fresh `take` for each.
template <typename MakeTake>
Run fill_slots(const std::vector<double>& times, const std::vector<double>& ready, std::int64_t num_programs,
               const MakeTake& make_take) {
    Run first = simulate_run(times, ready, num_programs, false, make_take());
    Run second = simulate_run(times, ready, num_programs, true, make_take());
    return second.end < first.end ? std::move(second) : std::move(first);
}

/// Each tile, the longest first, goes to the program that has least to do of those with a slot left, so that
/// no program gets two long ones that another one has room for; a program's tiles run as they arrive.
Run share_out(const std::vector<double>& times, const std::vector<double>& ready, std::int64_t num_programs) {
    const auto num_tiles = static_cast<std::int64_t>(times.size());
    std::vector<std::int64_t> tiles(times.size());
    std::iota(tiles.begin(), tiles.end(), 0);
    std::ranges::stable_sort(tiles, {},
                             [&](std::int64_t tile) { return std::pair(-times[tile], ready[tile]); });
    using Open = std::tuple<double, std::int64_t, std::int64_t>;  // what it has to do, -(slots left), program
    std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
    for (std::int64_t program = 0; program < std::min(num_programs, num_tiles); ++program)
        open.emplace(0.0, -((num_tiles - 1 - program) / num_programs + 1), program);
    std::vector<std::vector<std::int64_t>> of_program(static_cast<std::size_t>(num_programs));
    for (const std::int64_t tile : tiles) {
        const auto [load, left, program] = open.top();
        open.pop();
        of_program[program].push_back(tile);
        if (left < -1) open.emplace(load + times[tile], left + 1, program);
    }
    Run run{std::vector<std::int64_t>(times.size(), -1)};
    for (std::int64_t program = 0; program < num_programs; ++program) {
        std::ranges::stable_sort(of_program[program], {}, [&](std::int64_t tile) { return ready[tile]; });
        double end = 0;
        std::int64_t slot = program;
        for (const std::int64_t tile : of_program[program]) {
            run.slots[slot] = tile;
            slot += num_programs;
            end = std::max(end, ready[tile]) + times[tile];
        }
        run.end = std::max(run.end, end);
    }
    return run;
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
    const auto make_take = [&] {
        return [&ready, left = queues](double now) mutable {
            Queue* first = nullptr;
            for (auto& [cost, queue] : left) {
                if (queue.next == queue.tiles.size()) continue;
                const double arrives = ready[queue.tiles[queue.next]];
                if (arrives <= now) return queue.tiles[queue.next++];
                if (first == nullptr || arrives < ready[first->tiles[first->next]]) first = &queue;
            }
            return first->tiles[first->next++];
        };
    };
    Run greedy = fill_slots(times, ready, num_programs, make_take);
    Run shared = share_out(times, ready, num_programs);
    return shared.end < greedy.end ? std::move(shared.slots) : std::move(greedy.slots);
}

std::vector<std::int64_t> pack_by_deadline(const std::vector<double>& times,
                                           const std::vector<std::int64_t>& deadlines,
                                           std::int64_t num_programs) {
    std::vector<std::int64_t> tiles(times.size());
    std::iota(tiles.begin(), tiles.end(), 0);
    std::stable_sort(tiles.begin(), tiles.end(), [&](std::int64_t a, std::int64_t b) {
        return std::pair(deadlines[a], -times[a]) < std::pair(deadlines[b], -times[b]);
    });
    Run run = fill_slots(times, std::vector<double>(times.size(), 0.0), num_programs, [&] {
        return [&tiles, next = std::size_t{0}](double) mutable { return tiles[next++]; };
    });
    return std::move(run.slots);
}

}  // namespace syncopate::fuse
