// Launch: where in a call the transfers by copy_engine, the sums and the collectives by nccl are launched, on
// which stream of a GPU, and what each waits for there.
//
// A stream does its steps one after another. It cannot compare a signal with the number of the call, nor give
// up; it can wait for gates [P22], and post by copies [P21]. So each wait of a step is covered in one of these
// ways:
//
//   in order   the call's begin implies it, or an earlier step of the same stream; or, of another stream,
//              an event
//   gate       this rank's kernel makes the chunk, sends it inline, or sums it: each of its tiles adds to
//              a gate
//   await      of a sum, which is a kernel anyway: another kernel, of one warp, polls the signals
//   relay      anything else, whoever does it (this rank's chunk engine, another rank): an op of no bytes
//              in the chunk engine's table waits for the signals, with the deadline, and opens a gate
//
//   chunk engine  | op 0 | op 2 ……| relay: op 2, rank 1's op 4 |
//   copies        | op 1 |                                     └ op 3: wait, close the gate, copy, post |
//
// Collectives [P25] that wait for nothing but the begin and each other come before the kernel, in its own stream:
// they need multiprocessors, which a kernel that waits for them would hold. The others are done among the
// copies.
//
// Copies that wait for nothing but the begin and each other are early: they start before the kernel is
// launched. From the first one on that waits for more, all are late: enqueued after the kernel, in the same
// order.
//
// Copies within a rank that wait for nothing and touch nothing that earlier transfers touch are local: they
// go first, in the kernel's own stream.
//
// A sum has an own part, which this rank's kernel makes, and contributions, which most often come earlier. The
// kernel that awaits the contributions of the first sum therefore starts before the own part is made: when the
// last of this rank's copies leaves whose tiles are made before the own part's. It does not start earlier, since
// its warp polls, nor after a copy that itself waits for a sum. Where no copy leaves (all goes inline, which is
// for short kernels) it starts with the fused kernel. It also waits for the own part's gate, and so do the
// awaiting kernels of later sums: a kernel follows a kernel within 1.5 us, but a wait of the stream in 5.
//
// No deadlock: a step waits only for ops that come before it in Graph::sorted, and for chunks. No hang: gates
// open also after a fault, so that copies go on [P30].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

/// The schedule with the step of every transfer that a stream carries out.
[[nodiscard]] Schedule launch(Schedule schedule);

/// Why no stream could carry out transfer `index` of the rank as its step says; empty if one can, and where
/// none does.
[[nodiscard]] std::string step_objection(const RankSchedule& schedule, std::size_t index);

/// By made chunk of `rank`: whether somebody polls a signal that it posts. If not, its gates are enough.
[[nodiscard]] std::vector<bool> polled_chunks(const RankSchedule& schedule, std::int32_t rank);

}  // namespace syncopate::fuse
