// Host grouped: what brings rows to a user's grouped kernels (python/syncopate/kernels/ragged.py), as plain loops, for bundles
// for host. The user's tiles are made by a function of the caller's. As on a GPU the counts of a call are known to the ranks
// alone, and the tables of the stages behind the layout are made in each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bundle {

/// What runs all stages of a call of `op`, whose program is one of grouped kernels; `scratch`: the address of scratch_of's memory.
/// `tiles` is given a tile's number in its kernel's grid, and all of each tensor: which rows it has, the offsets say.
[[nodiscard]] runtime::Executable::HostKernels host_grouped(std::shared_ptr<const Planned> planned,
                                                            std::vector<runtime::Operand> operands,
                                                            runtime::FusedOp& op, std::uint64_t scratch,
                                                            TileKernel tiles);

}  // namespace syncopate::bundle
