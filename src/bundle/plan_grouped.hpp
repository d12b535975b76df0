// What a bundle of a user's grouped kernels runs (program.hpp).
#pragma once

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::bundle {

/// From the user's files: their analysis is what says which rows a tile awaits, and nothing of it is taken from elsewhere.
[[nodiscard]] Result<Planned> plan_grouped(const Bundle& bundle);

}  // namespace syncopate::bundle
