// A mixture of experts on host: its six kernels (python/syncopate/kernels/moe.py) as plain loops. They make and follow the same
// tables as the device's, since how many tiles a stage has only a call knows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bundle {

/// Runs all stages of a call of `op`. `scratch`: the address of scratch_of's memory.
[[nodiscard]] Result<runtime::Executable::HostKernels> host_mixture(std::shared_ptr<const Planned> planned,
                                                                    std::vector<runtime::Operand> operands,
                                                                    runtime::FusedOp& op,
                                                                    std::uint64_t scratch);

}  // namespace syncopate::bundle
