#include "syncopate/fuse/passes/pack.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::fuse {
namespace {

/// Tiles of about one cost, in the order in which they are to run.
struct Queue {
    std::vector<std::int64_t> tiles;
    std::size_t next = 0;
    double time = 0;  ///< of one tile, at most

    [[nodiscard]] bool empty() const { return next == tiles.size(); }
    [[nodiscard]] std::int64_t first() const { return tiles[next]; }
};

/// The longest tiles first.
std::vector<Queue> queues_of(const std::vector<double>& times) {
    std::map<long, Queue, std::greater<>> queues;
    for (std::size_t tile = 0; tile < times.size(); ++tile) {
        const long cost = std::lround(4 * std::log2(std::max(times[tile], 1e-3)));  // steps of 19 %
        Queue& queue = queues[cost];
        queue.tiles.push_back(static_cast<std::int64_t>(tile));
        queue.time = std::max(queue.time, times[tile]);
    }
    std::vector<Queue> all;
    for (auto& [cost, queue] : queues) all.push_back(std::move(queue));
    return all;
}

/// How many tiles of each queue each program is to run: [program][queue].
using Quotas = std::vector<std::vector<std::int64_t>>;

/// Each tile, the longest first, goes to the program that has least to do of those with a slot left: no
/// program gets two long ones that another one has room for.
Quotas share_out(const std::vector<Queue>& queues, std::int64_t num_tiles, std::int64_t num_programs) {
    using Open = std::tuple<double, std::int64_t, std::int64_t>;  // what it has to do, -(slots left), program
    std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
    for (std::int64_t program = 0; program < std::min(num_programs, num_tiles); ++program)
        open.emplace(0.0, -((num_tiles - 1 - program) / num_programs + 1), program);
    Quotas quotas(static_cast<std::size_t>(num_programs), std::vector<std::int64_t>(queues.size()));
    for (std::size_t queue = 0; queue < queues.size(); ++queue) {
        for (std::size_t i = 0; i < queues[queue].tiles.size(); ++i) {
            const auto [load, left, program] = open.top();
            open.pop();
            ++quotas[at(program)][queue];
            if (left < -1) open.emplace(load + queues[queue].time, left + 1, program);
        }
    }
    return quotas;
}

struct Run {
    std::vector<std::int64_t> slots;
    double end = 0;
};

/// Simulates the run: whenever a program is free it gets what `take` gives for that moment and program. Of
/// those that are free at once the first one chooses first, or (`fewer_first`) one that has fewer slots to
/// come.
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
        const std::int64_t tile = take(now, program);
        run.slots[slot] = tile;
        const double end = std::max(now, ready[tile]) + times[tile];
        run.end = std::max(run.end, end);
        add(end, slot + num_programs);
    }
    return run;
}

/// Of the queues that a program may take from (all without `quotas`) the one that `choose` finds; its first
/// tile is taken.
template <typename Choose>
auto taker(std::vector<Queue> queues, Quotas quotas, const Choose& choose) {
    return [queues = std::move(queues), quotas = std::move(quotas), &choose](double now,
                                                                             std::int64_t program) mutable {
        const auto own = quotas.empty() ? nullptr : &quotas[at(program)];
        Queue* chosen = nullptr;
        for (std::size_t i = 0; i < queues.size(); ++i) {
            if (queues[i].empty() || (own != nullptr && (*own)[i] == 0)) continue;
            if (chosen == nullptr || choose(now, queues[i].first(), chosen->first())) chosen = &queues[i];
        }
        if (own != nullptr) --(*own)[at(chosen - queues.data())];
        return chosen->tiles[chosen->next++];
    };
}

/// The run that ends first: with the programs in two orders, and with the tiles shared out.
template <typename Choose>
std::vector<std::int64_t> fill_slots(const std::vector<double>& times, const std::vector<double>& ready,
                                     std::int64_t num_programs, const std::vector<Queue>& queues,
                                     const Choose& choose) {
    const Quotas shares = share_out(queues, static_cast<std::int64_t>(times.size()), num_programs);
    Run best;
    for (const auto& [fewer_first, quotas] : {std::pair(false, Quotas()), std::pair(true, Quotas()),
                                              std::pair(true, shares), std::pair(false, shares)}) {
        Run run = simulate_run(times, ready, num_programs, fewer_first, taker(queues, quotas, choose));
        if (best.slots.empty() || run.end < best.end) best = std::move(run);
    }
    return std::move(best.slots);
}

}  // namespace

std::vector<std::int64_t> pack_tiles(const std::vector<double>& times, const std::vector<double>& ready,
                                     std::int64_t num_programs) {
    std::vector<Queue> queues = queues_of(times);
    for (Queue& queue : queues)
        std::ranges::stable_sort(queue.tiles, {}, [&](std::int64_t tile) { return ready[tile]; });
    // The longest that has arrived, else the one that arrives first.
    return fill_slots(times, ready, num_programs, queues,
                      [&](double now, std::int64_t shorter, std::int64_t longer) {
                          return ready[longer] > now && ready[shorter] < ready[longer];
                      });
}

std::vector<std::int64_t> pack_by_deadline(const std::vector<double>& times,
                                           const std::vector<std::int64_t>& deadlines,
                                           std::int64_t num_programs) {
    std::vector<Queue> queues = queues_of(times);
    for (Queue& queue : queues)
        std::ranges::stable_sort(queue.tiles, {}, [&](std::int64_t tile) { return deadlines[tile]; });
    return fill_slots(times, std::vector<double>(times.size(), 0.0), num_programs, queues,
                      [&](double, std::int64_t shorter, std::int64_t longer) {
                          return deadlines[shorter] < deadlines[longer];
                      });
}

}  // namespace syncopate::fuse
