"""The products behind the operators, by kernels.matmul and kernels.matmul_mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .arguments import DTYPE_NAMES
from .fused import Call
from .kernels import matmul as kernels
from .strategy import Tiling, gemm_tiles


def require_supported(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Raises ValueError for a product that the kernels here cannot do, saying why."""
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"expected dtype bf16, fp16 or fp32, got {dtype}")
    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K must be at least 1, got {m}, {n} and {k}")
    multiple = 16 // dtype.itemsize
    for name, extent in (("N", n), ("K", k)):
        if extent % multiple:
            raise ValueError(
                f"{name} must be a multiple of {multiple} for {DTYPE_NAMES[dtype]} (TMA takes rows of 16 bytes), got {extent}"
            )


def require_activation(activation: str) -> None:
    """Raises ValueError unless the kernels here know it."""
    if activation not in kernels.ACTIVATIONS:
        raise ValueError(f"activation: expected one of {kernels.ACTIVATIONS}, got {activation!r}")


@dataclass(frozen=True)
class Product:
    """c [m, n] = act(a [m, k] @ w [k, n] + bias [n]), or w [n, k] with `w_transposed`, by at most `programs` programs."""

    m: int
    n: int
    k: int
    tiling: Tiling
    programs: int
    w_transposed: bool = False
    activation: str = ""

    @property
    def kernel(self) -> Any:
        return kernels.matmul_mixed if self.tiling.num_wide >= 0 else kernels.matmul

    @property
    def w_shape(self) -> tuple[int, int]:
        return (self.n, self.k) if self.w_transposed else (self.k, self.n)

    @property
    def grid(self) -> tuple[int]:
        return (gemm_programs(self.m, self.n, self.tiling, self.programs),)

    def call(
        self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None = None
    ) -> Call:
        """What the kernel is called with; `a` may be a rank's shard of the whole."""
        return Call(self.grid, self.arguments(a, w, c, bias), gemm_options(self.tiling))

    def run(
        self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """Launches the unmodified kernel."""
        call = self.call(a, w, c, bias)
        self.kernel[call.grid](**call.arguments, **call.options)

    def arguments(
        self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None = None
    ) -> dict[str, Any]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        t = self.tiling
        if a.shape[0] == 0:
            a = a.new_empty(
                1, self.k
            )  # a descriptor cannot be empty; this rank holds nothing that could be read
        split_store = 2 if t.block_n == 256 or t.num_wide >= 0 else 1

        def weights(width: int) -> Any:
            block = [width, t.block_k] if self.w_transposed else [t.block_k, width]
            return TensorDescriptor.from_tensor(w, block)

        arguments: dict[str, Any] = {
            "a_desc": TensorDescriptor.from_tensor(a, [t.block_m, t.block_k]),
            "b_desc": weights(t.block_n),
            "c_desc": TensorDescriptor.from_tensor(c, [t.block_m, t.block_n // split_store]),
            "M": self.m,
            "N": self.n,
            "K": self.k,
            "BLOCK_M": t.block_m,
            "BLOCK_N": t.block_n,
            "BLOCK_K": t.block_k,
            "GROUP_M": t.group_m,
            "NUM_SMS": self.grid[0],
            "B_TRANSPOSED": self.w_transposed,
            "PRECISION": t.precision,
            "ACTIVATION": self.activation,
        }
        if bias is not None:
            arguments["bias_ptr"] = bias
        if t.num_wide >= 0:
            arguments["b_narrow_desc"] = weights(t.block_n // 2)
            arguments["num_wide"] = t.num_wide
        else:
            arguments["SPLIT_STORE"] = split_store
        return arguments


def gemm_programs(m: int, n: int, t: Tiling, programs: int) -> int:
    """The grid: a program for each tile, at most `programs`."""
    return min(programs, gemm_tiles(m, n, t))


def gemm_options(t: Tiling) -> dict[str, int]:
    # One warpgroup makes 128 x 128 of 16-bit inputs in 0.9 of two's time; fp32 comes in shorter blocks of K, and would spill.
    most = 128 * 128 if t.block_k >= 64 and t.num_wide < 0 else 64 * 128
    return {"num_warps": 4 if t.block_m * t.block_n <= most else 8, "num_stages": t.stages}
