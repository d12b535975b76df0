// What went wrong in a call: the fault words of a control block [P29] (emit/layout.hpp), and what they mean to a
// person.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/emit/layout.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"

namespace syncopate::runtime {

/// The bit of a fault word that says that the ranks' calls differ, as this rank has found: what each of them
/// calls is on the op's board (src/runtime/call/call_board.hpp).
inline constexpr std::uint32_t fault_differs = 0x40000000U;

/// The fault words of one rank's control block, as they were when read.
struct FaultRecord {
    std::uint32_t fault = 0;
    std::uint32_t seen = 0;     ///< the signal's value when the wait was given up
    std::uint32_t awaited = 0;  ///< the value it should have reached
    std::int32_t where = 0;     ///< slot, or one of the values below 0
    std::uint32_t epoch = 0;    ///< the call in which it happened

    [[nodiscard]] bool any() const { return fault != 0; }
    [[nodiscard]] bool of_peer() const { return (fault & emit::control::fault_of_peer) != 0; }
    [[nodiscard]] bool differs() const { return !of_peer() && (fault & fault_differs) != 0; }
    [[nodiscard]] int peer() const { return static_cast<int>(fault & ~emit::control::fault_of_peer); }
    [[nodiscard]] int signal() const { return static_cast<int>(fault) - 1; }
    /// From the first header_words of a control block.
    static FaultRecord from_words(const std::uint32_t* words);
};

/// What has not happened when a wait for `signal` of `rank` is not over: "chunk A[0:128, 0:256] from rank 2
/// (push, op 0 of rank 2) has not arrived".
[[nodiscard]] std::string describe_missing(const fuse::Schedule& schedule, int rank, int signal);

/// The error of a fault on `rank` in the op `called` so. `deadline_ms` is only told.
[[nodiscard]] Error fault_error(const fuse::Schedule& schedule, int rank, const std::string& called,
                                const FaultRecord& record, std::int64_t deadline_ms);

}  // namespace syncopate::runtime
