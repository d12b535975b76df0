"""The feed-forward block of a tensor-parallel transformer as one program of two stages:

y = sy.ops.feed_forward(x, w1, w2, activation="gelu")      reduce_scatter(act(all_gather(x) @ w1) @ w2)

all-gather of x | stage 1: h = act(x @ w1), as rows of x arrive | stage 2: partial = h @ w2          |
                                                                | rows leave as they are made, and are summed
"""

from __future__ import annotations

from typing import Any

import torch

from . import plans
from .fused import DTYPE_NAMES, OutputPlaces, check_operand
from .gemm import (
    PROGRAMS_ON_HOST,
    Tiling,
    choose_tiling,
    gemm_arguments,
    gemm_options,
    gemm_programs,
    require_supported,
)
from .group import Group, of_process_group
from .kernels import matmul as kernels
from .staged import Call, FusedStages, Stage


class FeedForward:
    """y = reduce_scatter(act(all_gather(x) @ w1) @ w2) for one shape: x [M / ranks, K], w1 [K, F], w2 [F, N] local, y
    [M / ranks, N], the sum over ranks of this rank's rows. F: this rank's part of the inner width.

    M need not be a multiple of the ranks: the first M % ranks of them hold one row more. `activation`: one of
    kernels.matmul.ACTIVATIONS, applied to the fp32 product before it is rounded. Each rank's product is rounded to
    `dtype` before the sum, which is accumulated as fp32 in rank order. Collective: all ranks construct and call it alike.
    """

    def __init__(
        self,
        m: int,
        k: int,
        f: int,
        n: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        activation: str = "",
        tilings: tuple[Tiling, Tiling] | None = None,
        rows: int = 1,
        split: int | None = None,
        pull: bool = False,
        deadline: float = 30.0,
        device: str = "cuda",
        backend: str = "auto",
        engine_blocks: int = 8,
        **options: Any,
    ) -> None:
        """`rows`: chunks of a shard of x along M; `split`: of a shard of y."""
        require_supported(m, f, k, dtype)
        require_supported(m, n, f, dtype)
        if activation not in kernels.ACTIVATIONS:
            raise ValueError(
                f"activation: expected one of {', '.join(kernels.ACTIVATIONS)}, got {activation!r}"
            )
        self.m, self.k, self.f, self.n, self.dtype, self.activation = m, k, f, n, dtype, activation
        self.group = group if isinstance(group, Group) else of_process_group(group, device)
        cuda = self.group.device == "cuda"
        self.device = torch.device("cuda", self.group.ordinal) if cuda else torch.device("cpu")
        num_sms = self.group.multiprocessors(PROGRAMS_ON_HOST)
        engine = cuda and backend in ("tma_dedicated", "ldst_dedicated")
        programs = num_sms - (engine_blocks if engine else 0)
        self.tilings = tilings or (
            choose_tiling(m, f, k, dtype, programs),
            choose_tiling(m, n, f, dtype, programs),
        )
        size, name = self.group.size, DTYPE_NAMES[dtype]
        mesh = plans.mesh_of(size)
        self.plan = plans.join(
            [
                plans.all_gather(mesh, plans.Tensor("X", (m, k), name), 0, rows, pull=pull),
                plans.push_reduce(
                    mesh,
                    plans.Tensor("C", (m, n), name),
                    0,
                    split or 1,
                ),
            ],
            [plans.Tensor("H", (m, f), name)],
        )
        self._places = OutputPlaces(self.plan, self.group.rank, "C")
        up, down = (kernels.matmul_mixed if t.num_wide >= 0 else kernels.matmul for t in self.tilings)
        stages = [
            Stage(up, {"a_desc": "X", "c_desc": "H"}),
            Stage(down, {"a_desc": "H", "c_desc": "C"}),
        ]
        self.fused = FusedStages(
            stages, self.plan, self.group, deadline, backend=backend, engine_blocks=engine_blocks, **options
        )
        self.grids = [
            (gemm_programs(m, columns, tiling, programs),)
            for columns, tiling in zip((f, n), self.tilings, strict=True)
        ]
        self._packed: dict[tuple[int, int], list[tuple]] = {}

    @property
    def shard_rows(self) -> int:
        """Rows of x and of y on this rank."""
        base, extra = divmod(self.m, self.group.size)
        return base + (self.group.rank < extra)

    def calls(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> list[Call]:
        """Of both stages, h [M, F] = act(x @ w1) and c [M, N] = h @ w2, x [M, K]."""
        m, (up, down), (first, second) = self.m, self.tilings, self.grids
        return [
            Call(
                first,
                gemm_arguments(m, self.f, self.k, up, first[0], False, x, w1, h, self.activation),
                gemm_options(up),
            ),
            Call(
                second,
                gemm_arguments(m, self.n, self.f, down, second[0], False, h, w2, c),
                gemm_options(down),
            ),
        ]

    def _stand_in(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self.dtype, device=self.device)

    def __call__(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        self._check(x, w1, w2, out)
        if out is None:
            out = self._stand_in(self.shard_rows, self.n)
        if self.fused.op is None:
            places = (self._stand_in(self.m, width) for width in (self.k, self.f, self.n))
            x_all, h, c = places
            self.fused.prepare(self.calls(x_all, w1, w2, h, c))
        op, heap = self.fused.op, self.fused.tensors
        op.set_input("X", x.data_ptr(), x.stride())
        self._places.give(op, out)
        if self.group.device == "host":
            self.fused(self.calls(heap["X"], w1, w2, heap["H"], heap["C"]))
            return out
        key = (w1.data_ptr(), w2.data_ptr())
        if key not in self._packed:
            self._packed[key] = self.fused.pack(self.calls(heap["X"], w1, w2, heap["H"], heap["C"]))
        self.fused.launch(self._packed[key])
        return out

    def unfused(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        """The unmodified kernels on the whole input x [M, K], one after the other: c, this rank's part of the sum."""
        for stage, call in zip(self.fused.stages, self.calls(x, w1, w2, h, c), strict=True):
            stage.kernel[call.grid](**call.arguments, **call.options)
        return c

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        self.fused.check()

    def close(self) -> None:
        """Frees the heap. Collective."""
        self._packed.clear()
        self.fused.close()

    def _check(self, x, w1, w2, out) -> None:
        expected = {
            "x": (x, (self.shard_rows, self.k)),
            "w1": (w1, (self.k, self.f)),
            "w2": (w2, (self.f, self.n)),
        }
        if out is not None:
            expected["out"] = (out, (self.shard_rows, self.n))
        for name, (tensor, shape) in expected.items():
            check_operand(name, tensor, shape, self.dtype, self.group.device)
            if tensor.numel() and not (tensor.is_contiguous() or name in ("x", "out")):
                raise ValueError(f"{name}: it must be contiguous")
            if tensor.numel() and tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name}: the last axis must be contiguous, its stride is {tensor.stride(-1)}"
                )


_cache: dict[tuple, FeedForward] = {}


def feed_forward(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group: Group | Any | None = None,
    out: torch.Tensor | None = None,
    *,
    activation: str = "",
) -> torch.Tensor:
    """reduce_scatter(act(all_gather(x) @ w1) @ w2), fused. x: this rank's rows [M / ranks, K], w1: [K, F], w2: [F, N];
    returns [M / ranks, N]. `activation`: "", "relu", "gelu" or "silu". dtypes: bf16, fp16, fp32.

    The same number of rows on every rank. Collective over `group` (a torch process group; default: the world). The first
    call with a shape sets it up.
    """
    device = "cuda" if x.is_cuda else "host"
    members = group if isinstance(group, Group) else of_process_group(group, device)
    if (
        x.dim() != 2
        or w1.dim() != 2
        or w2.dim() != 2
        or x.shape[1] != w1.shape[0]
        or w1.shape[1] != w2.shape[0]
    ):
        shapes = ", ".join(str(list(t.shape)) for t in (x, w1, w2))
        raise ValueError(f"expected x [rows, K], w1 [K, F] and w2 [F, N], got {shapes}")
    m, k, f, n = x.shape[0] * members.size, x.shape[1], w1.shape[1], w2.shape[1]
    key = (m, k, f, n, x.dtype, activation, id(members))
    if key not in _cache:
        _cache[key] = FeedForward(m, k, f, n, x.dtype, members, activation=activation, device=device)
    return _cache[key](x, w1, w2, out)
