// A topology: the machine that a plan is simulated on, and that a synthesiser makes plans for.
//
// Vertices are devices (one a rank, numbered from 0) and switches; edges are directed links with a latency
// and a bandwidth. A transfer takes the path of least latency, then of fewest links; it passes through
// switches, and through other devices only where `forwarding` says that they pass traffic on by themselves.
//
//     device 0 ──396──►┐          ┌──396──► device 0      h200x8: one switch, each direction its own link,
//     device 1 ──396──►│ nvswitch │──396──► device 1      so a device's links are its egress and ingress
//        ⋮             └──────────┘            ⋮
//
// Units: bandwidths in GB/s (10^9 bytes per second), times in µs.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::plan {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// What carries out the transfers of a rank: its copy engine, or copies by some of its multiprocessors (SMs).
struct Engine {
    std::int32_t lanes = 1;  ///< transfers in flight at once; more wait in the order of the rank's list
    bool per_peer = false;   ///< so many for each peer, each with a line of its own
    double push_us = 0;      ///< from the start of a push to its first byte
    /// The same where the push before it in line had the same peer; else push_us.
    std::optional<double> repeat_us;
    double pull_us = 0;                 ///< the same of a pull
    double post_us = 0;                 ///< from the last byte until others see that the chunk is there
    double wait_us = 0;                 ///< added to an op that waits for an op of another rank
    double gbps = kUnlimited;           ///< of one transfer
    std::int32_t blocks = 0;            ///< SMs lent to it; 0: not made of SMs
    double gbps_per_block = 0;          ///< what each of them moves
    [[nodiscard]] double rate() const;  ///< GB/s of one transfer: `gbps`, or less where its blocks move less
    bool operator==(const Engine&) const = default;
};

struct Device {
    std::int32_t node = 0;            ///< devices of one node share a host
    double egress_gbps = kUnlimited;  ///< over all its links together
    double ingress_gbps = kUnlimited;
    bool operator==(const Device&) const = default;
};

inline constexpr double kBytesPerUs = 1e3;  ///< of 1 GB/s

/// One direction of a connection. Vertex v is device v, or switch v - num_devices().
struct Link {
    std::int32_t from = 0;
    std::int32_t to = 0;
    double gbps = 0;
    double latency_us = 0;
    double contended = 1;  ///< share of gbps that is left, in all, while several transfers use it at once
    bool operator==(const Link&) const = default;
};

struct Topology {
    std::string name;
    std::string about;  ///< where the figures come from
    std::vector<Device> devices;
    std::vector<std::string> switches;
    std::vector<Link> links;
    Engine copy_engine;
    Engine sm;                         ///< copies by multiprocessors; the only ones that reduce
    std::optional<Engine> network;     ///< what carries transfers between nodes; without: as inside a node
    double local_gbps = 1000;          ///< a copy within one device
    double local_us = 1;               ///< its start-up
    double library_us = 0;             ///< start-up of a collective that a library executes
    double library_gbps = kUnlimited;  ///< bytes into the busiest participant per time, after that
    double start_us = 0;      ///< from the start of a call to the first op of any rank: a graph's launch
    double skew_us = 0;       ///< ranks start up to so much apart
    bool forwarding = false;  ///< devices pass on what is not for them, without their engines
    bool operator==(const Topology&) const = default;

    [[nodiscard]] std::int32_t num_devices() const { return static_cast<std::int32_t>(devices.size()); }
    [[nodiscard]] std::int32_t num_vertices() const {
        return num_devices() + static_cast<std::int32_t>(switches.size());
    }
    [[nodiscard]] std::int32_t num_nodes() const;                      ///< largest node + 1
    [[nodiscard]] std::string vertex_name(std::int32_t vertex) const;  ///< "3", "nvswitch"
    [[nodiscard]] std::string link_name(std::size_t link) const;       ///< "3 -> nvswitch"
};

/// The topology in `text`, schema `syncopate.topology/1` (docs/topologies.md). Strict: an unknown, missing or
/// repeated key, a wrong type, a vertex that does not exist or a figure out of range is an error at its line,
/// with its path.
[[nodiscard]] Result<Topology> topology_from_json(std::string_view text, const std::string& file_name = {});

/// As JSON, one link a line, with a trailing newline; topology_from_json gives an equal one back.
[[nodiscard]] std::string to_json(const Topology& topology);

/// What `--topology` takes: the name of a topology that comes with Syncopate ("h200x8"), one that is
/// generated
/// ("ring:8", "torus:4x4", "mesh:8x8", "switch:16"), or a file. Fails (ErrorClass::usage) listing the names,
/// or with what is wrong in the file.
[[nodiscard]] Result<Topology> find_topology(const std::string& name);

/// What a plan of so many ranks is simulated on when nothing is said: h200x8, h200x8x2 above 8 ranks, a
/// switch above 16.
[[nodiscard]] Topology default_topology(std::int32_t ranks);

/// The names of those that come with Syncopate, sorted.
[[nodiscard]] std::vector<std::string> topology_names();

/// What the generators give each link; engines start in 1 µs and cost nothing else. Round figures of no
/// machine.
struct LinkOptions {
    double gbps = 50;
    double latency_us = 1;
};

// Generators. All connections go both ways; devices forward. Sizes are at least 1 and the devices at most
// kMaxRanks.
/// Device i beside i + 1, the last beside the first.
[[nodiscard]] Topology ring_topology(std::int32_t size, const LinkOptions& options = {});
/// A grid of sizes[0] × sizes[1] × …, devices in row-major order, neighbours linked along each axis; the ends
/// of an axis of three or more are linked too.
[[nodiscard]] Topology torus_topology(const std::vector<std::int32_t>& sizes,
                                      const LinkOptions& options = {});
/// The same with open ends.
[[nodiscard]] Topology mesh_topology(const std::vector<std::int32_t>& sizes, const LinkOptions& options = {});
/// Every device on one switch.
[[nodiscard]] Topology switch_topology(std::int32_t size, const LinkOptions& options = {});

/// `nodes` times the first `places` devices of `node` with what links them, each device beside a path of its own
/// to all other nodes, `card` (half of its latency each way to a fabric that does not block), with an engine that
/// costs nothing else. Place r of node n is device n * places + r. `node` has so many devices.
[[nodiscard]] Topology nodes_topology(const Topology& node, std::int32_t nodes, std::int32_t places,
                                      const LinkOptions& card);

/// Paths between the devices of a topology, found when first asked for: Dijkstra's algorithm by (latency,
/// links).
class Routes {
public:
    explicit Routes(const Topology& topology);  ///< `topology` must outlive it

    /// Appends the links from one device to another, the last one first; false if there is no way.
    bool append_path(std::int32_t from, std::int32_t to, std::vector<std::int32_t>& links);

private:
    void search(std::int32_t from);

    const Topology& topology_;
    std::vector<std::vector<std::int32_t>> leaving_;  ///< by vertex: links
    /// By source, once asked for; by vertex: last link, or -1.
    std::vector<std::vector<std::int32_t>> arriving_;
};

}  // namespace syncopate::plan
