// What a launch fixes for a kernel: its scalar arguments, the tensors behind its parameters, its grid.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel {

/// A scalar argument: an int, float, bool, string (a dtype's name) or None.
struct NoneValue {
    bool operator==(const NoneValue&) const = default;
};
using Scalar = std::variant<NoneValue, bool, std::int64_t, double, std::string>;

/// The tensor behind a pointer or descriptor parameter. Shape and strides in elements, axis 0 first.
struct TensorArgument {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;  ///< empty: row-major contiguous
    plan::DType dtype = plan::DType::bf16;
    std::vector<std::int64_t> block;  ///< host-made descriptors: the block shape; otherwise empty
    /// The elements of an integer tensor, in row-major order, where the host knows them (offsets of
    /// sequences, a page table): what is loaded from it is then exact. Empty: not known.
    std::vector<std::int64_t> values{};
};

/// Everything that a launch fixes. A kernel is analysed for one set of arguments.
struct Arguments {
    std::map<std::string, Scalar> scalars;  ///< by parameter name; defaults in the signature fill the rest
    std::map<std::string, TensorArgument> tensors;  ///< by parameter name
    /// Programs per axis; derived for one-tile-per-program kernels when absent.
    std::optional<std::array<std::int64_t, 3>> grid;
    std::int32_t num_sms = 132;  ///< what a grid that asks for the number of SMs gets
};

/// Parses "M=512,ACT=None,x=1.5,flag=True" / "a_ptr=512x256:bf16[:256,1][@128x64]" / "3,2,2" /
/// "cu_seqlens=0,137,2178", or "cu_seqlens=@FILE" of such numbers with commas or white space between them.
[[nodiscard]] Result<std::map<std::string, Scalar>> parse_scalars(const std::string& text);
[[nodiscard]] Result<std::pair<std::string, TensorArgument>> parse_tensor(const std::string& text);
[[nodiscard]] Result<std::array<std::int64_t, 3>> parse_grid(const std::string& text);
[[nodiscard]] Result<std::pair<std::string, std::vector<std::int64_t>>> parse_values(const std::string& text);

/// Gives tensor `name` its elements. One that is not given yet becomes a vector of int32 (int64 where an
/// element needs it). Fails where it has elements already.
[[nodiscard]] Status set_values(Arguments& arguments, const std::string& name,
                                std::vector<std::int64_t> values);

}  // namespace syncopate::kernel
