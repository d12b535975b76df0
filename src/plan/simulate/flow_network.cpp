#include "plan/simulate/flow_network.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/plan/simulate/simulate.hpp"

namespace syncopate::plan {
namespace {

constexpr double kBytesPerMicrosecond = 1e3;  // of 1 GB/s

}  // namespace

FlowNetwork::FlowNetwork(const Topology& topology) : topology_(topology) {
    for (const Link& link : topology.links) {
        pipes_.push_back({link.gbps * kBytesPerMicrosecond, link.contended, {}, {}});
    }
    const auto limit = [&](double gbps, std::vector<std::int32_t>& pipe_of) {
        pipe_of.push_back(gbps == kUnlimited ? -1 : static_cast<std::int32_t>(pipes_.size()));
        if (gbps != kUnlimited) pipes_.push_back({gbps * kBytesPerMicrosecond, 1, {}, {}});
    };
    for (const Device& device : topology.devices) {
        limit(device.egress_gbps, egress_pipe_);
        limit(device.ingress_gbps, ingress_pipe_);
    }
}

double FlowNetwork::capacity_of_device(std::int32_t device) const {
    double out = 0;
    double in = 0;
    for (const Link& link : topology_.links) {
        if (link.from == device) out += link.gbps;
        if (link.to == device) in += link.gbps;
    }
    const Device& limits = topology_.devices[static_cast<std::size_t>(device)];
    return std::min({out, in, limits.egress_gbps, limits.ingress_gbps});
}

void FlowNetwork::set_path(std::int32_t flow, std::int32_t source, std::int32_t target,
                           const std::vector<std::int32_t>& links) {
    std::vector<std::int32_t>& pipes = flows_[static_cast<std::size_t>(flow)].pipes;
    pipes = links;
    if (egress_pipe_[static_cast<std::size_t>(source)] >= 0)
        pipes.push_back(egress_pipe_[static_cast<std::size_t>(source)]);
    if (ingress_pipe_[static_cast<std::size_t>(target)] >= 0)
        pipes.push_back(ingress_pipe_[static_cast<std::size_t>(target)]);
}

void FlowNetwork::begin(std::int32_t flow, double now, double bytes, double rate) {
    Flow& state = flows_[static_cast<std::size_t>(flow)];
    state.left = bytes;
    state.most = rate;
    if (admit(flow, now)) refresh(state.pipes, now);
}

bool FlowNetwork::admit(std::int32_t flow, double now) {
    Flow& state = flows_[static_cast<std::size_t>(flow)];
    for (const std::int32_t pipe : state.pipes) {
        if (pipes_[static_cast<std::size_t>(pipe)].flows.size() < kMaxSharers) continue;
        pipes_[static_cast<std::size_t>(pipe)].waiting.push_back(flow);
        return false;
    }
    state.since = now;
    state.rate = 0;
    for (const std::int32_t pipe : state.pipes) pipes_[static_cast<std::size_t>(pipe)].flows.push_back(flow);
    return true;
}

void FlowNetwork::end(std::int32_t flow, double now) {
    Flow& state = flows_[static_cast<std::size_t>(flow)];
    ++state.version;
    std::vector<std::int32_t> touched = std::exchange(state.pipes, {});
    for (const std::int32_t pipe : touched) std::erase(pipes_[static_cast<std::size_t>(pipe)].flows, flow);
    // Those in line come in before shares are told anew: where one takes another's place, nobody's share
    // changes.
    const std::size_t left = touched.size();
    for (std::size_t i = 0; i < left; ++i) {
        const auto id = static_cast<std::size_t>(touched[i]);
        while (!pipes_[id].waiting.empty() && pipes_[id].flows.size() < kMaxSharers) {
            const std::int32_t next = pipes_[id].waiting.front();
            pipes_[id].waiting.pop_front();
            if (!admit(next, now)) continue;  // in line at another link, which is full
            const std::vector<std::int32_t>& pipes = flows_[static_cast<std::size_t>(next)].pipes;
            touched.insert(touched.end(), pipes.begin(), pipes.end());
        }
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    refresh(touched, now);
}

void FlowNetwork::refresh(const std::vector<std::int32_t>& pipes, double now) {
    for (const std::int32_t id : pipes) {
        for (const std::int32_t flow : pipes_[static_cast<std::size_t>(id)].flows) {
            Flow& state = flows_[static_cast<std::size_t>(flow)];
            double rate = state.most;
            for (const std::int32_t pipe : state.pipes)
                rate = std::min(rate, pipes_[static_cast<std::size_t>(pipe)].share());
            if (rate == state.rate) continue;
            state.left = std::max(0.0, state.left - (now - state.since) * state.rate);
            state.since = now;
            state.rate = rate;
            changes_.push_back({flow, now + state.left / rate, ++state.version});
        }
    }
}

}  // namespace syncopate::plan
