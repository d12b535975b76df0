// The streams of a GPU on device host: a schedule that was fused for cuda is carried out by threads that
// do what streams would, in the same order, and wait for nothing but what fuse/passes/launch.hpp says a stream
// waits for. So what is wrong with that shows without a GPU. One more thread carries out the collectives that
// go by `host`, one after another: it waits for signals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/host/host_mover.hpp"
#include "syncopate/runtime/host/host_workers.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

class HostChannel;  // src/runtime/host/host_channel.hpp

class HostStreams {
public:
    /// `transfers`: those of `schedule`, by the same index, of which those of streams and collectives are
    /// done. `control`: of the rank whose schedule it is; `channel`: to other nodes, or null.
    HostStreams(std::vector<PreparedTransfer> transfers, const fuse::RankSchedule& schedule,
                HostControl control, HostChannel* channel, std::int64_t max_delay_us, std::uint64_t seed);

    void start(std::uint32_t epoch) { workers_.start(epoch); }  ///< the call before must have been joined
    void join() { workers_.join(); }  ///< until all is done, or given up because of a fault
    /// What transfer `index` sums on a stream; null when it does not. Only between calls.
    [[nodiscard]] PreparedSum* sum_of(std::size_t index);
    /// Gives transfer `index` other copies; false when it is not done here. Only between calls.
    bool set_copies(std::size_t index, std::vector<StridedCopy> copies);
    /// The next call is the first one again [P36].
    void renew() {
        for (std::size_t word = 0; word < done_.size(); ++word)
            done_words_.store(static_cast<std::int32_t>(word), 0);
    }

private:
    /// The transfers of a stream in order; returns early at a fault.
    void run(std::size_t stream, std::uint32_t epoch);
    /// Until all is there that the transfer waits for; false after a fault.
    [[nodiscard]] bool await(const PreparedTransfer& transfer, std::uint32_t epoch) const;
    [[nodiscard]] bool pass(const Gate& gate) const;
    [[nodiscard]] bool follow(std::size_t transfer, std::uint32_t epoch) const;

    std::vector<PreparedTransfer> transfers_;
    HostControl control_;
    HostChannel* channel_;
    std::vector<std::vector<std::size_t>>
        streams_;                    ///< transfers, by number; then collectives by host; none is empty
    std::vector<HostMover> movers_;  ///< by stream
    /// Those launched before the kernel, which late ones of other streams follow.
    std::vector<std::size_t> first_;
    std::vector<std::uint32_t> done_;  ///< the last call in which it was, by transfer
    HostControl done_words_;           ///< the same words
    HostWorkers workers_;              ///< one a stream; none where nothing goes by streams
};

}  // namespace syncopate::runtime
