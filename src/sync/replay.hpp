// The blocks of a chain's calls as a system of counters and thresholds, and how it can run.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/generate.hpp"

namespace syncopate::sync {

/// The calls of a chain, unrolled: one where calls are ordered, else three, the fewest in which a block of
/// the middle one has both neighbours. A node is a block of a call, numbered call by call, stage by stage.
class Unrolled {
public:
    using Node = std::int32_t;

    struct NodeWait {
        std::int32_t semaphore;  ///< over all arrays
        std::int64_t threshold;  ///< posts since the first call began
    };

    Unrolled(const Chain& chain, const Synchronization& synchronization);

    [[nodiscard]] Node node(std::int32_t call, std::size_t stage, std::int64_t block) const {
        return static_cast<Node>(call * per_call_ + first_[stage] + block);
    }
    [[nodiscard]] std::int32_t num_calls() const { return calls_; }
    [[nodiscard]] Node num_nodes() const { return static_cast<Node>(waits_.size()); }
    [[nodiscard]] const std::vector<NodeWait>& waits(Node node) const { return waits_[at(node)]; }
    /// Steps of one replay.
    [[nodiscard]] std::int64_t effort() const { return effort_; }

    /// By node: whether it passes its waits in the run in which all blocks are resident and all but `held`
    /// complete as soon as they can. kNobody: none is held.
    static constexpr Node kNobody = -1;
    [[nodiscard]] std::vector<bool> passing(Node held) const;

    /// The first wait of each node that lacks posts when blocks run one at a time, in the worst order that
    /// tickets and the launch rule allow; -1: none lacks any.
    struct Stuck {
        std::int32_t wait = -1;
        std::int64_t posts = 0;  ///< that it has got by then
    };
    [[nodiscard]] std::vector<Stuck> stuck() const;

private:
    struct Waiter {
        std::int64_t threshold;
        Node node;
    };
    void add_call(const Synchronization& synchronization, std::int32_t call);

    const Chain& chain_;
    const Synchronization& synchronization_;
    std::int32_t calls_;
    std::int64_t per_call_ = 0;
    std::int64_t effort_ = 0;
    std::vector<std::int64_t> first_;               ///< by stage
    std::vector<std::int32_t> first_semaphore_;     ///< by array; one more entry for the end
    std::vector<std::vector<NodeWait>> waits_;      ///< by node
    std::vector<std::vector<std::int32_t>> posts_;  ///< by node
    std::vector<std::vector<Waiter>> waiters_;      ///< by semaphore, by threshold
};

}  // namespace syncopate::sync
