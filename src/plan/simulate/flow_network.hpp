// Transfers that share links: who moves how fast, and when each will have moved its last byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
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
    void reserve(std::size_t flows) {
        flows_.resize(flows);
        is_affected_.resize(flows, 0);
    }

    void set_path(std::int32_t flow, std::int32_t source, std::int32_t target,
                  const std::vector<std::int32_t>& links);
    /// `bytes` start to move, at most at `rate` (bytes per µs), or wait in line for a link that is full.
    void begin(std::int32_t flow, double now, double bytes, double rate);
    void end(std::int32_t flow, double now);

    /// Flows whose end has moved since clear_changes().
    [[nodiscard]] const std::vector<Change>& changes() const { return changes_; }
    void clear_changes() { changes_.clear(); }
    [[nodiscard]] std::uint32_t version(std::int32_t flow) const { return flows_[at(flow)].version; }

    /// GB/s into or out of a device, whichever is less: its links together, and its own limit.
    [[nodiscard]] double capacity_of_device(std::int32_t device) const;

private:
    struct Flow {
        std::size_t path = 0;  ///< where its pipes begin in paths_
        std::uint32_t num_pipes = 0;
        std::uint32_t version = 0;
        double left = 0;  ///< bytes, at `since`
        double since = 0;
        double rate = 0;  ///< 0: not admitted, or not told yet
        double most = 0;
    };
    /// In a line, with the first pipes of its path: mostly one of them is full, and lines are gone through
    /// far more often than flows move.
    struct Waiting {
        std::int32_t flow = -1;
        std::array<std::int32_t, 7> first{};
    };
    /// A link, or one direction of a device's own limit.
    struct Pipe {
        double bytes_per_us = 0;
        double contended = 1;
        std::deque<Waiting> waiting;
    };

    [[nodiscard]] std::span<const std::int32_t> pipes_of(std::int32_t flow) const {
        const Flow& state = flows_[at(flow)];
        return std::span(paths_).subspan(state.path, state.num_pipes);
    }
    /// The flows on a pipe, in the order in which they came.
    [[nodiscard]] std::span<const std::int32_t> flows_on(std::int32_t pipe) const {
        const auto at = static_cast<std::size_t>(pipe);
        return std::span(sharers_).subspan(at * kMaxSharers, num_sharers_[at]);
    }
    void add_pipe(double gbps, double contended);
    void join(std::int32_t pipe, std::int32_t flow);
    void leave(std::int32_t pipe, std::int32_t flow);
    void update_share(std::size_t pipe);
    [[nodiscard]] std::int32_t full_pipe(const Waiting& next) const;  ///< the first on its path; -1: none
    bool admit(const Waiting& next, double now);                      ///< false: waits in line
    void refresh(std::span<const std::int32_t> pipes, double now);

    const Topology& topology_;
    std::vector<Pipe> pipes_;                ///< links, then limited egress and ingress
    std::vector<std::int32_t> egress_pipe_;  ///< by device; -1: unlimited
    std::vector<std::int32_t> ingress_pipe_;
    // By pipe, and apart from what is seldom looked at, so that they stay in the cache.
    std::vector<double> share_;  ///< of each flow on it
    std::vector<double> told_;   ///< the share that its flows have been told
    std::vector<std::uint8_t> num_sharers_;
    std::vector<std::int32_t> sharers_;  ///< kMaxSharers places a pipe
    std::vector<Flow> flows_;
    std::vector<std::int32_t> paths_;  ///< of all flows, one after another
    std::vector<char> is_affected_;    ///< by flow, within refresh
    std::vector<Change> changes_;
};

}  // namespace syncopate::plan
