#include "syncopate/plan/topology/topology.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// Devices of one node that forward, with an engine for each peer that costs no time.
Topology plain(std::string name, std::int32_t size, const LinkOptions& options) {
    Topology topology;
    topology.name = std::move(name);
    topology.about = fmt::format("Generated: every link {:g} GB/s and {:g} µs; figures of no machine.",
                                 options.gbps, options.latency_us);
    topology.devices.resize(static_cast<std::size_t>(size));
    topology.copy_engine = {.per_peer = true};
    topology.sm = {.per_peer = true};
    topology.library_us = 10;
    topology.forwarding = true;
    return topology;
}

void connect(Topology& topology, std::int32_t a, std::int32_t b, const LinkOptions& options) {
    topology.links.push_back({a, b, options.gbps, options.latency_us, 1});
    topology.links.push_back({b, a, options.gbps, options.latency_us, 1});
}

Topology grid(std::string_view kind, const std::vector<std::int32_t>& sizes, bool closed,
              const LinkOptions& options) {
    std::int32_t count = 1;
    for (const std::int32_t size : sizes) count *= size;
    Topology topology = plain(fmt::format("{}:{}", kind, fmt::join(sizes, "x")), count, options);
    for (std::int32_t device = 0; device < count; ++device) {
        std::int32_t stride = count;
        for (const std::int32_t size : sizes) {
            stride /= size;
            const std::int32_t at = device / stride % size;
            if (at + 1 < size) {
                connect(topology, device, device + stride, options);
            } else if (closed && size > 2) {
                connect(topology, device, device - at * stride, options);
            }
        }
    }
    return topology;
}

}  // namespace

double Engine::rate() const { return blocks > 0 ? std::min(gbps, blocks * gbps_per_block) : gbps; }

std::int32_t Topology::num_nodes() const {
    std::int32_t last = -1;
    for (const Device& device : devices) last = std::max(last, device.node);
    return last + 1;
}

std::string Topology::vertex_name(std::int32_t vertex) const {
    return vertex < num_devices() ? std::to_string(vertex) : switches[at(vertex - num_devices())];
}

std::string Topology::link_name(std::size_t link) const {
    return vertex_name(links[link].from) + " -> " + vertex_name(links[link].to);
}

Topology ring_topology(std::int32_t size, const LinkOptions& options) {
    return grid("ring", {size}, true, options);
}

Topology torus_topology(const std::vector<std::int32_t>& sizes, const LinkOptions& options) {
    return grid("torus", sizes, true, options);
}

Topology mesh_topology(const std::vector<std::int32_t>& sizes, const LinkOptions& options) {
    return grid("mesh", sizes, false, options);
}

Topology switch_topology(std::int32_t size, const LinkOptions& options) {
    Topology topology = plain(fmt::format("switch:{}", size), size, options);
    topology.copy_engine.per_peer = topology.sm.per_peer = false;  // one port
    topology.switches = {"switch"};
    for (std::int32_t device = 0; device < size; ++device) connect(topology, device, size, options);
    return topology;
}

Topology nodes_topology(const Topology& node, std::int32_t nodes, std::int32_t places,
                        const LinkOptions& card) {
    Topology made = node;
    const std::int32_t devices = nodes * places;
    const auto switches = static_cast<std::int32_t>(node.switches.size());
    made.name = fmt::format("{} nodes of {} of {}", nodes, places, node.name);
    made.devices.clear();
    made.switches.clear();
    made.links.clear();
    const std::int32_t fabric = devices + nodes * switches;
    for (std::int32_t n = 0; n < nodes; ++n) {
        const auto vertex = [&](std::int32_t of) {
            return of < node.num_devices() ? n * places + of
                                           : devices + n * switches + of - node.num_devices();
        };
        const auto is_left_out = [&](std::int32_t of) { return of >= places && of < node.num_devices(); };
        for (std::int32_t place = 0; place < places; ++place) {
            Device device = node.devices[at(place)];
            device.node = n;
            made.devices.push_back(device);
        }
        for (const std::string& name : node.switches) made.switches.push_back(fmt::format("{}-{}", name, n));
        for (Link link : node.links) {
            if (is_left_out(link.from) || is_left_out(link.to)) continue;
            link.from = vertex(link.from);
            link.to = vertex(link.to);
            made.links.push_back(link);
        }
    }
    made.switches.emplace_back("fabric");
    for (std::int32_t device = 0; device < devices; ++device) {
        made.links.push_back({device, fabric, card.gbps, card.latency_us / 2});
        made.links.push_back({fabric, device, card.gbps, card.latency_us / 2});
    }
    made.network = Engine{.gbps = card.gbps};
    return made;
}

Routes::Routes(const Topology& topology)
    : topology_(topology),
      leaving_(static_cast<std::size_t>(topology.num_vertices())),
      arriving_(topology.devices.size()) {
    for (std::size_t link = 0; link < topology.links.size(); ++link) {
        leaving_[at(topology.links[link].from)].push_back(static_cast<std::int32_t>(link));
    }
}

void Routes::search(std::int32_t from) {
    using Distance = std::tuple<double, std::int32_t>;  // latency, links
    constexpr Distance kFar{kUnlimited, 0};
    std::vector<Distance> distance(leaving_.size(), kFar);
    std::vector<std::int32_t>& arriving = arriving_[at(from)];
    arriving.assign(leaving_.size(), -1);
    using Entry = std::tuple<Distance, std::int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    distance[at(from)] = {0, 0};
    open.emplace(Distance{0, 0}, from);
    while (!open.empty()) {
        const auto [so_far, vertex] = open.top();
        open.pop();
        if (so_far != distance[at(vertex)]) continue;
        if (vertex != from && vertex < topology_.num_devices() && !topology_.forwarding) continue;
        for (const std::int32_t id : leaving_[at(vertex)]) {
            const Link& link = topology_.links[at(id)];
            const Distance further{std::get<0>(so_far) + link.latency_us, std::get<1>(so_far) + 1};
            Distance& known = distance[at(link.to)];
            if (further >= known) continue;
            known = further;
            arriving[at(link.to)] = id;
            open.emplace(further, link.to);
        }
    }
}

bool Routes::append_path(std::int32_t from, std::int32_t to, std::vector<std::int32_t>& links) {
    if (arriving_[at(from)].empty()) search(from);
    const std::vector<std::int32_t>& arriving = arriving_[at(from)];
    if (from != to && arriving[at(to)] < 0) return false;
    while (to != from) {
        const std::int32_t link = arriving[at(to)];
        links.push_back(link);
        to = topology_.links[at(link)].from;
    }
    return true;
}

}  // namespace syncopate::plan
