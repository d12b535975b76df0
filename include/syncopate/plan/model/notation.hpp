// The short notations of the command line: "A:8192x4096:bf16" for a tensor, "node=2,gpu=4" for a mesh; and
// sizes in bytes as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// NAME:SIZExSIZE…:DTYPE. Fails (ErrorClass::usage) saying which part is wrong.
[[nodiscard]] Result<Tensor> parse_tensor(std::string_view text);

/// AXIS=SIZE,… in order, the last varying fastest. Fails (ErrorClass::usage) also above kMaxRanks or
/// kMaxAxes.
[[nodiscard]] Result<Mesh> parse_mesh(std::string_view text);

/// "512 B", "1.50 MiB": three significant digits or so, powers of 1024.
[[nodiscard]] std::string human_bytes(std::int64_t bytes);

}  // namespace syncopate::plan
