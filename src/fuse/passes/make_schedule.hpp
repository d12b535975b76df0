// Number: from nodes and edges to the schedule that runtime and kernel follow: every wait and post by the
// number of a signal in a rank's control block, every tile by its slot, every transfer by its place in its
// rank's list.
//
// A rank's signals are those that somebody on it waits for. They come in this order: completions of ops by
// expected time, chunks that a kernel makes, `ready`, `consumed`.
#pragma once

#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::fuse {

[[nodiscard]] Schedule make_schedule(const Decisions& decisions);

}  // namespace syncopate::fuse
