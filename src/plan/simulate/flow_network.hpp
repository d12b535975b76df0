// Transfers that share links: who moves how fast, and when each will have moved its last byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {

/// Flows are numbered by the caller. A link (and a device's egress and ingress, where they are limited)
/// divides its bandwidth equally among the flows on it; a flow moves at the least of its shares. See
/// simulate.hpp.
class FlowNetwork {
public:
    struct Change {
        std::int32_t flow;
        double end;             ///< µs
        std::uint32_t version;  ///< later changes of this flow have higher ones
    };

    explicit FlowNetwork(const Topology& topology);
    void reserve(std::size_t flows) { flows_.resize(flows); }

    void set_path(std::int32_t flow, std::int32_t source, std::int32_t target,
                  const std::vector<std::int32_t>& links);
    /// `bytes` start to move, at most at `rate` (bytes per µs), or wait in line for a link that is full.
    void begin(std::int32_t flow, double now, double bytes, double rate);
    void end(std::int32_t flow, double now);

    /// Flows whose end has moved since clear_changes().
    [[nodiscard]] const std::vector<Change>& changes() const { return changes_; }
    void clear_changes() { changes_.clear(); }
    [[nodiscard]] std::uint32_t version(std::int32_t flow) const {
        return flows_[static_cast<std::size_t>(flow)].version;
    }

    /// GB/s into or out of a device, whichever is less: its links together, and its own limit.
    [[nodiscard]] double capacity_of_device(std::int32_t device) const;

private:
    struct Flow {
        std::vector<std::int32_t> pipes;
        double left = 0;  ///< bytes, at `since`
        double since = 0;
        double rate = 0;
        double most = 0;
        std::uint32_t version = 0;
    };
    /// A link, or one direction of a device's own limit.
    struct Pipe {
        double bytes_per_us = 0;
        double contended = 1;
        std::vector<std::int32_t> flows;
        std::deque<std::int32_t> waiting;
        [[nodiscard]] double share() const {
            const std::size_t sharers = flows.size();
            return bytes_per_us * (sharers > 1 ? contended / static_cast<double>(sharers) : 1);
        }
    };

    bool admit(std::int32_t flow, double now);  ///< false: waits in line
    void refresh(const std::vector<std::int32_t>& pipes, double now);

    const Topology& topology_;
    std::vector<Pipe> pipes_;                ///< links, then limited egress and ingress
    std::vector<std::int32_t> egress_pipe_;  ///< by device; -1: unlimited
    std::vector<std::int32_t> ingress_pipe_;
    std::vector<Flow> flows_;
    std::vector<Change> changes_;
};

}  // namespace syncopate::plan
