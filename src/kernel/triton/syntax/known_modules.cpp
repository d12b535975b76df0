#include "kernel/triton/syntax/known_modules.hpp"

namespace syncopate::kernel::triton {
namespace {

/// What torch.compile's kernels compute indices and masks with. `//` and `%` are those of C at run time.
constexpr std::string_view kInductorHelpers = R"(
import triton
import triton.language as tl
from triton.language import math
from triton.language.extra import libdevice


@triton.jit
def promote_to_tensor(x):
    return x + tl.zeros((1,), tl.int1)


@triton.jit
def div_floor_integer(a, b):
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def remainder_integer(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((a < 0) != (b < 0)), rest + b, rest)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b)
)";

}  // namespace

std::string_view known_module(std::string_view path) {
    return path == "torch._inductor.runtime.triton_helpers" ? kInductorHelpers : std::string_view();
}

}  // namespace syncopate::kernel::triton
