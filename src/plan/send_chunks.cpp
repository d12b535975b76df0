#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "hop_clock.hpp"
#include "match_chunks.hpp"

namespace syncopate::plan {
namespace {

constexpr float kFar = std::numeric_limits<float>::infinity();

class Sending {
public:
    Sending(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed)
        : network_(network),
          chunks_(chunks),
          seed_(seed),
          clock_(network),
          count_(network.leaving.size()),
          held_(count_ * count_),
          waiting_(count_, 0) {
        for (const MovingChunk& chunk : chunks)
            mean_bytes_ += chunk.bytes / static_cast<double>(chunks.size());
        distance_.assign(count_ * count_, kFar);
        for (std::size_t to = 0; to < count_; ++to) find_distances(to);
        for (std::size_t chunk = chunks.size(); chunk-- > 0;) {
            const auto from = static_cast<std::size_t>(chunks[chunk].origin);
            const auto to = static_cast<std::size_t>(chunks[chunk].destination);
            if (from == to) continue;
            if (distance_[to * count_ + from] == kFar) {
                result_.unreachable = {{static_cast<std::int32_t>(chunk), chunks[chunk].destination}};
                continue;
            }
            hold(chunks[chunk].origin, static_cast<std::int32_t>(chunk));
        }
    }

    Matching run() {
        if (!result_.unreachable.empty()) return std::move(result_);
        do {
            clock_.attempt_marked([this](std::int32_t hop) { match(hop); });
        } while (clock_.advance([this](std::int32_t chunk, const Hop& hop) {
            if (hop.to != chunks_[static_cast<std::size_t>(chunk)].destination) hold(hop.to, chunk);
        }));
        return std::move(result_);
    }

private:
    double cost(const Hop& hop, double bytes) const {
        return hop.start_us + hop.wait_us + bytes * hop.us_per_byte + hop.post_us + hop.latency_us;
    }

    /// From everyone to `to`: Dijkstra's algorithm along entering hops.
    void find_distances(std::size_t to) {
        float* distance = distance_.data() + to * count_;
        using Entry = std::pair<float, std::int32_t>;
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
        distance[to] = 0;
        open.emplace(0.0F, static_cast<std::int32_t>(to));
        while (!open.empty()) {
            const auto [so_far, at] = open.top();
            open.pop();
            if (so_far > distance[static_cast<std::size_t>(at)]) continue;
            for (const std::int32_t id : network_.entering[static_cast<std::size_t>(at)]) {
                const Hop& hop = network_.hops[static_cast<std::size_t>(id)];
                const float further = so_far + static_cast<float>(cost(hop, mean_bytes_));
                if (further >= distance[static_cast<std::size_t>(hop.from)]) continue;
                distance[static_cast<std::size_t>(hop.from)] = further;
                open.emplace(further, hop.from);
            }
        }
    }

    void hold(std::int32_t at, std::int32_t chunk) {
        const auto to = static_cast<std::size_t>(chunks_[static_cast<std::size_t>(chunk)].destination);
        held_[static_cast<std::size_t>(at) * count_ + to].push_back(chunk);
        ++waiting_[static_cast<std::size_t>(at)];
    }

    void match(std::int32_t hop_id) {
        const Hop& hop = network_.hops[static_cast<std::size_t>(hop_id)];
        if (waiting_[static_cast<std::size_t>(hop.from)] == 0 || !clock_.is_free(hop)) return;
        const std::size_t to = choose(hop);
        if (to == count_) return;
        std::vector<std::int32_t>& held = held_[static_cast<std::size_t>(hop.from) * count_ + to];
        const std::int32_t chunk = held.back();
        held.pop_back();
        --waiting_[static_cast<std::size_t>(hop.from)];
        const MovingChunk& moving = chunks_[static_cast<std::size_t>(chunk)];
        result_.movements.push_back(clock_.start(chunk, hop_id, moving.bytes, moving.origin != hop.from));
        result_.makespan_us = std::max(result_.makespan_us, result_.movements.back().end_us);
    }

    /// Of the chunks here for which this hop begins a shortest way, the destination that is farthest; count_:
    /// none.
    std::size_t choose(const Hop& hop) const {
        const auto from = static_cast<std::size_t>(hop.from);
        const auto over = static_cast<std::size_t>(hop.to);
        const auto step_cost = static_cast<float>(cost(hop, mean_bytes_));
        std::size_t best = count_;
        float farthest = 0;
        for (std::size_t step = 0; step < count_; ++step) {
            const std::size_t to = (over + step + static_cast<std::size_t>(seed_) * 7919) % count_;
            const float here = distance_[to * count_ + from];
            if (here <= farthest || held_[from * count_ + to].empty()) continue;
            constexpr float kSame = 1.0001F;  // sums of the same figures in another order
            if (step_cost + distance_[to * count_ + over] > here * kSame) continue;
            farthest = here;
            best = to;
        }
        return best;
    }

    const HopNetwork& network_;
    const std::vector<MovingChunk>& chunks_;
    std::uint64_t seed_;
    HopClock clock_;
    std::size_t count_;
    double mean_bytes_ = 0;
    std::vector<std::vector<std::int32_t>> held_;  ///< by holder and destination: chunks, the next one last
    std::vector<std::int64_t> waiting_;            ///< by holder: chunks that have not left
    std::vector<float> distance_;                  ///< by destination and holder, µs
    Matching result_;
};

}  // namespace

Matching send_chunks(const HopNetwork& network, const std::vector<MovingChunk>& chunks, std::uint64_t seed) {
    return Sending(network, chunks, seed).run();
}

}  // namespace syncopate::plan
