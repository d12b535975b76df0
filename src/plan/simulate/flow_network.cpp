#include "plan/simulate/flow_network.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

constexpr std::size_t kMostRefused = 1;  // that are asked when a flow ends, while a link is half full

}  // namespace

FlowNetwork::FlowNetwork(const Topology& topology) : topology_(topology) {
    for (const Link& link : topology.links) {
        add_pipe(link.gbps, link.contended);
    }
    const auto limit = [&](double gbps, std::vector<std::int32_t>& pipe_of) {
        pipe_of.push_back(gbps == kUnlimited ? -1 : static_cast<std::int32_t>(pipes_.size()));
        if (gbps != kUnlimited) add_pipe(gbps, 1);
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
    const Device& limits = topology_.devices[at(device)];
    return std::min({out, in, limits.egress_gbps, limits.ingress_gbps});
}

void FlowNetwork::add_pipe(double gbps, double contended) {
    pipes_.push_back({gbps * kBytesPerUs, contended, {}});
    share_.push_back(0);
    told_.push_back(0);
    num_sharers_.push_back(0);
    sharers_.resize(sharers_.size() + kMaxSharers);
    update_share(pipes_.size() - 1);
}

void FlowNetwork::update_share(std::size_t pipe) {
    const double sharers = num_sharers_[pipe];
    share_[pipe] = pipes_[pipe].bytes_per_us * (sharers > 1 ? pipes_[pipe].contended / sharers : 1);
}

void FlowNetwork::join(std::int32_t pipe, std::int32_t flow) {
    const auto at = static_cast<std::size_t>(pipe);
    sharers_[at * kMaxSharers + num_sharers_[at]++] = flow;
    update_share(at);
}

void FlowNetwork::leave(std::int32_t pipe, std::int32_t flow) {
    const auto at = static_cast<std::size_t>(pipe);
    const auto begin = sharers_.begin() + static_cast<std::ptrdiff_t>(at * kMaxSharers);
    const auto end = begin + num_sharers_[at];
    num_sharers_[at] = static_cast<std::uint8_t>(std::remove(begin, end, flow) - begin);
    update_share(at);
}

void FlowNetwork::set_path(std::int32_t flow, std::int32_t source, std::int32_t target,
                           const std::vector<std::int32_t>& links) {
    Flow& state = flows_[at(flow)];
    state.path = paths_.size();
    paths_.insert(paths_.end(), links.begin(), links.end());
    for (const std::int32_t limit : {egress_pipe_[at(source)], ingress_pipe_[at(target)]}) {
        if (limit >= 0) paths_.push_back(limit);
    }
    state.num_pipes = static_cast<std::uint32_t>(paths_.size() - state.path);
}

void FlowNetwork::begin(std::int32_t flow, double now, double bytes, double rate) {
    Flow& state = flows_[at(flow)];
    state.left = bytes;
    state.most = rate;
    const auto pipes = pipes_of(flow);
    if (pipes.empty()) return;
    Waiting next{flow, {}};
    for (std::size_t i = 0; i < next.first.size(); ++i) next.first[i] = pipes[std::min(i, pipes.size() - 1)];
    if (admit(next, now)) refresh(pipes, now);
}

std::int32_t FlowNetwork::full_pipe(const Waiting& next) const {
    const auto full = [&](std::int32_t pipe) { return num_sharers_[at(pipe)] >= kMaxSharers; };
    for (const std::int32_t pipe : next.first) {
        if (full(pipe)) return pipe;
    }
    const auto pipes = pipes_of(next.flow);
    const auto found = std::find_if(pipes.begin(), pipes.end(), full);
    return found == pipes.end() ? -1 : *found;
}

bool FlowNetwork::admit(const Waiting& next, double now) {
    if (const std::int32_t full = full_pipe(next); full >= 0) {
        pipes_[at(full)].waiting.push_back(next);
        return false;
    }
    Flow& state = flows_[at(next.flow)];
    state.since = now;
    state.rate = 0;
    for (const std::int32_t pipe : pipes_of(next.flow)) join(pipe, next.flow);
    return true;
}

void FlowNetwork::end(std::int32_t flow, double now) {
    Flow& state = flows_[at(flow)];
    ++state.version;
    const auto own = pipes_of(flow);
    std::vector<std::int32_t> touched(own.begin(), own.end());
    for (const std::int32_t pipe : touched) leave(pipe, flow);
    // Those in line come in before shares are told anew: where one takes another's place, nobody's share
    // changes.
    const std::size_t left = touched.size();
    for (std::size_t i = 0; i < left; ++i) {
        const auto id = static_cast<std::size_t>(touched[i]);
        std::deque<Waiting>& line = pipes_[id].waiting;
        std::size_t refused = 0;
        while (!line.empty() && num_sharers_[id] < kMaxSharers) {
            // Of a long line most wait for other links as well. The end of each flow that is left here asks
            // again.
            if (refused == kMostRefused && num_sharers_[id] >= kMaxSharers / 2) break;
            const Waiting next = line.front();
            line.pop_front();
            if (!admit(next, now)) {  // in line at another link, which is full
                ++refused;
                continue;
            }
            const auto pipes = pipes_of(next.flow);
            touched.insert(touched.end(), pipes.begin(), pipes.end());
        }
    }
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    refresh(touched, now);
}

void FlowNetwork::refresh(std::span<const std::int32_t> pipes, double now) {
    // A pipe's new share matters to flows that it slows down or has held back, and to those that are new. Few
    // are left to look at along their whole path.
    for (const std::int32_t id : pipes) {
        const auto pipe = static_cast<std::size_t>(id);
        const double before = std::exchange(told_[pipe], share_[pipe]);
        for (const std::int32_t flow : flows_on(id)) {
            const double rate = flows_[at(flow)].rate;
            const bool held_back = rate == before && before != share_[pipe];
            if (rate == 0 || share_[pipe] < rate || held_back) is_affected_[at(flow)] = 1;
        }
    }
    for (const std::int32_t id : pipes) {
        for (const std::int32_t flow : flows_on(id)) {
            if (std::exchange(is_affected_[at(flow)], 0) == 0) continue;
            Flow& state = flows_[at(flow)];
            double rate = state.most;
            for (const std::int32_t pipe : pipes_of(flow)) rate = std::min(rate, share_[at(pipe)]);
            if (rate == state.rate) continue;
            state.left = std::max(0.0, state.left - (now - state.since) * state.rate);
            state.since = now;
            state.rate = rate;
            changes_.push_back({flow, now + state.left / rate, ++state.version});
        }
    }
}

}  // namespace syncopate::plan
