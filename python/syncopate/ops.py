"""Operators for tensor parallelism: drop-in replacements for a collective and a matmul run one after the other."""

from __future__ import annotations

from typing import Any

import torch

from . import jit, plans
from .cuts import Chunking, choose_cut
from .fused import DTYPE_NAMES, FusedKernel, Prepared, check_operand, run_on_host, shard_view
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
from .ops_produce import (
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
    all_to_all_matmul,
    matmul_all_reduce,
    matmul_all_to_all,
    matmul_reduce_scatter,
)
from .ops_stages import FeedForward, feed_forward
from .plans import INLINE


class AllGatherMatmul:
    """y = act(all_gather(x) @ w + bias) for one shape: x [M / ranks, K] on each rank, w [K, N] local, y [M, N] local.
    `activation`: one of kernels.matmul.ACTIVATIONS, applied to the fp32 product; "": none. `bias`: calls give a bias [N],
    added before it.

    x is read where it is, or copied into the heap first if it cannot be: with M / ranks no multiple of a tile's rows, or rows
    of x that do not begin at multiples of 16 bytes. `shard` is this rank's place in the heap. M need not be a multiple of the
    ranks: the first M % ranks of them hold one row more. The result is the same, bit for bit, as that
    of the unfused kernel on the gathered input. Collective: all ranks construct and call it alike.
    """

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        w_transposed: bool = False,
        tiling: Tiling | None = None,
        chunking: Chunking | None = None,
        activation: str = "",
        bias: bool = False,
        pull: bool = False,
        deadline: float = 30.0,
        device: str = "cuda",
        **options: Any,
    ) -> None:
        require_supported(m, n, k, dtype)
        self.m, self.n, self.k, self.dtype = m, n, k, dtype
        self.group = group if isinstance(group, Group) else of_process_group(group, device)
        self.w_transposed = w_transposed
        if activation not in kernels.ACTIVATIONS:
            raise ValueError(f"activation: expected one of {kernels.ACTIVATIONS}, got {activation!r}")
        self.activation, self.bias = activation, bias
        cuda = self.group.device == "cuda"
        self.num_sms = self.group.multiprocessors(PROGRAMS_ON_HOST)
        # Tiles that fetch their rows themselves leave nothing behind.
        fetched = options.get("backend") in INLINE
        if chunking is None and tiling is None and cuda and not fetched:
            tiling, chunking = choose_cut(m, n, k, self.group.size, dtype, self.num_sms)
        self.chunking = chunking or Chunking()
        engine_blocks = self.chunking.engine_blocks if cuda else 0
        # The chunk engine's multiprocessors are not the kernel's.
        self.programs = self.num_sms - engine_blocks
        self.tiling = tiling or choose_tiling(m, n, k, dtype, self.programs)
        tensor = plans.Tensor("A", (m, k), DTYPE_NAMES[dtype])
        self.plan = plans.all_gather(
            plans.mesh_of(self.group.size),
            tensor,
            0,
            self.chunking.rows,
            pull=pull or fetched,
            transient=fetched or not pull,  # tiles may read the own shard where the caller has it
            **self.chunking.slicing,
        )
        mixed = self.tiling.num_wide >= 0
        self.kernel = kernels.matmul_mixed if mixed else kernels.matmul
        self.fused = FusedKernel(
            self.kernel,
            self.plan,
            {"a_desc": "A"},
            self.group,
            deadline,
            engine_blocks=max(1, engine_blocks),
            **({"backend": "tma_dedicated"} if engine_blocks else {}),
            **options,
        )
        self.grid = (gemm_programs(m, n, self.tiling, self.programs),)
        self.prepared: Prepared | None = None
        self._packed: dict[tuple, Any] = {}

    def arguments(
        self, a: torch.Tensor, w: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """The kernel's arguments, for `a` the whole input or this rank's shard of it. Without `bias` where it takes one: 0."""
        if bias is None and self.bias:
            bias = w.new_zeros(self.n)
        return gemm_arguments(
            self.m,
            self.n,
            self.k,
            self.tiling,
            self.grid[0],
            self.w_transposed,
            a,
            w,
            out,
            self.activation,
            bias,
        )

    @property
    def options(self) -> dict[str, int]:
        return gemm_options(self.tiling)

    def prepare(self, w: torch.Tensor, out: torch.Tensor) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.prepared is None:
            rows = self.shard_rows
            stand_in = torch.empty(rows, self.k, dtype=self.dtype, device=w.device)
            self.prepared = self.fused.prepare(self.grid, **self.arguments(stand_in, w, out), **self.options)
        return self.prepared

    @property
    def shard_rows(self) -> int:
        base, extra = divmod(self.m, self.group.size)
        return base + (self.group.rank < extra)

    def shard(self, w: torch.Tensor | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's place for x in the heap, [M / ranks, K]."""
        if self.prepared is None:
            device = f"cuda:{self.group.ordinal}" if self.group.device == "cuda" else "cpu"
            shape = (self.n, self.k) if self.w_transposed else (self.k, self.n)
            w = torch.empty(shape, dtype=self.dtype, device=device) if w is None else w
            out = torch.empty(self.m, self.n, dtype=self.dtype, device=device) if out is None else out
            self.prepare(w, out)
        return shard_view(self.plan, self.group.rank, "A", self.prepared.tensors["A"])

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._check(x, w, out, bias)
        if out is None:
            out = torch.empty(self.m, self.n, dtype=self.dtype, device=w.device)
        prepared = self.prepare(w, out)
        prepared.op.set_input("A", x.data_ptr(), x.stride())
        if prepared.compiled is None:
            run_on_host(prepared.op, prepared.kernel, prepared.grid, self._full(w, out, bias))
            return out
        key = (w.data_ptr(), out.data_ptr(), bias.data_ptr() if self.bias else 0, prepared.op.own_place())
        packed = self._packed.get(key)
        if packed is None:
            packed = self._packed[key] = prepared.compiled.pack(self._full(w, out, bias))
        prepared.op.call(prepared.compiled.kernel, self.grid, jit.current_stream(), packed)
        return out

    def _full(self, w: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> dict[str, Any]:
        """The emitted kernel's arguments, which has its input in the heap."""
        return self.fused._bind(self.prepared, self.arguments(self.prepared.tensors["A"], w, out, bias))

    def run_local(self, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The fused kernel alone, on the chunks of the last call and its x: what the added waits cost (for benchmarks).

        It runs on a copy of the control block, so that the op's own count of finished programs stays right; in the
        copy that count is never reached again, so nothing is posted.
        """
        prepared = self.prepare(w, out)
        key = (-w.data_ptr(), out.data_ptr(), prepared.op.own_place())
        if key not in self._packed:
            full = self._full(w, out)
            full["sy_control"] = prepared.op.control_tensor.clone()
            full["sy_control"][0] -= 1  # the last call's epoch, not the next one's
            self._packed[key] = prepared.compiled.pack(full), full
        packed, _ = self._packed[key]
        self.prepared.compiled.kernel.launch(self.grid, jit.current_stream(), packed)
        return out

    def unfused(
        self, a: torch.Tensor, w: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The unmodified kernel on the whole input `a` [M, K]."""
        self.kernel[self.grid](**self.arguments(a, w, out, bias), **self.options)
        return out

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        self.fused.check()

    def close(self) -> None:
        """Frees the heap. Collective."""
        self._packed.clear()
        self.prepared = None
        self.fused.close()

    def _check(
        self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:
        if (bias is not None) != self.bias:
            raise ValueError("bias: " + ("this op takes one" if self.bias else "this op was made without"))
        shape = (self.n, self.k) if self.w_transposed else (self.k, self.n)
        device = self.group.device
        check_operand("x", x, (self.shard_rows, self.k), self.dtype, device)
        check_operand("w", w, shape, self.dtype, device)
        if out is not None:
            check_operand("out", out, (self.m, self.n), self.dtype, device)
        if bias is not None:
            check_operand("bias", bias, (self.n,), self.dtype, device)
            if self.n > 1 and bias.stride(0) != 1:
                raise ValueError(f"bias: it must be contiguous, its stride is {bias.stride(0)}")


_cache: dict[tuple, AllGatherMatmul] = {}


def all_gather_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    group: Group | Any | None = None,
    out: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation: str = "",
) -> torch.Tensor:
    """act(all_gather(x) @ w + bias), fused. x: [M / ranks, K], the same number of rows on every rank; w: [K, N], or the
    transpose of a contiguous [N, K] (as a Linear layer keeps its weight); bias: [N]; returns [M, N]. `activation`: "",
    "relu", "gelu" or "silu"; it and the bias are applied to the fp32 product. dtypes: bf16, fp16, fp32.

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up.
    """
    device = "cuda" if x.is_cuda else "host"
    members = group if isinstance(group, Group) else of_process_group(group, device)
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0]:
        raise ValueError(f"expected x [rows, K] and w [K, N], got {list(x.shape)} and {list(w.shape)}")
    transposed = w.stride(0) == 1 and w.stride(1) == w.shape[0] and w.shape[0] > 1
    m, k, n = x.shape[0] * members.size, x.shape[1], w.shape[1]
    key = (m, n, k, x.dtype, id(members), transposed, activation, bias is not None)
    if key not in _cache:
        _cache[key] = AllGatherMatmul(
            m, n, k, x.dtype, members, w_transposed=transposed, activation=activation, bias=bias is not None,
            device=device,
        )  # fmt: skip
    return _cache[key](x, w.t() if transposed else w, out, bias)


__all__ = [
    "AllGatherMatmul",
    "AllToAllMatmul",
    "Chunking",
    "FeedForward",
    "MatmulAllReduce",
    "MatmulAllToAll",
    "MatmulReduceScatter",
    "Tiling",
    "all_gather_matmul",
    "all_to_all_matmul",
    "feed_forward",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
]
