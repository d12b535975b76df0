// Which function of a file is the kernel: the one that is named, as NAME or, where several have that name, as
// NAME@LINE; else the only one under @triton.jit that stores, itself or through what it calls, and that no
// other calls.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

/// Lowers `function` and every function of the file that it may call; adds them to `seen`.
[[nodiscard]] Status parse_reachable(Module& module, std::int32_t function, std::set<std::int32_t>& seen);

/// The functions under @triton.jit that no other calls, in the order of the file; of those that a later one
/// of the same name replaces, none.
[[nodiscard]] Result<std::vector<std::int32_t>> kernels_of(Module& module);

/// The kernel called `name`, or the only one of the file when that is empty. A line is that of the function's
/// name or of its first decorator, as Python counts it; where only one function has the name, it is not
/// looked at.
[[nodiscard]] Result<std::int32_t> choose_kernel(Module& module, const std::string& name);

}  // namespace syncopate::kernel::triton
