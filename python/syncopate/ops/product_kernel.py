"""The products behind the operators: by the plain kernels kernels.matmul and kernels.matmul_mixed, which also run on
host, or by kernels.gluon_matmul on Hopper, for inputs of 16 bits and of fp8, as the strategy says."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..call.stage_call import Call
from ..call.stated import without_filled
from ..host import interpreter
from ..kernels import matmul as kernels
from ..strategy import Tiling, gemm_tiles

if TYPE_CHECKING:
    from ..kernels.gluon_launch import GluonTiling
    from .scales import Scales


def require_activation(activation: str) -> None:
    """Raises ValueError unless the kernels here know it."""
    if activation not in kernels.ACTIVATIONS:
        raise ValueError(f"activation: expected one of {kernels.ACTIVATIONS}, got {activation!r}")


@dataclass
class Product:
    """c [m, n] = act(a [m, k] @ w [k, n] + bias [n]), or w [n, k] with `w_transposed`, by at most `programs` programs.
    `gluon`: by the stated kernel, not by a plain one. `scales`: of fp8 (ops.scales), which calls give for a and w.
    `whole_bias`: a bias is [m, n]."""

    m: int
    n: int
    k: int
    tiling: Tiling
    programs: int
    w_transposed: bool = False
    activation: str = ""
    gluon: bool = False
    scales: str = ""
    whole_bias: bool = False
    _workspace: torch.Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def kernel(self) -> Any:
        if self.gluon:
            from ..kernels.stated_matmul import stated_matmul

            return stated_matmul(self.w_transposed, scales=self.scales, whole_bias=self.whole_bias)
        return kernels.matmul_mixed if self.tiling.num_wide >= 0 else kernels.matmul

    @functools.cached_property
    def gluon_tiling(self) -> GluonTiling:
        from ..kernels.gluon_launch import GluonTiling

        t = self.tiling
        return GluonTiling(t.block_m, t.block_n, t.block_k, t.stages, t.split_k, t.group_m)

    @property
    def w_shape(self) -> tuple[int, int]:
        return (self.n, self.k) if self.w_transposed else (self.k, self.n)

    @property
    def grid(self) -> tuple[int]:
        if self.gluon:
            return self.gluon_tiling.grid(self.m, self.n, self.programs)
        return (gemm_programs(self.m, self.n, self.tiling, self.programs),)

    def call(
        self,
        a: torch.Tensor,
        w: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None = None,
        scales: Scales | tuple[()] = (),
        copy: torch.Tensor | None = None,
    ) -> Call:
        """What the kernel is called with; `a` may be a rank's shard of the whole. `copy` [m, k]: takes the whole, of the stated
        kernel."""
        if self.gluon:
            tiling = self.gluon_tiling
            return Call(self.grid, self.gluon_arguments(a, w, c, bias, scales, copy), tiling.options())
        return Call(self.grid, self.arguments(a, w, c, bias, scales), gemm_options(self.tiling))

    def run(
        self,
        a: torch.Tensor,
        w: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None = None,
        scales: Scales | tuple[()] = (),
    ) -> None:
        """Launches the unmodified kernel."""
        call = self.call(a, w, c, bias, scales)
        if not c.is_cuda:
            interpreter.repair_bf16()
        self.kernel[call.grid](**call.arguments, **call.options)

    def gluon_arguments(
        self,
        a: torch.Tensor,
        w: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None,
        scales: Scales | tuple[()],
        copy: torch.Tensor | None,
    ) -> dict[str, Any]:
        """Of kernels.gluon_matmul, without what is filled."""
        from ..kernels.gluon_launch import gluon_arguments, make_workspace

        tiling = self.gluon_tiling
        if self._workspace is None:
            self._workspace = make_workspace(tiling, self.m, self.n, w.device)
        return without_filled(
            gluon_arguments(
                _not_empty(a, self.k),
                w,
                c,
                (self.m, self.n, self.k),
                tiling,
                w_transposed=self.w_transposed,
                bias=bias,
                scales=scales or None,
                workspace=self._workspace,
                activation=self.activation,
                copy=copy,
                B_EARLY=True,  # w is nothing that a plan brings
            )
        )

    def arguments(
        self,
        a: torch.Tensor,
        w: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None,
        scales: Scales | tuple[()],
    ) -> dict[str, Any]:
        """Of a plain kernel."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        t = self.tiling
        split_store = 2 if t.block_n == 256 or t.num_wide >= 0 else 1

        def weights(width: int) -> Any:
            block = [width, t.block_k] if self.w_transposed else [t.block_k, width]
            return TensorDescriptor.from_tensor(w, block)

        arguments: dict[str, Any] = {
            "a_desc": TensorDescriptor.from_tensor(_not_empty(a, self.k), [t.block_m, t.block_k]),
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
        if scales:
            arguments |= {"scale_a_ptr": scales[0], "scale_b_ptr": scales[1], "SCALES": self.scales}
        if t.num_wide >= 0:
            arguments["b_narrow_desc"] = weights(t.block_n // 2)
            arguments["num_wide"] = t.num_wide
        else:
            arguments |= {"SPLIT_STORE": split_store, "WHOLE_BIAS": self.whole_bias}
        return arguments


def _not_empty(a: torch.Tensor, k: int) -> torch.Tensor:
    """A descriptor cannot be empty; a rank that holds nothing of `a` is given what it does not read."""
    return a if a.shape[0] else a.new_empty(1, k)


def gemm_programs(m: int, n: int, t: Tiling, programs: int) -> int:
    """The grid: a program for each tile, at most `programs`."""
    return min(programs, gemm_tiles(m, n, t))


def gemm_options(t: Tiling) -> dict[str, int]:
    return {"num_warps": t.num_warps, "num_stages": t.stages}
