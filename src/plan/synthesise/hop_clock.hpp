// The time of a time-expanded network: which resources are taken, and what happens next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/synthesise/hop_network.hpp"
#include "plan/synthesise/match_chunks.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {

/// Takes resources for movements and gives them back as time passes. Tells which participants are worth a
/// look then.
class HopClock {
public:
    explicit HopClock(const HopNetwork& network)
        : network_(network),
          taken_(network.capacity.size(), 0),
          last_hop_(network.capacity.size(), -1),
          marked_(network.leaving.size(), 0) {
        for (std::size_t i = 0; i < marked_.size(); ++i) mark(static_cast<std::int32_t>(i));
    }

    [[nodiscard]] double now() const { return now_; }

    [[nodiscard]] bool is_free(const Hop& hop) const {
        for (const std::int32_t resource : network_.resources_of(hop)) {
            const auto at = static_cast<std::size_t>(resource);
            if (taken_[at] >= network_.capacity[at]) return false;
        }
        return true;
    }

    /// Starts a movement; `forwarded`: the chunk came from another rank.
    Movement start(std::int32_t chunk, std::int32_t hop_id, double bytes, bool forwarded) {
        const Hop& hop = network_.hops[at(hop_id)];
        for (const std::int32_t resource : network_.resources_of(hop)) ++taken_[at(resource)];
        std::int32_t& last = last_hop_[at(network_.resources_of(hop).front())];
        const double start_up = std::exchange(last, hop_id) == hop_id ? hop.repeat_us : hop.start_us;
        const double last_byte = now_ + start_up + (forwarded ? hop.wait_us : 0) + bytes * hop.us_per_byte;
        const double end = last_byte + hop.post_us + hop.latency_us;
        schedule(last_byte, Kind::links_free, hop_id, chunk);
        schedule(last_byte + hop.post_us, Kind::lane_free, hop_id, chunk);
        schedule(end, Kind::arrival, hop_id, chunk);
        return {chunk, hop_id, now_, end};
    }

    /// Goes on to the next moment at which something happens; false: nothing does. arrive(chunk, hop) is
    /// called for what arrives then.
    template <typename Arrive>
    bool advance(Arrive arrive) {
        if (events_.empty()) return false;
        constexpr double kSameMoment = 1e-6;  // µs: sums of the same figures in another order
        now_ = std::get<0>(events_.top());
        while (!events_.empty() && std::get<0>(events_.top()) <= now_ + kSameMoment) {
            const auto [time, serial, kind, hop_id, chunk] = events_.top();
            events_.pop();
            const Hop& hop = network_.hops[at(hop_id)];
            const auto resources = network_.resources_of(hop);
            mark(hop.from);
            mark(hop.to);
            switch (kind) {
                case Kind::links_free:
                    for (std::size_t i = 1; i < resources.size(); ++i) --taken_[at(resources[i])];
                    // A link between switches may be what others, elsewhere, have waited for.
                    if (resources.size() > 3) {
                        for (std::size_t i = 0; i < marked_.size(); ++i) mark(static_cast<std::int32_t>(i));
                    }
                    break;
                case Kind::lane_free: --taken_[at(resources.front())]; break;
                case Kind::arrival: arrive(chunk, hop); break;
            }
        }
        return true;
    }

    /// Calls attempt(hop) for each hop out of and into the marked participants, nearest first, and unmarks
    /// them.
    template <typename Attempt>
    void attempt_marked(Attempt attempt) {
        std::vector<std::int32_t> look = std::exchange(list_, {});
        std::sort(look.begin(), look.end());
        for (const std::int32_t at : look) marked_[static_cast<std::size_t>(at)] = 0;
        std::size_t most = 0;
        for (const std::int32_t at : look) {
            most = std::max({most, network_.leaving[static_cast<std::size_t>(at)].size(),
                             network_.entering[static_cast<std::size_t>(at)].size()});
        }
        for (std::size_t slot = 0; slot < most; ++slot) {
            for (const std::int32_t at : look) {
                const auto& leaving = network_.leaving[static_cast<std::size_t>(at)];
                const auto& entering = network_.entering[static_cast<std::size_t>(at)];
                if (slot < leaving.size() && some_free(network_.lanes[static_cast<std::size_t>(at)]))
                    attempt(leaving[slot]);
                if (slot < entering.size() && some_free(network_.entries[static_cast<std::size_t>(at)]))
                    attempt(entering[slot]);
            }
        }
    }

private:
    enum class Kind : std::uint8_t { links_free, lane_free, arrival };
    using Event = std::tuple<double, std::uint64_t, Kind, std::int32_t, std::int32_t>;

    /// Spares a look at every hop of a participant that is busy.
    [[nodiscard]] bool some_free(const std::vector<std::int32_t>& resources) const {
        return std::any_of(resources.begin(), resources.end(), [&](std::int32_t resource) {
            return taken_[at(resource)] < network_.capacity[at(resource)];
        });
    }

    void mark(std::int32_t participant) {
        if (std::exchange(marked_[at(participant)], 1) == 0) list_.push_back(participant);
    }
    void schedule(double time, Kind kind, std::int32_t hop, std::int32_t chunk) {
        events_.emplace(time, serial_++, kind, hop, chunk);
    }

    const HopNetwork& network_;
    std::vector<std::int32_t> taken_;     ///< by resource
    std::vector<std::int32_t> last_hop_;  ///< by lane
    std::vector<char> marked_;            ///< by participant
    std::vector<std::int32_t> list_;      ///< those marked
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::uint64_t serial_ = 0;
    double now_ = 0;
};

}  // namespace syncopate::plan
