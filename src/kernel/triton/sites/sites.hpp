// Where emit touches the source: the places at which the tile id enters the kernel, the tile loop, the last
// store and the reduction loop, from what the evaluation found.
#pragma once

#include <array>
#include <cstdint>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

/// Fails where an address follows from a variable that looks like a tile id and is none.
[[nodiscard]] Result<Sites> find_sites(const Module& module, std::int32_t kernel, const Evaluator& evaluator,
                                       const std::array<std::int64_t, 3>& grid);

}  // namespace syncopate::kernel
