// TCP connections between ranks, made once at set-up: each two of them have met by a token that the rendezvous
// carried.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/heap/file_descriptor.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

/// A connection to each of `peers`, whose lists have this rank, too; they do not block. Collective over all
/// ranks, also those without peers. Within one machine by its loop-back, else by the name of each host, or what
/// SYNCOPATE_HOST_ADDRESS says there. Fails on all ranks where one cannot connect, or is not `ready`.
[[nodiscard]] Result<std::map<int, FileDescriptor>> connect_ranks(Rendezvous& rendezvous,
                                                                  const std::string& label,
                                                                  const std::vector<int>& peers,
                                                                  const Status& ready = Done{});

}  // namespace syncopate::runtime
