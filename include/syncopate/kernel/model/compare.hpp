// Two descriptions of one kernel held against each other: a statement, and what the front end finds in a
// kernel of the same tile space.
#pragma once

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

/// Whether the tiles of both touch the same through all parameters that both have, whatever their numbers:
/// each tile of `stated` is held against the one of `found` that writes the same. Parameters of which one of
/// them does not know exactly what is touched are left out. Fails with the parameter and the tile.
[[nodiscard]] Status require_same_footprints(const Kernel& stated, const Kernel& found);

}  // namespace syncopate::kernel
