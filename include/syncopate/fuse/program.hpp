// What fuse takes: a kernel with its bindings, and a plan (DESIGN.md §5).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "syncopate/kernel/kernel.hpp"
#include "syncopate/plan/plan.hpp"

namespace syncopate::fuse {

/// A kernel, a plan, and which parameter of the one is which tensor of the other. A parameter without a
/// binding is local: no transfer touches it.
struct Program {
    kernel::Kernel kernel;
    plan::Plan plan;
    std::map<std::string, std::string> bindings;  ///< parameter name → tensor name
};

}  // namespace syncopate::fuse
