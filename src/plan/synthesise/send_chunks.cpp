#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <utility>

#include "plan/synthesise/hop_clock.hpp"
#include "plan/synthesise/match_chunks.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

constexpr float kFar = std::numeric_limits<float>::infinity();

class Sending {
public:
    Sending(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed)
        : network_(network), chunks_(chunks), seed_(seed), clock_(network), count_(network.leaving.size()) {
        for (const MovingChunk& chunk : chunks)
            mean_bytes_ += chunk.bytes / static_cast<double>(chunks.size());
        distance_.assign(count_ * count_, kFar);
        nearness_.assign(count_ * count_, 0);
        for (std::size_t to = 0; to < count_; ++to) find_distances(to);
        for (std::size_t chunk = chunks.size(); chunk-- > 0;) {
            if (chunks[chunk].origin != chunks[chunk].destination &&
                distance(chunks[chunk].origin, chunks[chunk].destination) == kFar)
                result_.unreachable = {{static_cast<std::int32_t>(chunk), chunks[chunk].destination}};
        }
        if (result_.unreachable.empty()) find_ways();
    }

    Matching run() {
        if (!result_.unreachable.empty()) return std::move(result_);
        do {
            clock_.attempt_marked([this](std::int32_t hop) { match(hop); });
        } while (clock_.advance([this](std::int32_t chunk, const Hop&) { wait_at_next_hop(chunk); }));
        return std::move(result_);
    }

private:
    using Way = std::vector<std::int32_t>;  // hops, the last one first

    double cost(const Hop& hop, double bytes) const {
        return hop.start_us + hop.wait_us + bytes * hop.us_per_byte + hop.post_us + hop.latency_us;
    }
    float distance(std::int32_t from, std::int32_t to) const {
        return distance_[static_cast<std::size_t>(to) * count_ + static_cast<std::size_t>(from)];
    }
    std::int32_t nearness(std::int32_t from, std::int32_t to) const {
        return nearness_[static_cast<std::size_t>(to) * count_ + static_cast<std::size_t>(from)];
    }

    /// From everyone to `to`: Dijkstra's algorithm along entering hops.
    void find_distances(std::size_t to) {
        float* distance = distance_.data() + to * count_;
        using Entry = std::pair<float, std::int32_t>;
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
        std::int32_t* nearness = nearness_.data() + to * count_;
        std::vector<char> settled(count_, 0);
        std::int32_t num_settled = 0;
        distance[to] = 0;
        open.emplace(0.0F, static_cast<std::int32_t>(to));
        while (!open.empty()) {
            const auto [so_far, at] = open.top();
            open.pop();
            if (std::exchange(settled[static_cast<std::size_t>(at)], 1) != 0) continue;
            nearness[static_cast<std::size_t>(at)] = num_settled++;
            for (const std::int32_t id : network_.entering[static_cast<std::size_t>(at)]) {
                const Hop& hop = network_.hops[static_cast<std::size_t>(id)];
                const float further = so_far + static_cast<float>(cost(hop, mean_bytes_));
                if (further >= distance[static_cast<std::size_t>(hop.from)]) continue;
                distance[static_cast<std::size_t>(hop.from)] = further;
                open.emplace(further, hop.from);
            }
        }
    }

    /// Whether a hop begins a shortest way. Nearer also by rank, not only by time, which where steps are
    /// short and ways long may not tell: what always comes nearer arrives.
    bool leads(const Hop& hop, std::int32_t to) const {
        constexpr float kSame = 1.0001F;  // sums of the same figures in another order
        return nearness(hop.to, to) < nearness(hop.from, to) &&
               static_cast<float>(cost(hop, mean_bytes_)) + distance(hop.to, to) <=
                   distance(hop.from, to) * kSame;
    }

