// The control block in use (its layout: emit/table.hpp): signals, faults, and what they mean to a person.
//
// Words 8 to 31, which emit/table.hpp leaves free, are the runtime's:
//   8  published: the epoch of the last call that began without a fault; the copy engine posts copies of this
//      word, so that after a fault its posts stay behind and the peers' waits fail too
//
// Word 0, the epoch, is set by begin on host. On cuda it is 1 at first and the last program of a call
// advances it, so that a kernel can start before its call has begun; begin counts with `published`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/schedule.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

namespace control {
inline constexpr std::int32_t published = 8;
inline constexpr std::int32_t num_header_words = emit::control::first_signal;
}  // namespace control

/// The fault word: 0, or 1 + the signal that did not come, or this bit and the rank whose fault ended this
/// call too.
inline constexpr std::uint32_t kFaultOfPeer = 0x8000'0000u;

/// Values of fault_where that are no slot.
inline constexpr std::int32_t kWhereBegin = -1;
inline constexpr std::int32_t kWhereEnd = -2;
inline constexpr std::int32_t kWhereTransfer = -16;  ///< minus the index in RankSchedule::transfers

/// The fault words of one rank's control block, as they were when read.
struct FaultRecord {
    std::uint32_t fault = 0;
    std::uint32_t seen = 0;     ///< the signal's value when the wait was given up
    std::uint32_t awaited = 0;  ///< the value it should have reached
    std::int32_t where = 0;     ///< slot, or one of the constants above
    std::uint32_t epoch = 0;    ///< the call in which it happened

    [[nodiscard]] bool any() const { return fault != 0; }
    [[nodiscard]] bool of_peer() const { return (fault & kFaultOfPeer) != 0; }
    [[nodiscard]] int peer() const { return static_cast<int>(fault & ~kFaultOfPeer); }
    [[nodiscard]] int signal() const { return static_cast<int>(fault) - 1; }
    /// From the first words of a control block.
    static FaultRecord from_words(const std::uint32_t* words);
};

/// What has not happened when a wait for `signal` of `rank` is not over: "chunk A[0:128, 0:256] from rank 2
/// (push, op 0 of rank 2) has not arrived".
[[nodiscard]] std::string describe_missing(const fuse::Schedule& schedule, int rank, int signal);

/// The error of a fault on `rank` in the op called `name`. `deadline_ms` is only told.
[[nodiscard]] Error fault_error(const fuse::Schedule& schedule, int rank, const std::string& name,
                                const FaultRecord& record, std::int64_t deadline_ms);

/// A control block in memory that this process reads and writes with the CPU (device host). Does not own it.
/// Every access is atomic; posting releases and waiting acquires, so what a rank wrote before a post is
/// visible to whoever has waited for it.
class HostControl {
public:
    HostControl() = default;
    explicit HostControl(std::uint64_t address) : words_(reinterpret_cast<std::uint32_t*>(address)) {}

    [[nodiscard]] std::uint32_t load(std::int32_t word) const;  ///< acquire
    void store(std::int32_t word, std::uint32_t value) const;   ///< release
    [[nodiscard]] std::uint32_t add(std::int32_t word,
                                    std::uint32_t value) const;  ///< the old value; acquire, release
    void post(std::int32_t signal, std::uint32_t epoch) const {
        store(emit::control::word_of(signal), epoch);
    }

    /// Whether `wait` is over in call `epoch`.
    [[nodiscard]] bool reached(const fuse::Wait& wait, std::uint32_t epoch) const;
    /// Blocks until it is. False when this control block has a fault, or gets one because the block's
    /// deadline passes.
    [[nodiscard]] bool wait(const fuse::Wait& wait, std::uint32_t epoch, std::int32_t where) const;
    /// Records that `wait` did not end; the first fault of a block stays.
    void raise(const fuse::Wait& wait, std::uint32_t epoch, std::int32_t where) const;
    /// Records that `rank` has a fault.
    void raise_peer(int rank) const;
    [[nodiscard]] bool faulty() const { return load(emit::control::fault) != 0; }
    [[nodiscard]] FaultRecord fault() const;

private:
    std::uint32_t* words_ = nullptr;
};

/// Waiting with the CPU: spins for a moment, then yields, then sleeps ever longer (up to 200 µs).
class Backoff {
public:
    void pause();

private:
    int count_ = 0;
};

}  // namespace syncopate::runtime
