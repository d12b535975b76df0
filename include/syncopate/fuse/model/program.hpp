// What fuse takes: a kernel with its bindings, and a plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

/// A kernel, a plan, and which parameter of the one is which tensor of the other. A parameter without a
/// binding is local: no transfer touches it.
struct Program {
    kernel::Kernel kernel;
    plan::Plan plan;
    std::map<std::string, std::string> bindings;  ///< parameter name → tensor name
};

/// One kernel of several that share a plan.
struct Stage {
    kernel::Kernel kernel;
    std::map<std::string, std::string> bindings;  ///< parameter name → tensor name
};

/// Kernels that run one after another in each call, around one plan. On each rank a stage begins when the one
/// before it has ended; so what one writes through a bound parameter a later one may read with no transfer.
/// Transfers of all stages run beside all of them.
struct StagedProgram {
    std::vector<Stage> stages;
    plan::Plan plan;
};

/// One kernel of a program beside a plan, the program's own or the lowered one: what a pass over one stage
/// looks at. It owns nothing.
struct BoundKernel {
    BoundKernel(const kernel::Kernel& kernel_of, const plan::Plan& plan_of,
                const std::map<std::string, std::string>& bindings_of)
        : kernel(kernel_of), plan(plan_of), bindings(bindings_of) {}
    BoundKernel(const Stage& stage, const plan::Plan& plan_of)
        : BoundKernel(stage.kernel, plan_of, stage.bindings) {}
    BoundKernel(const Program& program)  // NOLINT(google-explicit-constructor)
        : BoundKernel(program.kernel, program.plan, program.bindings) {}

    const kernel::Kernel& kernel;
    const plan::Plan& plan;
    const std::map<std::string, std::string>& bindings;  ///< parameter name → tensor name
};

}  // namespace syncopate::fuse
