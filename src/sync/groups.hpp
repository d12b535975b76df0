// Which blocks of a producer share a semaphore: policies as partitions of its blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "sync/overlaps.hpp"
#include "syncopate/result.hpp"
#include "syncopate/sync/chain.hpp"

namespace syncopate::sync {

/// By block: its semaphore, numbered in the order of first blocks; -1: it posts none.
using Groups = std::vector<std::int32_t>;

/// Of a policy other than `none`, `automatic` and `custom`.
[[nodiscard]] Groups groups_of(const Policy& policy, const ChainStage& producer);

/// Of `custom`, numbered as written. Fails where a semaphore is negative or beyond kMostBlocks.
[[nodiscard]] Result<Groups> groups_as_written(const Policy& policy, const ChainStage& producer);

/// Of `automatic`: blocks share a semaphore if the same consumers need them; what nobody needs posts none.
[[nodiscard]] Groups groups_by_need(const Overlaps& needs, const ChainStage& producer);

/// The named policy that groups the blocks alike, else `custom`.
[[nodiscard]] PolicyKind recognise(const Groups& groups, const ChainStage& producer);

}  // namespace syncopate::sync
