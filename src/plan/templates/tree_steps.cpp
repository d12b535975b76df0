#include "plan/templates/tree_steps.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "plan/synthesise/hop_network.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// By hop the one that leads back, as fast; nullopt unless each has one, and links and lanes of its own.
std::optional<std::vector<std::int32_t>> turned_round(const HopNetwork& network) {
    std::vector<char> taken(network.capacity.size(), 0);
    for (const Hop& hop : network.hops) {
        for (const std::int32_t resource : network.resources_of(hop)) {
            if (std::exchange(taken[at(resource)], 1) != 0) return std::nullopt;
        }
    }
    std::vector<std::int32_t> back(network.hops.size(), -1);
    for (std::size_t i = 0; i < network.hops.size(); ++i) {
        const Hop& hop = network.hops[i];
        for (const std::int32_t id : network.entering[at(hop.from)]) {
            const Hop& other = network.hops[at(id)];
            if (other.from == hop.to && other.us_per_byte == hop.us_per_byte) back[i] = id;
        }
        if (back[i] < 0) return std::nullopt;
    }
    return back;
}

class Trees {
public:
    Trees(const HopNetwork& network, const std::vector<std::int32_t>& back,
          const std::vector<MovingChunk>& chunks, std::uint64_t seed)
        : network_(network),
          back_(back),
          chunks_(chunks),
          members_(network.leaving.size()),
          load_(network.hops.size(), 0),
          round_(chunks.size(), 0),
          up_(chunks.size() * members_, -1),
          missing_(chunks.size() * members_, 0),
          ready_(network.hops.size()),
          busy_(network.hops.size(), 0),
          last_(network.hops.size(), -1),
          seed_(static_cast<std::uint32_t>(seed)) {}

    std::optional<std::vector<TreeStep>> run() {
        std::vector<std::int32_t> rounds(members_, 0);  // by owner
        for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk)
            round_[chunk] = rounds[at(chunks_[chunk].origin)]++;
        // A chunk of each owner in turn, so that the early ones too are spread evenly.
        std::vector<std::vector<std::int32_t>> by_round;
        for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
            by_round.resize(std::max(by_round.size(), at(round_[chunk]) + 1));
            by_round[at(round_[chunk])].push_back(static_cast<std::int32_t>(chunk));
        }
        for (const std::vector<std::int32_t>& round : by_round) {
            for (const std::int32_t chunk : round) {
                if (!grow(chunk)) return std::nullopt;
            }
        }
        for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) begin(static_cast<std::int32_t>(chunk));
        for (std::size_t hop = 0; hop < ready_.size(); ++hop) start(static_cast<std::int32_t>(hop));
        while (!events_.empty()) {
            const auto [time, serial, chunk, hop, sums] = events_.top();
            events_.pop();
            now_ = time;
            busy_[at(hop)] = 0;
            const std::int32_t to = network_.hops[at(hop)].to;
            if (!sums) {
                spread_from(chunk, to);
            } else if (--missing(chunk, to) == 0) {
                summed(chunk, to);
            }
            start(hop);
        }
        return std::move(steps_);
    }

