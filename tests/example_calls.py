"""How tests call the three example kernels, plain and fused. `w` is K x N; kernels that want B as N x K get its transpose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import matmul_persistent_device_tma  # noqa: E402
import matmul_persistent_host_tma  # noqa: E402
import matmul_pointers  # noqa: E402


@dataclass(frozen=True)
class Blocks:
    m: int = 128
    n: int = 128
    k: int = 64
    group: int = 8
    programs: int = 132  # of a persistent kernel


@dataclass(frozen=True)
class Example:
    """`arguments(a, w, out, whole, blocks)`: grid and arguments, for `a` the whole input (M x K) or a rank's shard of it."""

    kernel: Any
    parameter: str  # the one that takes A
    arguments: Callable[..., tuple[tuple[int, ...], dict[str, Any]]]
    inline: str  # the backend by which its tiles store and load elsewhere

    def fuse(self, plan: Any, **options: Any) -> Any:
        import syncopate as sy

        return sy.fuse(self.kernel, plan, bind={self.parameter: "A"}, **options)

    def launch(
        self, kernel: Any, a: Any, w: Any, out: Any, blocks: Blocks = Blocks(), **options: Any
    ) -> None:
        """Runs `kernel`: this example's own or what `fuse` made of it. `out` is M x N with M rows of the whole input."""
        grid, arguments = self.arguments(a, w, out, blocks)
        kernel[grid](**arguments, **options)

    def stages(self, fused: Any, *tensors: tuple[Any, Any, Any], blocks: Blocks) -> list[Any]:
        """The calls of `fused`, which has this kernel for each of its stages: a, w and out of each."""
        calls = []
        for stage, (a, w, out) in enumerate(tensors):
            grid, arguments = self.arguments(a, w, out, blocks)
            calls.append(fused.call(stage, grid, **arguments))
        return calls


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def pointers(a, w, out, blocks):
    (m, n), k = out.shape, w.shape[0]
    grid = (cdiv(m, blocks.m) * cdiv(n, blocks.n),)
    sizes = {
        "M": m,
        "N": n,
        "K": k,
        "stride_am": k,
        "stride_ak": 1,
        "stride_bk": w.stride(0),
        "stride_bn": w.stride(1),
    }
    sizes |= {"stride_cm": out.stride(0), "stride_cn": out.stride(1)}
    blocking = {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "BLOCK_K": blocks.k, "GROUP_M": blocks.group}
    return grid, {"a_ptr": a, "b_ptr": w, "c_ptr": out, **sizes, **blocking}


def persistent(a, w, out, blocks):
    (m, n), k = out.shape, w.shape[0]
    programs = min(blocks.programs, cdiv(m, blocks.m) * cdiv(n, blocks.n))
    blocking = {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "BLOCK_K": blocks.k, "GROUP_M": blocks.group}
    return (programs,), {"M": m, "N": n, "K": k, "NUM_SMS": programs, **blocking}


def device_tma(a, w, out, blocks):
    grid, rest = persistent(a, w, out, blocks)
    return grid, {"a_ptr": a, "b_ptr": w.t().contiguous(), "c_ptr": out, **rest}


def host_tma(a, w, out, blocks):
    from triton.tools.tensor_descriptor import TensorDescriptor

    grid, rest = persistent(a, w, out, blocks)
    tensors = {
        "a_desc": TensorDescriptor.from_tensor(a, [blocks.m, blocks.k]),
        "b_desc": TensorDescriptor.from_tensor(w.t().contiguous(), [blocks.n, blocks.k]),
        "c_desc": TensorDescriptor.from_tensor(out, [blocks.m, blocks.n]),
    }
    return grid, {**tensors, **rest}


CALLS = {
    "matmul_pointers": Example(matmul_pointers.matmul_kernel, "a_ptr", pointers, "ldst_inline"),
    "matmul_persistent_device_tma": Example(
        matmul_persistent_device_tma.matmul_kernel, "a_ptr", device_tma, "tma_inline"
    ),
    "matmul_persistent_host_tma": Example(
        matmul_persistent_host_tma.matmul_kernel, "a_desc", host_tma, "tma_inline"
    ),
}


def numbers(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Small integers: their products and sums are exact in every dtype and order."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
