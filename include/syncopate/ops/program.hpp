// Program: what a strategy makes of a problem. An operator is a program as a user's is: kernels one after
// another around a plan.
//
//     outline    the plan, and what of it each kernel reads and makes: all that a caller with kernels of its
//                own needs
//     program    the same with the library's kernels as they state themselves (statements.hpp), analysed:
//                what fuse takes
//
// A strategy is complete here (tune::complete): what it leaves open is taken as by default, but tiles are not
// chosen. The same input gives the same plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// How a caller has its tensors, as far as a problem does not say.
struct Call {
    std::int32_t axis = 0;      ///< of x, along which it is gathered: 0 rows, 1 columns
    bool kept = false;          ///< what is gathered, or exchanged, stays in the heap for the caller
    bool w_transposed = false;  ///< w is given as [N, K]
    std::int32_t bias = 0;      ///< axes of what is added to a product: [N], or [M, N]; 0: nothing
    plan::DType ids = plan::DType::int64;  ///< of a mixture: of its topk_ids, or int32
};

/// Parameter of a kernel → tensor of the plan.
using Bindings = std::map<std::string, std::string>;

/// An operator without its kernels.
struct Outline {
    plan::Plan plan;
    std::vector<Bindings> bindings;  ///< of each kernel, one after another
    std::string input;               ///< the plan's tensor that is x; "": a kernel reads x itself
    std::string scales;              ///< likewise of the scales of x; "": they do not come with it
    std::string output;              ///< the plan's tensor that is y; "": a kernel writes y itself
};

/// Fails (ErrorClass::usage) for what the operator, or this strategy of it, cannot do, and for an operator
/// that is not in the table.
[[nodiscard]] Result<Outline> outline(const Problem& problem, const Strategy& strategy,
                                      const Call& call = {});

/// Fails as outline does, for a strategy that runs no fused kernel ("unfused", "apart"), for one without
/// tiles, and where a kernel cannot make such tiles.
[[nodiscard]] Result<fuse::StagedProgram> program(const Problem& problem, const Strategy& strategy,
                                                  const Call& call = {});

/// What of a strategy several nodes cannot do, as "nodes: …"; "" where they can, and on one node.
[[nodiscard]] std::string nodes_objection(const Problem& problem, const Strategy& strategy);

/// What fuse is told of a strategy; costs are the usual ones.
[[nodiscard]] fuse::Options fuse_options(const Strategy& strategy, fuse::Device device);

}  // namespace syncopate::ops
