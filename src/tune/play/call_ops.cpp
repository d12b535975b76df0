#include "tune/play/call_ops.hpp"

#include <algorithm>
#include <map>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/over_nodes.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {

using fuse::Carrier;
using fuse::Edge;
using fuse::Node;
using fuse::NodeId;
using plan::Backend;

CallOps::CallOps(const fuse::Decisions& work, const std::vector<StageTiles>& stages, const Machine& machine,
                 const Strategy& strategy)
    : work_(work),
      graph_(work.graph),
      rates_(machine.rates),
      strategy_(strategy),
      sums_last_(std::ranges::any_of(stages, &StageTiles::sums_wait)),
      in_one_round_(std::ranges::all_of(stages, [](const StageTiles& of) { return of.rounds() <= 1; })),
      plan_(fuse::transfers_of(work.lowered, work.backends)),
      bytes_(at(graph_.num_ops()), 0),
      stored_by_sum_(at(graph_.num_ops()), 0),
      sent_on_(at(graph_.num_ops()), false),
      out_bytes_(plan_.ranks.size(), 0),
      first_sum_(plan_.ranks.size(), -1) {
    meet_between_nodes(work.lowered, graph_, plan_);
    look();
    if (!work.lowered.channel.empty()) started_ = in_start_order(plan_, graph_);
    set_links(machine);
}

plan::Backend CallOps::backend_of(NodeId op) const {
    const plan::OpRef ref = graph_.ref(op);
    return work_.backends[at(ref.rank)][at(ref.index)];
}

/// What of each op its edges say.
void CallOps::look() {
    for (NodeId op = 0; op < graph_.num_ops(); ++op) {
        const plan::Op& of = op_of(op);
        bytes_[at(op)] = static_cast<double>(plan_.bytes(of.dst));
        const bool remote = of.kind != plan::OpKind::local;
        NodeId& first = first_sum_[at(graph_[op].rank)];
        if (is_sum(op) && first < 0) first = op;
        if (graph_.carrier(op) == Carrier::tile_stores && remote)
            out_bytes_[at(graph_[op].rank)] += bytes_[at(op)];
        for (const Edge& edge : graph_.in[at(op)]) {
            if (edge.lag != 0) continue;
            if (!graph_.is_op(edge.from)) {
                follows_tiles_ = true;
            } else if (graph_[edge.from].kind == Node::Kind::sum) {
                sent_on_[at(edge.from)] = true;
                if (graph_.carrier(op) == Carrier::sum_stores)
                    stored_by_sum_[at(edge.from)] += bytes_[at(op)];
            }
        }
    }
    for (std::size_t stage = 0; stage < graph_.stages.size(); ++stage) {
        const auto& nodes = graph_.stages[stage];
        for (const NodeId first : nodes.first) {
            for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
                for (const Edge& edge : graph_.in[at(first + c)])
                    precedes_tiles_ |= edge.lag == 0 && graph_.is_op(edge.from);
            }
        }
    }
}

