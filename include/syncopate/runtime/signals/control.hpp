// The control block in use (its layout: emit/layout.hpp): signals and faults, as this process's CPU reads and
// writes them.
//
// Who writes `epoch` and `published`: [P1, P2] of docs/protocol.md. After a fault the copies of `published` by which
// the copy engine posts [P21] stay behind from the next call on, and the peers' waits fail too.
#pragma once

#include <cstdint>

#include "syncopate/emit/layout.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/runtime/signals/fault.hpp"

namespace syncopate::runtime {

/// A control block in memory that this process reads and writes with the CPU (device host). Does not own it.
/// Every access is atomic; posting [P3] releases and waiting acquires [P27].
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
    /// The same of a wait as a table has it (emit/layout.hpp): a word, and its lag and number of posts in one.
    [[nodiscard]] bool wait(std::int32_t word, std::int32_t lag_and_posts, std::uint32_t epoch,
                            std::int32_t where) const;
    /// The same as it is over.
    bool passed(const fuse::Wait& wait, std::uint32_t epoch) const;
    /// Blocks until word `word` of `of` has reached `value`, or, of `any`, is not 0. False after a fault here. No
    /// deadline: what is awaited is this rank's own.
    [[nodiscard]] bool until(const HostControl& of, std::int32_t word, std::uint32_t value,
                             bool any = false) const;
    /// Records that `wait` did not end; the first fault of a block stays.
    void raise(const fuse::Wait& wait, std::uint32_t epoch, std::int32_t where) const;
    /// The same of a word that several add to: what it was, and what it should have reached.
    void raise(std::int32_t signal, std::uint32_t seen, std::uint32_t awaited, std::uint32_t epoch,
               std::int32_t where) const;
    /// Records that `rank` has a fault.
    void raise_peer(int rank) const;
    /// Makes `word` the fault; the first one of a block stays: whether it was that.
    bool raise_word(std::uint32_t word) const;
    /// After a fault: call `epoch` is the first that has failed, unless there was one.
    void leave_call(std::uint32_t epoch) const;
    [[nodiscard]] bool faulty() const;
    [[nodiscard]] FaultRecord fault() const;

private:
    bool passed(std::int32_t word, std::uint32_t target) const;
    [[nodiscard]] bool wait_for(std::int32_t word, std::uint32_t target, std::uint32_t epoch,
                                std::int32_t where) const;
    [[nodiscard]] bool has_fault() const { return load(emit::control::fault) != 0; }

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
