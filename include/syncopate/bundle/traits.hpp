// Traits: what of a schedule a kernel is emitted, or compiled, for. Two schedules of one kernel with the same traits
// are run by the same code: only tables, numbers and shapes differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::bundle {

/// Of a stage. In capitals those that a stated kernel takes as constexprs (call/stated.py), in small letters those
/// that lines of an emitted one depend on; those that are 0 are left out.
[[nodiscard]] Traits traits_of(const fuse::StagedProgram& program, const fuse::Schedule& schedule,
                               std::size_t stage);

}  // namespace syncopate::bundle
