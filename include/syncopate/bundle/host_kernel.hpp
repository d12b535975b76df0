// What runs on host in the place of compiled kernels: the library's products by a plain loop, and a user's kernels by
// functions that the user gives, a tile at a time. Both follow the schedule's table as a kernel does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "syncopate/bundle/program.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bundle {

/// A tensor of a kernel, and what of it a tile touches.
struct TileTensor {
    std::string parameter;
    std::uint64_t address = 0;  ///< of its first element
    plan::DType dtype = plan::DType::bf16;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  ///< elements
    std::vector<plan::Region> reads;
    std::vector<plan::Region> writes;
};

struct Tile {
    std::int32_t stage = 0;
    std::int64_t tile = 0;
    std::vector<TileTensor> tensors;  ///< by parameter, rising
};

/// Makes one tile.
using TileKernel = std::function<Status(const Tile& tile)>;

/// Runs all stages of a call of `op`. `tiles`: of a user's program; of an operator none, its products are made here,
/// of bf16, fp16 and fp32, added up as fp32. Fails for a schedule whose kernels do what only GPUs do.
[[nodiscard]] Result<runtime::Executable::HostKernels> host_kernels(std::shared_ptr<const Planned> planned,
                                                                    std::vector<runtime::Operand> operands,
                                                                    runtime::FusedOp& op, TileKernel tiles);

/// An element of bf16, fp16, fp32 or fp8e4m3 as a float, and back; `index`: elements from `address` on. What is larger than fp8e4m3's
/// largest becomes that, as a GPU converts.
[[nodiscard]] float element(plan::DType dtype, std::uint64_t address, std::int64_t index);
void set_element(plan::DType dtype, std::uint64_t address, std::int64_t index, float value);
inline constexpr float kLargestE4m3 = 448.0F;
/// act of kernels/matmul.py: "", "relu", "gelu" (with tanh), "silu".
[[nodiscard]] float activated(const std::string& activation, float value);

}  // namespace syncopate::bundle
