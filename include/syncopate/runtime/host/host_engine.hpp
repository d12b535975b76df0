// The chunk engine on device host: interprets the same table as src/runtime/cuda/engine/engine.cu, with a
// thread where that one has a warp, and one more that posts [P27]: what is wrong with a table shows here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "syncopate/runtime/cuda/engine/engine_table.hpp"
#include "syncopate/runtime/host/host_workers.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

struct HostEngineOptions {
    std::uint32_t num_warps = 3;
    std::int64_t max_delay_us = 0;  ///< random pauses before pieces and posts, up to this
    std::uint64_t seed = 0;         ///< of the pauses
    std::uint32_t counted_blocks =
        0;  ///< of EngineKernel::counted, each of which adds to its op's posts; 0: posts are set
};

class HostEngine {
public:
    /// `control`: of the rank whose table it is.
    HostEngine(EngineTable table, HostControl control, const HostEngineOptions& options = {});

    /// From the next call on copies of `tensor` read `distance` bytes (modulo 2^64) behind where that is in
    /// the heap; false, and nothing changes, where the table has none that can.
    [[nodiscard]] bool shift_sources(std::int32_t tensor, std::uint64_t distance);
    /// Starts call `epoch`, one more than the call before (1 at first), which must have been joined.
    void start(std::uint32_t epoch) { workers_.start(epoch); }
    /// Returns when everything is done and posted, or given up because of a fault in the control block.
    void join() { workers_.join(); }

    /// The next call is the first one again [P36].
    void renew() {
        for (std::size_t word = 0; word < finished_.size(); ++word)
            counts_.store(static_cast<std::int32_t>(word), 0);
    }

private:
    void move(std::uint32_t warp, std::uint32_t epoch);
    void post(std::uint32_t epoch);
    [[nodiscard]] bool post_ops(std::uint32_t epoch);  ///< false: stopped at a fault
    void perform(const device::EngineOp& op, const device::EnginePiece& piece) const;
    void delay(std::uint32_t thread);

    EngineTable table_;
    std::uint64_t shift_ = 0;  ///< device::EngineArguments::source_shift
    HostControl control_;
    HostEngineOptions options_;
    std::vector<std::uint32_t> finished_;  ///< pieces, by counter, over all calls
    HostControl counts_;                   ///< the same words
    std::vector<std::mt19937_64> random_;  ///< by thread
    HostWorkers workers_;                  ///< the warps, then the one that posts; none for an empty table
};

}  // namespace syncopate::runtime
