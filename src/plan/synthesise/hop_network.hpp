// The connections that a synthesiser matches with chunks: ways from rank to rank through switches alone, and
// what each takes up while it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {

/// A way from one participant to another. Participants are numbered from 0.
struct Hop {
    std::int32_t from = 0;
    std::int32_t to = 0;
    bool crosses = false;             ///< leads into another node
    double start_us = 0;              ///< the engine's start-up; nothing moves yet
    double repeat_us = 0;             ///< the same where the lane has just used this connection
    double wait_us = 0;               ///< more of that, where the chunk came from another rank
    double us_per_byte = 0;           ///< of the slowest thing on the way
    double post_us = 0;               ///< the engine's, after the last byte
    double latency_us = 0;            ///< of the way, after that
    std::int32_t first_resource = 0;  ///< in HopNetwork::resources: the lane, then the links
    std::int32_t num_resources = 0;
};

struct HopNetwork {
    std::vector<Hop> hops;
    std::vector<std::vector<std::int32_t>> leaving;   ///< by participant: hops, nearest rank upwards first,
                                                      ///< the ones into other nodes last
    std::vector<std::vector<std::int32_t>> entering;  ///< by participant, likewise
    std::vector<std::int32_t> resources;
    std::vector<std::int32_t> capacity;  ///< by resource: how many may use it at once
    /// By participant: resources of which each leaving hop has one.
    std::vector<std::vector<std::int32_t>> lanes;
    /// By participant: resources of which each entering hop has one.
    std::vector<std::vector<std::int32_t>> entries;
    std::vector<std::int32_t> node_of;  ///< by participant, dense; a node whose members do not reach each
                                        ///< other inside it counts as one node each

    [[nodiscard]] std::span<const std::int32_t> resources_of(const Hop& hop) const {
        return std::span(resources).subspan(static_cast<std::size_t>(hop.first_resource),
                                            static_cast<std::size_t>(hop.num_resources));
    }
};

/// The connections between `ranks` (devices of `topology`), used by the copy engines, or, `by_sms`, by the
/// SMs, which alone sum. Between nodes the network's engine carries either, if there is one.
[[nodiscard]] HopNetwork hop_network(const Topology& topology, const std::vector<std::int32_t>& ranks,
                                     bool by_sms);

}  // namespace syncopate::plan