    /// A way for each chunk: of the shortest ones that with the least load, loads counting by their squares,
    /// so that the fullest links are left alone. All chunks once, then each again with the others where they
    /// are.
    void find_ways() {
        ways_.resize(chunks_.size());
        waiting_.resize(network_.hops.size());
        load_.assign(network_.capacity.size(), 0);
        std::vector<std::int32_t> order;
        for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
            if (chunks_[chunk].origin != chunks_[chunk].destination)
                order.push_back(static_cast<std::int32_t>(chunk));
        }
        if (seed_ != 0) {
            std::mt19937_64 random(seed_);  // shuffle() is not the same everywhere
            for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
        }
        // The longest first: short ways fill what is left.
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
            const auto far = [&](std::int32_t chunk) {
                const MovingChunk& moving = chunks_[at(chunk)];
                return distance(moving.origin, moving.destination);
            };
            return far(a) > far(b);
        });
        std::size_t steps = 0;
        for (const std::int32_t chunk : order) {
            ways_[at(chunk)] = way_of(chunk);
            add_load(chunk, 1);
            steps += ways_[at(chunk)].size();
        }
        constexpr int kRounds = 3;
        constexpr std::size_t kManySteps = 1 << 18;
        for (int round = 0; round < kRounds && steps > order.size() && steps < kManySteps; ++round) {
            for (const std::int32_t chunk : order) {
                add_load(chunk, -1);
                ways_[at(chunk)] = way_of(chunk);
                add_load(chunk, 1);
            }
        }
        for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk)
            wait_at_next_hop(static_cast<std::int32_t>(chunk));
    }

    void add_load(std::int32_t chunk, double sign) {
        for (const std::int32_t id : ways_[at(chunk)]) {
            const Hop& hop = network_.hops[at(id)];
            for (const std::int32_t link : network_.resources_of(hop).subspan(1))
                load_[at(link)] += sign * time(hop, chunk);
        }
    }
    double time(const Hop& hop, std::int32_t chunk) const {
        return chunks_[at(chunk)].bytes * hop.us_per_byte;
    }

    /// Over the shortest ways, which have no circles: participants in the order in which they come nearer.
    Way way_of(std::int32_t chunk) {
        const std::int32_t from = chunks_[at(chunk)].origin;
        const std::int32_t to = chunks_[at(chunk)].destination;
        best_.assign(count_, {kUnlimited, -1});
        std::priority_queue<std::pair<std::int32_t, std::int32_t>> open;  // nearness, participant
        best_[at(from)] = {0, -1};
        open.emplace(nearness(from, to), from);
        while (open.top().second != to) {
            const std::int32_t at = open.top().second;
            open.pop();
            const double so_far = best_[static_cast<std::size_t>(at)].first;
            for (const std::int32_t id : network_.leaving[static_cast<std::size_t>(at)]) {
                const Hop& hop = network_.hops[static_cast<std::size_t>(id)];
                if (!leads(hop, to)) continue;
                double further = so_far;
                for (const std::int32_t link : network_.resources_of(hop).subspan(1))
                    further += 2 * load_[static_cast<std::size_t>(link)] + time(hop, chunk);
                auto& there = best_[static_cast<std::size_t>(hop.to)];
                if (there.second < 0) open.emplace(nearness(hop.to, to), hop.to);
                if (further < there.first) there = {further, id};
            }
        }
        Way way;
        for (std::int32_t at = to; at != from;) {
            way.push_back(best_[static_cast<std::size_t>(at)].second);
            at = network_.hops[static_cast<std::size_t>(way.back())].from;
        }
        return way;
    }

    void wait_at_next_hop(std::int32_t chunk) {
        const Way& way = ways_[at(chunk)];
        if (way.empty()) return;
        const Hop& hop = network_.hops[at(way.back())];
        const float far = distance(hop.from, chunks_[at(chunk)].destination);
        waiting_[at(way.back())].emplace(far, -chunk);
    }

    /// Of the chunks whose way goes on over a hop, the one that has farthest to go.
    void match(std::int32_t hop_id) {
        const Hop& hop = network_.hops[at(hop_id)];
        auto& waiting = waiting_[at(hop_id)];
        if (waiting.empty() || !clock_.is_free(hop)) return;
        const std::int32_t chunk = -waiting.top().second;
        waiting.pop();
        ways_[at(chunk)].pop_back();
        const MovingChunk& moving = chunks_[at(chunk)];
        result_.movements.push_back(clock_.start(chunk, hop_id, moving.bytes, moving.origin != hop.from));
        result_.makespan_us = std::max(result_.makespan_us, result_.movements.back().end_us);
    }

    const HopNetwork& network_;
    const std::vector<MovingChunk>& chunks_;
    std::uint64_t seed_;
    HopClock clock_;
    std::size_t count_;
    double mean_bytes_ = 0;
    std::vector<float> distance_;         ///< by destination and holder, µs
    std::vector<std::int32_t> nearness_;  ///< likewise: how many are nearer
    std::vector<double> load_;            ///< by resource, µs
    std::vector<Way> ways_;               ///< by chunk: what is left of its way
    /// By participant: load so far, hop that leads there.
    std::vector<std::pair<double, std::int32_t>> best_;
    /// By hop: chunks that are there, by distance.
    std::vector<std::priority_queue<std::pair<float, std::int32_t>>> waiting_;
    Matching result_;
};

}  // namespace

Matching send_chunks(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed) {
    return Sending(network, chunks, seed).run();
}

}  // namespace syncopate::plan
