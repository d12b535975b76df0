// What a kernel stores, as the passes ask that have its stores changed: inline.cpp sends them elsewhere,
// tile_sums.cpp adds to them.
#pragma once

#include <string>
#include <vector>

#include "syncopate/fuse/program.hpp"

namespace syncopate::fuse {

/// The parameter through which the kernel writes `tensor`; null if it does not.
[[nodiscard]] const kernel::Param* writer_of(const Program& program, std::int32_t tensor);

/// Why emit could not change some store through `param`, as `backend` (tma_inline, ldst_inline) would; empty
/// if it can: every store is written out in the kernel, in the form of that backend.
[[nodiscard]] std::string objection_to_stores(const kernel::Kernel& kernel, const kernel::Param& param,
                                              plan::Backend backend);

/// Why some tile's stores into `source` are not all in it, or (tma_inline) not whole blocks of rows; empty
/// if they are.
[[nodiscard]] std::string objection_to_tiles(const Program& program, const kernel::Param& param,
                                             const plan::Chunk& source, plan::Backend backend);

}  // namespace syncopate::fuse
