// The ops of a call: what is known of them before anything is played. Which links carry them, how long sums take, and
// which of them tiles wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "tune/play/over_nodes.hpp"
#include "tune/play/player.hpp"

namespace syncopate::tune {

class CallOps {
public:
    CallOps(const fuse::Decisions& work, const std::vector<StageTiles>& stages, const Machine& machine,
            const Strategy& strategy);

    [[nodiscard]] const plan::Plan& plan() const { return plan_; }
    [[nodiscard]] const plan::Topology& links() const { return links_; }
    [[nodiscard]] const plan::Op& op_of(fuse::NodeId op) const { return plan_.op(graph_.ref(op)); }
    [[nodiscard]] double bytes(fuse::NodeId op) const { return bytes_[at(op)]; }
    /// That a rank's tiles store at peers.
    [[nodiscard]] double out_bytes(std::size_t rank) const { return out_bytes_[rank]; }
    [[nodiscard]] bool follow_tiles() const { return follows_tiles_; }
    [[nodiscard]] bool precede_tiles() const { return precedes_tiles_; }
    [[nodiscard]] bool go_at_once() const { return at_once_; }  ///< all end with the last one
    /// µs from what is copied of the tiles' results until the call may end: each further copy to a peer, and
    /// what nobody sums is awaited by itself.
    [[nodiscard]] double ends_us() const;
    /// Whether the tiles' programs sum, too.
    [[nodiscard]] bool sums_itself() const;
    /// Whether a sum is for other ranks, too.
    [[nodiscard]] bool sent_on(fuse::NodeId sum) const { return sent_on_[at(sum)]; }
    /// Whether kernels beside the tiles sum what is sent on, while others are still made.
    [[nodiscard]] bool sends_sums() const;
    /// µs for which sums beside the tiles hold these up: by what they store at peers, or by each part that they
    /// fetch there. Nothing is beside the last one.
    [[nodiscard]] double stolen_us() const;
    [[nodiscard]] double store_gbps(std::size_t rank) const;
    /// How long a sum takes, with what it reads and stores elsewhere.
    [[nodiscard]] double sum_us(fuse::NodeId op) const;
    /// Of these, until a kernel has begun.
    [[nodiscard]] double begins_us(fuse::NodeId sum) const;
    /// Whether a sum is left little of each multiprocessor while tiles are made.
    [[nodiscard]] bool sums_wait(fuse::NodeId op) const;
    /// A send or a receive between nodes: rounds say when it begins.
    [[nodiscard]] bool is_side(fuse::NodeId op) const {
        return work_.lowered.channel.contains(graph_.ref(op));
    }
    /// What is simulated, and where an op of the plan is in it: over nodes ranks start ops in the order of rounds.
    [[nodiscard]] const plan::Plan& simulated() const { return started_ ? started_->plan : plan_; }
    [[nodiscard]] plan::OpRef simulated(plan::OpRef ref) const { return started_ ? started_->of(ref) : ref; }
    /// The line of its rank in which an op waits: its lane's, or, of what somebody carries out who is busy
    /// anyway, one of its own; negative: the engine's.
    [[nodiscard]] std::int32_t line_of(fuse::NodeId op) const;
    /// A copy of what a rank has summed, on three and more ranks: they meet each other.
    [[nodiscard]] bool crosses(fuse::NodeId op) const;
    /// µs of its bytes.
    [[nodiscard]] double crossing_us(fuse::NodeId op) const;

private:
    /// What a sum beside the tiles has made.
    [[nodiscard]] bool of_sum(fuse::NodeId op) const;
    [[nodiscard]] plan::Backend backend_of(fuse::NodeId op) const;
    [[nodiscard]] double read_by_sum(fuse::NodeId op) const;
    [[nodiscard]] bool is_sum(fuse::NodeId op) const { return graph_[op].kind == fuse::Node::Kind::sum; }
    void look();
    void set_links(const Machine& machine);

    const fuse::Decisions& work_;
    const fuse::Graph& graph_;
    const Rates& rates_;
    const Strategy& strategy_;
    bool sums_last_;     ///< sums are left little of each multiprocessor while tiles are made
    bool in_one_round_;  ///< all tiles are made at once
    plan::Plan plan_;
    std::optional<Started> started_;
    plan::Topology links_;
    std::vector<double> bytes_;            ///< by op
    std::vector<double> stored_by_sum_;    ///< by sum: bytes at peers
    std::vector<bool> sent_on_;            ///< by sum: some op moves it on
    std::vector<double> out_bytes_;        ///< by rank
    std::vector<fuse::NodeId> first_sum_;  ///< likewise; negative: none
    bool follows_tiles_ = false;
    bool precedes_tiles_ = false;
    bool at_once_ = false;
};

}  // namespace syncopate::tune
