// Host operators: which of the library's have kernels of their own on host, by the name of their row (ops/operators.hpp).
// The others' are products (host_kernel.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bundle {

struct HostOperator {
    std::string_view name;
    /// What runs all stages of a call of `op`; `scratch`: the address of scratch_of's memory.
    Result<runtime::Executable::HostKernels> (*make)(std::shared_ptr<const Planned> planned,
                                                     std::vector<runtime::Operand> operands,
                                                     runtime::FusedOp& op, std::uint64_t scratch);
};

/// nullptr: its kernels are products.
[[nodiscard]] const HostOperator* host_operator(std::string_view name);

}  // namespace syncopate::bundle
