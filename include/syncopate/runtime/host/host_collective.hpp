// A collective that a plan leaves direct, carried out by the ranks of device host together, where a GPU would
// call a library. Each participant reads what is its own from all others' memory:
//
//   post "joined" to all | wait until all have | read into a buffer | post "read" | wait | write its `dst`
//
// so that nothing is written before all is read. Sums are accumulated as fp32 in the order of the
// participants.
#pragma once

#include <cstdint>

#include "syncopate/runtime/call/collective.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::runtime {

/// Does it in call `epoch`; false after a fault, also when its own deadline has passed.
[[nodiscard]] bool collect_on_host(const PreparedCollective& collective, const HostControl& control,
                                   std::uint32_t epoch, std::int32_t where);

}  // namespace syncopate::runtime
