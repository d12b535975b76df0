// How the channel between nodes carries a round: by sends and receives, or by one-sided puts (ncclPutSignal, from NCCL 2.29 on).
//
//   send   a group of NCCL's sends and receives, on multiprocessors that grids leave free
//   put    the receiver signals that its place is free; the sender puts its bytes there, and signals that they are: NCCL's copy
//          engines and network do that, on no multiprocessor
//
// Both hold a round up until both of its sides have come, so that one order of rounds is right for either (fuse/passes/channel.hpp).
// Device host does the same by both: there bytes leave when their receiver has said that it is there.
#pragma once

#include <cstdint>
#include <string>

#include "syncopate/result.hpp"

namespace syncopate::runtime {

enum class ChannelWay : std::uint8_t { send, put };

/// What SYNCOPATE_CHANNEL says, else `send`. The same on all ranks. Fails (ErrorClass::usage) where it says neither.
[[nodiscard]] Result<ChannelWay> channel_way();

/// What carries it on cuda, of the library that is loaded, in words: "NCCL 2.28.9 by sends and receives (it has no puts:
/// ncclPutSignal begins with 2.29)".
[[nodiscard]] std::string channel_on_cuda();

}  // namespace syncopate::runtime