void CallOps::set_links(const Machine& machine) {
    links_ =
        links_for(machine, static_cast<std::int32_t>(plan_.ranks.size()), strategy_, plan_.mesh.num_nodes());
    std::size_t sent = 0, copied = 0;
    double largest = 0;
    for (NodeId op = 0; op < graph_.num_ops(); ++op) {
        if (graph_.carrier(op) != Carrier::own || is_side(op)) continue;
        if (graph_[op].rank == 0) ++copied;
        if (op_of(op).kind == plan::OpKind::local) continue;
        if (graph_[op].rank == 0) ++sent;
        largest = std::max(largest, bytes_[at(op)]);
    }
    if (sent > 0 && out_bytes_.front() > 0) {
        links_.sm.push_us = links_.sm.post_us = 0;  // with the tiles
    }
    if (follows_tiles_ && !precedes_tiles_) links_.start_us = 0;
    if (!precedes_tiles_) return;
    if (!fuse::is_engine(strategy_.backend)) {
        links_.start_us += rates_.kernel_us;
        return;
    }
    const auto blocks = static_cast<std::uint64_t>(strategy_.engine_blocks.value_or(1));
    at_once_ = strategy_.backend == Backend::ldst_dedicated && sent > 0 &&
               largest <= static_cast<double>(runtime::device::bytes_at_once(blocks, sent));
    if (at_once_) {
        // All chunks side by side, each by blocks of its own, which load their share before they store any.
        const double rate = static_cast<double>(blocks) * links_.sm.gbps_per_block;
        const double link = links_.links.empty() ? links_.sm.gbps : links_.links.front().gbps;
        if (rate > 0) links_.sm.gbps = link * rate / (link + rate);
        links_.sm.lanes = static_cast<std::int32_t>(copied);
        links_.sm.gbps /= static_cast<double>(sent);
        return;
    }
    links_.start_us += rates_.kernel_us;
    if (strategy_.backend == Backend::ldst_dedicated && plan_.ranks.front().size() > 1)
        links_.sm.gbps /= kEngineLanes;
}

double CallOps::ends_us() const {
    std::map<std::int32_t, std::int32_t> copies;  // by peer
    bool summed = false;
    for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
        if (is_sum(op) && fuse::is_engine(backend_of(op))) return rates_.sum_us;
        summed |= is_sum(op);
        if (graph_.carrier(op) != Carrier::own || op_of(op).kind != plan::OpKind::push) continue;
        const bool made = std::ranges::any_of(
            graph_.in[at(op)], [&](const Edge& edge) { return edge.lag == 0 && !graph_.is_op(edge.from); });
        if (made) ++copies[op_of(op).peer];
    }
    std::int32_t most = 0;
    for (const auto& [peer, count] : copies) most = std::max(most, count);
    if (most == 0) return 0;
    return rates_.copied_part_us * (most - 1) + (summed ? 0 : rates_.sum_us);
}

bool CallOps::sums_itself() const {
    return std::ranges::find(graph_.carriers, Carrier::programs) != graph_.carriers.end();
}

bool CallOps::sends_sums() const {
    if (plan_.ranks.size() < 3) return false;
    for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
        if (is_sum(op) && sent_on(op) && graph_.carrier(op) == Carrier::own &&
            !fuse::is_engine(backend_of(op)) && !sums_wait(op) && read_by_sum(op) == 0)
            return true;
    }
    return false;
}

double CallOps::stolen_us() const {
    if (out_bytes_.front() > 0 || in_one_round_) return 0;
    double us = 0, last = 0;
    for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
        if (!is_sum(op) || graph_.carrier(op) == Carrier::programs || sums_wait(op)) continue;
        const bool by_engine = fuse::is_engine(backend_of(op));
        const double read = read_by_sum(op);
        if (read > 0)  // a kernel takes multiprocessors, too
            last = rates_.kernel_us + (by_engine ? 0 : over(read, rates_.pulled_slow_gbps));
        else
            last = by_engine ? 0 : over(stored_by_sum_[at(op)], rates_.store_gbps);
        us += last;
    }
    return us - last;
}

double CallOps::read_by_sum(NodeId op) const {
    double reads = 0;
    for (const Edge& edge : graph_.in[at(op)]) {
        if (edge.lag == 0 && graph_.is_op(edge.from) && graph_.carrier(edge.from) == Carrier::sum_loads)
            reads += bytes_[at(op)];
    }
    if (const auto direct = work_.lowered.direct.find(graph_.ref(op)); direct != work_.lowered.direct.end())
        reads = bytes_[at(op)] * static_cast<double>(direct->second.size());
    return reads;
}

