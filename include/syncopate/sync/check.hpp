// Judges a chain. No finding means: whatever blocks are resident, in whatever order they start as far as
// tickets and the launch rule leave it open, and however long each takes, every block completes, and no block
// reads what is not written yet or overwrites what is still read.
//
// The proof is by replay. Semaphores only grow and waits are thresholds, so blocks that may run can only ever
// become more, and the greatest set of blocks that can complete is found by running whatever may run.
//
// - Two blocks conflict if one of them writes what the other one touches. The later one, in the order of
//   calls, stages and, of one stage, its tiles, must not pass its waits before the earlier one has completed.
//   It does in some run if and only if it can pass them when all blocks run but the earlier one, which
//   started and takes for ever. Where one of its semaphores counts every block that posts it, the earlier one
//   among them, that needs no replay.
// - A chain deadlocks in some run if and only if it does with one block at a time, each in the order of its
//   ticket: the first block that has not completed then lacks posts of blocks that have not started. More
//   resident blocks post more. Where no ticket orders blocks, each one may be the first.
//
// The kinds of findings:
//
//   malformed   grids, ranges, policies or orders make no sense, or the chain is too large to judge
//   early_read  a block can read what another one has not written
//   deadlock    a block can wait for ever
//   overwrite   a block can write what another one, of an earlier stage or of the call before, still reads or
//               writes, what an earlier tile of its own stage still reads, or what another tile of its own
//               stage writes and does not add to (ChainStage::adds)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/generate.hpp"

namespace syncopate::sync {

struct Finding {
    enum class Kind : std::uint8_t { malformed, early_read, deadlock, overwrite };
    Kind kind = Kind::malformed;
    std::string stage;                              ///< "" : about the whole chain
    std::array<std::int64_t, 3> block{-1, -1, -1};  ///< x, y, z; all -1: not about one block
    std::string message;

    /// "stage down block (0, 1, 0): early_read: …"
    [[nodiscard]] std::string to_string() const;
};

[[nodiscard]] std::string_view name_of(Finding::Kind kind);

struct Verdict {
    /// One for each stage, tensor and kind: the first block, and how many more.
    std::vector<Finding> findings;
    Synchronization synchronization;  ///< empty when malformed
    [[nodiscard]] bool ok() const { return findings.empty(); }
};

/// Never fails. Time: the overlaps of boxes, and where transitive waits have to prove something a replay for
/// each block that is not awaited directly; chains that would take more than 2e9 steps are refused
/// (malformed).
[[nodiscard]] Verdict check(const Chain& chain);

}  // namespace syncopate::sync
