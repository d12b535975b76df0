// A second opinion on small plans, slow and obvious: it runs every interleaving, element by element. It
// shares nothing with src/plan but the types of a plan, so that an error would have to be made twice.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan::test {

struct ReferenceOptions {
    std::size_t parts = 1;     ///< a transfer reads and writes in so many separate steps, in any order
    bool explore_all = false;  ///< go on after the first thing wrong, to find every kind
    std::size_t max_states = 2000000;  ///< beyond this the verdict is not `complete`
};

struct ReferenceVerdict {
    bool ok = true;
    bool complete = true;           ///< every interleaving has been run (or enough to know that it is wrong)
    std::set<Finding::Kind> kinds;  ///< of what was found
    std::size_t states = 0;
};

/// Runs a well-formed plan (regions inside their tensors, peers and afters that exist) in every way that it
/// can go. An op starts when all that it waits for is done and the kernel has written what it reads of
/// `produced`; it is then "running" through its steps until it is done. Wrong are:
///   - a state in which nothing can go on and something is left (cycle)
///   - two running ops of which one writes what the other reads or writes, reductions of one kind excepted;
///   or
///     an op that writes, running while the kernel has still to write the same element
///   - an op that reads an element that holds nothing
///   - a sum that meets a contribution twice, or a value
///   - an element that at the end is not what `final` asks for
[[nodiscard]] ReferenceVerdict run_every_way(const Plan& plan, const ReferenceOptions& options = {});

}  // namespace syncopate::plan::test