double CallOps::store_gbps(std::size_t rank) const {
    // What is summed of it and copied on meanwhile goes by the same link.
    const double out = out_bytes_[rank];
    const double gbps = rates_.tile_store_gbps.at(out / fuse::kMib);
    double beside = 0;
    for (NodeId op = graph_.first_op[rank]; op < graph_.first_op[rank + 1] && !sums_last_; ++op) {
        if (graph_.carrier(op) == Carrier::own && op_of(op).kind == plan::OpKind::push && of_sum(op))
            beside += bytes_[at(op)];
    }
    return out > 0 ? gbps * out / (out + beside) : gbps;
}

double CallOps::sum_us(NodeId op) const {
    const double stores = stored_by_sum_[at(op)];
    const double reads = read_by_sum(op);
    double summands = 1;
    for (const Edge& edge : graph_.in[at(op)]) summands += edge.lag == 0 && graph_.is_op(edge.from) ? 1 : 0;
    if (const auto direct = work_.lowered.direct.find(graph_.ref(op)); direct != work_.lowered.direct.end()) {
        summands = std::max(summands, static_cast<double>(direct->second.size()) + 1);
    }
    const double all = (summands + 1) * bytes_[at(op)];
    const Backend by = backend_of(op);
    if (fuse::is_engine(by)) {
        const bool follows = in_one_round_ && op != first_sum_[at(graph_[op].rank)];
        return (follows ? 0 : rates_.kernel_us) +
               over(reads > 0 ? reads + stores : all + stores,
                    rates_.engine_sums(strategy_.engine_blocks.value_or(0)));
    }
    if (graph_.carrier(op) == Carrier::programs) return over(all, 2 * rates_.memory_gbps);
    const double begins = begins_us(op);
    if (const auto direct = work_.lowered.direct.find(graph_.ref(op));
        direct != work_.lowered.direct.end() && direct->second.size() + 1 >= plan_.ranks.size())
        return begins + over(reads + stores, rates_.read_gbps);
    double us = begins + over(all, rates_.sum_gbps);
    if (reads > 0) us += over(reads, rates_.read_gbps);
    if (stores > 0 || (sent_on(op) && sums_wait(op))) us += rates_.store_us;
    if (stores > 0) us += over(stores, rates_.store_gbps);
    return us;
}

double CallOps::begins_us(NodeId op) const {
    // Of those that begin when all tiles have ended, the first one's launch covers most of the others'.
    const bool follows = sums_wait(op) && op != first_sum_[at(graph_[op].rank)];
    return follows ? std::min(rates_.sum_us, rates_.kernel_us) : rates_.sum_us;
}

bool CallOps::sums_wait(NodeId op) const {
    return graph_.carrier(op) == Carrier::own && !fuse::is_engine(backend_of(op)) && sums_last_;
}

std::int32_t CallOps::line_of(NodeId op) const {
    constexpr std::int32_t kSums = 64;
    const fuse::Lane& lane = work_.placement.lanes[at(op)];
    if (graph_.carrier(op) != Carrier::own || is_side(op)) return kSums + 1 + graph_.ref(op).index;
    if (graph_[op].kind == Node::Kind::sum) return kSums;
    if (lane.kind != fuse::LaneKind::copies) return -1;
    return crosses(op) ? 2 : lane.stream;
}

bool CallOps::crosses(NodeId op) const {
    return plan_.ranks.size() >= 3 && !fuse::is_engine(backend_of(op)) && of_sum(op);
}

double CallOps::crossing_us(NodeId op) const {
    const double us = over(bytes_[at(op)], rates_.crossing_gbps);
    if (!sums_last_ || links_.links.empty()) return us;
    // Those of sums that begin together go round the ranks in step: they meet half of the time.
    return us / 2 + over(bytes_[at(op)], links_.links.front().gbps) / 2;
}

bool CallOps::of_sum(NodeId op) const {
    return std::ranges::any_of(graph_.in[at(op)], [&](const Edge& edge) {
        return edge.lag == 0 && graph_.is_op(edge.from) && graph_[edge.from].kind == Node::Kind::sum;
    });
}

}  // namespace syncopate::tune
