#include "plan/synthesise/hop_network.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

class Builder {
public:
    Builder(const Topology& topology, const std::vector<std::int32_t>& ranks, bool by_sms)
        : topology_(topology),
          ranks_(ranks),
          by_sms_(by_sms),
          direct_(without_forwarding(topology)),
          routes_(direct_) {}

    HopNetwork build() {
        network_.capacity.assign(topology_.links.size(), 1);
        network_.leaving.resize(ranks_.size());
        network_.entering.resize(ranks_.size());
        network_.lanes.resize(ranks_.size());
        network_.entries.resize(ranks_.size());
        const auto count = static_cast<std::int32_t>(ranks_.size());
        for (std::int32_t from = 0; from < count; ++from) {
            for (std::int32_t offset = 1; offset < count; ++offset) add(from, (from + offset) % count);
        }
        for (auto& hops : network_.entering) {
            std::sort(hops.begin(), hops.end(),
                      [&](std::int32_t a, std::int32_t b) { return offset_of(a) < offset_of(b); });
        }
        find_nodes();
        const auto inside_first = [&](std::vector<std::int32_t>& hops) {
            std::stable_partition(hops.begin(), hops.end(),
                                  [&](std::int32_t hop) { return !network_.hops[at(hop)].crosses; });
        };
        for (const Hop& hop : network_.hops) {
            // The lane comes first; of the links, the last one of the way.
            network_.lanes[at(hop.from)].push_back(network_.resources_of(hop)[0]);
            network_.entries[at(hop.to)].push_back(network_.resources_of(hop)[1]);
        }
        for (auto* all : {&network_.lanes, &network_.entries}) {
            for (std::vector<std::int32_t>& some : *all) {
                std::sort(some.begin(), some.end());
                some.erase(std::unique(some.begin(), some.end()), some.end());
            }
        }
        for (Hop& hop : network_.hops) hop.crosses = node(hop.from) != node(hop.to);
        for (auto& hops : network_.leaving) inside_first(hops);
        for (auto& hops : network_.entering) inside_first(hops);
        return std::move(network_);
    }

private:
    static Topology without_forwarding(Topology topology) {
        topology.forwarding = false;
        return topology;
    }

    /// How far up from the sender the receiver is.
    std::int32_t offset_of(std::int32_t hop_id) const {
        const Hop& hop = network_.hops[at(hop_id)];
        const auto count = static_cast<std::int32_t>(ranks_.size());
        return (hop.to - hop.from + count) % count;
    }

    std::int32_t node(std::int32_t participant) const { return network_.node_of[at(participant)]; }

    void add(std::int32_t from, std::int32_t to) {
        const std::int32_t source = ranks_[at(from)];
        const std::int32_t target = ranks_[at(to)];
        path_.clear();
        if (!routes_.append_path(source, target, path_)) return;
        const Device& sender = topology_.devices[at(source)];
        const Device& receiver = topology_.devices[at(target)];
        const bool far = sender.node != receiver.node && topology_.network.has_value();
        const Engine& engine = far ? *topology_.network : (by_sms_ ? topology_.sm : topology_.copy_engine);
        double gbps = std::min({engine.rate(), sender.egress_gbps, receiver.ingress_gbps});
        Hop hop;
        hop.from = from;
        hop.to = to;
        hop.start_us = engine.push_us;
        hop.repeat_us = engine.repeat_us.value_or(engine.push_us);
        hop.wait_us = engine.wait_us;
        hop.post_us = engine.post_us;
        hop.first_resource = static_cast<std::int32_t>(network_.resources.size());
        hop.num_resources = 1 + static_cast<std::int32_t>(path_.size());
        network_.resources.push_back(lane(from, far, engine, to));
        for (const std::int32_t link : path_) {
            gbps = std::min(gbps, topology_.links[at(link)].gbps);
            hop.latency_us += topology_.links[at(link)].latency_us;
            network_.resources.push_back(link);
        }
        hop.us_per_byte = 1 / (gbps * 1e3);
        const auto id = static_cast<std::int32_t>(network_.hops.size());
        network_.leaving[at(from)].push_back(id);
        network_.entering[at(to)].push_back(id);
        network_.hops.push_back(hop);
    }

    /// The sender's engine as a resource.
    std::int32_t lane(std::int32_t from, bool far, const Engine& engine, std::int32_t to) {
        const std::int64_t key =
            ((static_cast<std::int64_t>(from) << 20) + (engine.per_peer ? to + 1 : 0)) * 2 + (far ? 1 : 0);
        const auto [known, first] = lanes_.emplace(key, static_cast<std::int32_t>(network_.capacity.size()));
        if (first) network_.capacity.push_back(engine.lanes);
        return known->second;
    }

    /// Whether the members of each node reach each other inside it; of those that do not, each is a node by
    /// itself.
    void find_nodes() {
        const std::size_t count = ranks_.size();
        std::map<std::int32_t, std::vector<std::int32_t>> members;
        for (std::size_t i = 0; i < count; ++i)
            members[topology_.devices[at(ranks_[i])].node].push_back(static_cast<std::int32_t>(i));
        network_.node_of.assign(count, -1);
        std::int32_t next = 0;
        for (const auto& [id, all] : members) {
            const bool whole =
                reaches_all(all, network_.leaving, true) && reaches_all(all, network_.entering, false);
            for (const std::int32_t member : all) {
                network_.node_of[at(member)] = next;
                if (!whole) ++next;
            }
            if (whole) ++next;
        }
    }

    bool reaches_all(const std::vector<std::int32_t>& members,
                     const std::vector<std::vector<std::int32_t>>& edges, bool forward) const {
        std::vector<char> open(ranks_.size(), 0);
        for (const std::int32_t member : members) open[at(member)] = 1;
        std::vector<std::int32_t> stack{members.front()};
        open[at(members.front())] = 0;
        std::size_t reached = 1;
        while (!stack.empty()) {
            const auto at = static_cast<std::size_t>(stack.back());
            stack.pop_back();
            for (const std::int32_t id : edges[at]) {
                const Hop& hop = network_.hops[static_cast<std::size_t>(id)];
                const std::int32_t other = forward ? hop.to : hop.from;
                if (std::exchange(open[static_cast<std::size_t>(other)], 0) == 0) continue;
                ++reached;
                stack.push_back(other);
            }
        }
        return reached == members.size();
    }

    const Topology& topology_;
    const std::vector<std::int32_t>& ranks_;
    bool by_sms_;
    Topology direct_;  ///< without devices that forward
    Routes routes_;
    HopNetwork network_;
    std::map<std::int64_t, std::int32_t> lanes_;
    std::vector<std::int32_t> path_;
};

}  // namespace

HopNetwork hop_network(const Topology& topology, const std::vector<std::int32_t>& ranks, bool by_sms) {
    return Builder(topology, ranks, by_sms).build();
}

}  // namespace syncopate::plan
