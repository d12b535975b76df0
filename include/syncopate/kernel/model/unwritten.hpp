// What a kernel leaves of its outputs as it was, in a launch whose grid somebody has given.
#pragma once

#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel {

/// By parameter that it surely writes a part of: which part no tile writes, in one line each, "FILE:LINE: …".
[[nodiscard]] std::vector<std::string> left_unwritten(const Kernel& kernel);

}  // namespace syncopate::kernel