private:
    using Ready = std::tuple<std::int32_t, bool, std::int32_t>;  // round, spreads, chunk: lowest first
    using Event = std::tuple<double, std::uint64_t, std::int32_t, std::int32_t, bool>;

    /// The hop from a member towards the chunk's owner.
    std::int32_t& up(std::int32_t chunk, std::int32_t member) {
        return up_[at(chunk) * members_ + at(member)];
    }
    std::int32_t& missing(std::int32_t chunk, std::int32_t member) {
        return missing_[at(chunk) * members_ + at(member)];
    }

    /// The chunk's tree, from its owner (Prim, "Shortest connection networks and some generalizations", Bell
    /// Syst. Tech. J. 1957): the least loaded edge first, of equals the one nearest to the owner.
    bool grow(std::int32_t chunk) {
        using Candidate = std::tuple<double, std::int32_t, std::uint32_t, std::int32_t>;
        std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
        std::vector<std::int32_t> depth(members_, -1);
        const std::int32_t owner = chunks_[at(chunk)].origin;
        const double bytes = chunks_[at(chunk)].bytes;
        std::size_t reached = 0;
        const auto reach = [&](std::int32_t member, std::int32_t distance) {
            depth[at(member)] = distance;
            ++reached;
            for (const std::int32_t hop : network_.leaving[at(member)]) {
                if (depth[at(network_.hops[at(hop)].to)] >= 0) continue;
                const double time = load_[at(hop)] + bytes * network_.hops[at(hop)].us_per_byte;
                const std::uint32_t tie =
                    (static_cast<std::uint32_t>(hop) + static_cast<std::uint32_t>(chunk) * 31U + seed_) *
                    0x9e3779b9U;
                candidates.emplace(time, distance + 1, tie, hop);
            }
        };
        reach(owner, 0);
        while (!candidates.empty()) {
            const std::int32_t hop = std::get<3>(candidates.top());
            const std::int32_t distance = std::get<1>(candidates.top());
            candidates.pop();
            const std::int32_t member = network_.hops[at(hop)].to;
            if (depth[at(member)] >= 0) continue;
            up(chunk, member) = back_[at(hop)];
            ++missing(chunk, network_.hops[at(hop)].from);
            for (const std::int32_t way : {hop, back_[at(hop)]})
                load_[at(way)] += bytes * network_.hops[at(way)].us_per_byte;
            reach(member, distance);
        }
        return reached == members_;
    }

    void begin(std::int32_t chunk) {
        for (std::size_t member = 0; member < members_; ++member) {
            const auto id = static_cast<std::int32_t>(member);
            if (missing(chunk, id) == 0) summed(chunk, id);
        }
    }
    /// A member has joined all that come to it on the way to the owner.
    void summed(std::int32_t chunk, std::int32_t member) {
        if (member == chunks_[at(chunk)].origin) return spread_from(chunk, member);
        make_ready(up(chunk, member), {round_[at(chunk)], false, chunk});
    }
    void spread_from(std::int32_t chunk, std::int32_t member) {
        for (const std::int32_t hop : network_.leaving[at(member)]) {
            if (up(chunk, network_.hops[at(hop)].to) == back_[at(hop)])
                make_ready(hop, {round_[at(chunk)], true, chunk});
        }
    }
    void make_ready(std::int32_t hop, Ready step) {
        ready_[at(hop)].push(step);
        start(hop);
    }

    void start(std::int32_t hop_id) {
        if (busy_[at(hop_id)] != 0 || ready_[at(hop_id)].empty()) return;
        const auto [round, spreads, chunk] = ready_[at(hop_id)].top();
        ready_[at(hop_id)].pop();
        busy_[at(hop_id)] = 1;
        const Hop& hop = network_.hops[at(hop_id)];
        std::int32_t& last = last_[at(hop_id)];
        const bool other = last >= 0 && steps_[at(last)].sums == spreads;
        steps_.push_back({chunk, hop.from, hop.to, !spreads, other ? last : -1});
        last = static_cast<std::int32_t>(steps_.size()) - 1;
        const double end =
            now_ + hop.start_us + chunks_[at(chunk)].bytes * hop.us_per_byte + hop.post_us + hop.latency_us;
        events_.emplace(end, serial_++, chunk, hop_id, !spreads);
    }

    const HopNetwork& network_;
    const std::vector<std::int32_t>& back_;
    const std::vector<MovingChunk>& chunks_;
    std::size_t members_;
    std::vector<double> load_;           ///< by hop: µs of all trees so far
    std::vector<std::int32_t> round_;    ///< by chunk: of its owner's, the how-many-eth
    std::vector<std::int32_t> up_;       ///< by chunk and member
    std::vector<std::int32_t> missing_;  ///< by chunk and member: sums that have yet to come
    std::vector<std::priority_queue<Ready, std::vector<Ready>, std::greater<>>> ready_;  ///< by hop
    std::vector<char> busy_;                                                             ///< by hop
    std::vector<std::int32_t> last_;                                                     ///< by hop: step
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;              ///< arrivals
    std::uint64_t serial_ = 0;
    double now_ = 0;
    std::uint32_t seed_;
    std::vector<TreeStep> steps_;
};

}  // namespace

std::optional<std::vector<TreeStep>> tree_steps(const SynthesisSearch& search,
                                                const std::vector<MovingChunk>& chunks) {
    const HopNetwork network = hop_network(search.topology, search.members, true);
    const std::optional<std::vector<std::int32_t>> back = turned_round(network);
    if (!back) return std::nullopt;
    return Trees(network, *back, chunks, search.seed).run();
}

}  // namespace syncopate::plan
