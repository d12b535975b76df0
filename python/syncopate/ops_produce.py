"""Operators whose matmul makes what is sent, or reads what every other rank sends: chunks leave while the kernel runs.

    y = sy.ops.matmul_reduce_scatter(x, w)      reduce_scatter(x @ w): x [M, K / ranks], w [K / ranks, N], y [M / ranks, N]
    y = sy.ops.matmul_all_reduce(x, w)          all_reduce(x @ w): y [M, N]
    y = sy.ops.matmul_all_to_all(x, w)          all_to_all(x @ w) of blocks of rows: y [M, N]
    y = sy.ops.all_to_all_matmul(x, w)          all_to_all(x) @ w: x [M, K], y [M, N]

Sums over ranks are accumulated as fp32 in rank order: the same input gives the same bits on every run.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _syncopate, jit, plans, trace
from .cuts import Chunking, choose_cut
from .fused import DTYPE_NAMES, FusedKernel, OutputPlaces, Prepared, check_operand, run_on_host
from .gemm import (
    PROGRAMS_ON_HOST,
    Tiling,
    choose_tiling,
    gemm_arguments,
    gemm_options,
    gemm_programs,
    gemm_tiles,
    require_supported,
)
from .group import Group, of_process_group
from .kernels import matmul as kernels
from .plans import INLINE
from .reduce_ways import (
    Way,
    blocks_after_kernel,
    choose_all_reduce_way,
    choose_reduce_scatter_way,
    stored_at_peers,
)

MOST_PARTS = 4  # of a shard, in an all-reduce, each of two rounds of tiles


class FusedMatmul:
    """x [M, K] @ w [K, N] fused with a plan, for one shape. Subclasses say which tensor of the plan is the kernel's, and
    what goes in and out. Collective: all ranks construct and call it alike.

    `out`, where given, is the output; the op's own place in the heap (`result`) is one that nothing is copied to.
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
        split: int | None = None,
        deadline: float = 30.0,
        device: str = "cuda",
        backend: str = "auto",
        engine_blocks: int = 8,
        plain_kernel: bool = False,
        pull: bool = False,
        **options: Any,
    ) -> None:
        require_supported(m, n, k, dtype)
        self.m, self.n, self.k, self.dtype = m, n, k, dtype
        self.group = group if isinstance(group, Group) else of_process_group(group, device)
        self.w_transposed = w_transposed
        cuda = self.group.device == "cuda"
        self.device = torch.device("cuda", self.group.ordinal) if cuda else torch.device("cpu")
        self.num_sms = self.group.multiprocessors(PROGRAMS_ON_HOST)
        self.plain_kernel, self.pull = plain_kernel, pull or plain_kernel
        # The chunk engine's multiprocessors are not the kernel's, unless it comes after that.
        engine = cuda and not plain_kernel and backend in ("tma_dedicated", "ldst_dedicated")
        self.programs = self.num_sms - (engine_blocks if engine else 0)
        self.tiling = tiling or choose_tiling(m, n, k, dtype, self.programs)
        if cuda and backend == "auto":
            backend = self._choose(split is None)
        self.fetches = backend in INLINE and self.bind[0] == "a_desc"  # tiles read x at its ranks
        self.split = split or self.split
        self.plan = self._make_plan(plans.mesh_of(self.group.size), DTYPE_NAMES[dtype])
        self._places = OutputPlaces(self.plan, self.group.rank, self.output) if self.output else None
        self.kernel = kernels.matmul_mixed if self.tiling.num_wide >= 0 else kernels.matmul
        self.fused = FusedKernel(
            self.kernel,
            self.plan,
            dict([self.bind]),
            self.group,
            deadline,
            backend=backend,
            engine_blocks=engine_blocks,
            plain_kernel=plain_kernel,
            **options,
        )
        self.grid = (gemm_programs(m, n, self.tiling, self.programs),)
        self.prepared: Prepared | None = None
        self._packed: dict[tuple, Any] = {}
        self._kept: tuple = ()

    def _choose(self, free: bool) -> str:
        """The backend on a GPU where none is asked for; if `free`, also sets `split`."""
        if self.bind[0] != "c_desc":
            return "auto"
        rows = self.m // max(self.group.size, 1)
        tiles = gemm_tiles(self.m, self.n, self.tiling)
        return "tma_inline" if stored_at_peers(rows, tiles, self.programs) else "auto"

    split = 1
    bind = ("c_desc", "C")  # the kernel's parameter and the plan's tensor
    output = "C"  # the plan's tensor that is the result; "": the kernel's own output
    input = ""  # the plan's tensor that is x; "": the kernel reads x itself

    def _make_plan(self, mesh: plans.Mesh, dtype: str) -> _syncopate.Plan:
        raise NotImplementedError

    @property
    def out_rows(self) -> int:
        """Rows of y on this rank."""
        return self.m

    def _stand_in(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self.dtype, device=self.device)

    def arguments(self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> dict[str, Any]:
        """The kernel's arguments: c [M, N] = a [M, K] @ w."""
        return gemm_arguments(self.m, self.n, self.k, self.tiling, self.grid[0], self.w_transposed, a, w, c)

    @property
    def options(self) -> dict[str, int]:
        return gemm_options(self.tiling)

    def prepare(self, w: torch.Tensor | None = None) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.prepared is None:
            if w is None:
                w = self._stand_in(*((self.n, self.k) if self.w_transposed else (self.k, self.n)))
            a, c = self._stand_in(self.m, self.k), self._stand_in(self.m, self.n)
            self.prepared = self.fused.prepare(self.grid, **self.arguments(a, w, c), **self.options)
        return self.prepared

    def result(self) -> torch.Tensor:
        """y's own place in the heap. It holds y until the next call, if y is given as `out`."""
        view = self.fused.result(self.prepare(), self.output)
        return view if self.out_rows else self._stand_in(0, self.n)

    def __call__(self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self._check(x, w, out)
        if out is None:
            out = self._stand_in(self.out_rows, self.n)
        prepared = self.prepare(w)
        op = prepared.op
        if self.input:
            op.set_input(self.input, x.data_ptr(), x.stride())
        if self._places:
            self._places.give(op, out)
        key = (
            x.data_ptr() if self.bind[0] == "c_desc" else out.data_ptr(),
            w.data_ptr(),
            op.own_place(),
        )
        if prepared.compiled is None:
            run_on_host(op, prepared.kernel, prepared.grid, self._full(x, w, out))
            return out
        packed = self._packed.get(key)
        if packed is None:
            packed = self._packed[key] = prepared.compiled.pack(self._full(x, w, out))
        op.call(prepared.compiled.kernel, self.grid, jit.current_stream(), packed)
        return out

    def _full(self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> dict[str, Any]:
        """The emitted kernel's arguments. What is bound is replaced by its place in the heap."""
        heap = self.prepared.tensors[self.bind[1]]
        a, c = (heap, out) if self.bind[0] == "a_desc" else (x, heap)
        return self.fused._bind(self.prepared, self.arguments(a, w, c))

    def trace_arguments(self, x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
        """For trace.record: the kernel's arguments, after placing x and a new output, which this object keeps."""
        op = self.prepare(w).op
        out = self._stand_in(self.out_rows, self.n)
        if self.input:
            op.set_input(self.input, x.data_ptr(), x.stride())
        if self.output not in ("", self.bind[1]):
            self._places.give(op, out)
        self._kept = (x, out, self._stand_in(self.m, self.n))
        return self.arguments(x, w, self._kept[2])

    def run_local(self, x: torch.Tensor, w: torch.Tensor) -> None:
        """The fused kernel alone, after a call: what the added lines cost (for benchmarks). It counts in a copy of the
        control block, by a table in which nobody waits and nothing is posted; what it sends inline it does send."""
        if self.plain_kernel:
            self.unfused(x, w, self.prepared.tensors[self.bind[1]])
            return
        key = ("local", x.data_ptr(), w.data_ptr())
        if key not in self._packed:
            full = self._full(x, w, self._stand_in(self.m, self.n))
            full["sy_control"] = self.prepared.op.control_tensor.clone()
            full["sy_schedule"] = trace.without_signals(self.prepared.op.table_tensor)
            self._packed[key] = self.prepared.compiled.pack(full), full
        packed, _ = self._packed[key]
        self.prepared.compiled.kernel.launch(self.grid, jit.current_stream(), packed)

    def unfused(self, a: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """The unmodified kernel alone: c [M, N] = a [M, K] @ w."""
        self.kernel[self.grid](**self.arguments(a, w, c), **self.options)
        return c

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        self.fused.check()

    def close(self) -> None:
        """Frees the heap. Collective."""
        self._packed.clear()
        self.prepared = None
        self.fused.close()

    def _check(self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None) -> None:
        shape = (self.n, self.k) if self.w_transposed else (self.k, self.n)
        self._check_operand("x", x, (self.m, self.k))
        self._check_operand("w", w, shape)
        if out is not None:
            self._check_operand("out", out, (self.out_rows, self.n))

    def _check_operand(self, name: str, tensor: torch.Tensor, shape: tuple[int, int]) -> None:
        check_operand(name, tensor, shape, self.dtype, self.group.device)
        if tensor.stride(-1) != 1 and tensor.numel():
            raise ValueError(f"{name}: the last axis must be contiguous, its stride is {tensor.stride(-1)}")


class Reduction(FusedMatmul):
    """What the two that sum have in common. With `pull` owners read the contributions where they are, by the chunk engine
    beside the kernel; with `plain_kernel` they do so after it, which then is left as it is. With `stored` so many of each
    rank's contributions, its last, are stored at their owners tile by tile, and the earlier ones copied; with `pulled` so
    many, the last, are read by their owners' sums where they are. Default: by what is faster (reduce_ways); but fused where a
    backend, a split or a tiling is asked for."""

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        plain_kernel: bool | None = None,
        pull: bool | None = None,
        stored: int | None = None,
        pulled: int | None = None,
        split_axis: int | None = None,
        device: str = "cuda",
        **options: Any,
    ) -> None:
        members = group if isinstance(group, Group) else of_process_group(group, device)
        asked = options.keys() & {"backend", "split", "engine_blocks", "tiling"}
        open_ = all(given is None for given in (plain_kernel, pull, stored, pulled, split_axis))
        if members.device == "cuda" and open_ and not asked:
            way = self._way(m, n, k, dtype, members.size, members.multiprocessors(PROGRAMS_ON_HOST))
            options = {**way.options, **options}
        elif plain_kernel:
            blocks = blocks_after_kernel(m, n, dtype, members.size)
            options = {"backend": "ldst_dedicated", "engine_blocks": blocks, **options}
        elif pull:
            options = {"backend": "ldst_dedicated", **options}
        chosen = {
            "plain_kernel": bool(plain_kernel),
            "pull": bool(pull),
            "stored": stored or 0,
            "pulled": pulled or 0,
        }
        options = {**chosen, **options}
        self.stored, self.pulled = options.pop("stored"), options.pop("pulled")
        self.split_axis = options.pop("split_axis", split_axis)
        for name, count in (("stored", self.stored), ("pulled", self.pulled)):
            if not 0 <= count < max(members.size, 1):
                raise ValueError(
                    f"{name}: expected 0 to {members.size - 1} of the contributions, got {count}"
                )
            if count and (options["pull"] or options["plain_kernel"]):
                raise ValueError(f"{name}: with pull or plain_kernel every contribution is read where it is")
        if self.stored and self.pulled:
            raise ValueError("stored, pulled: the last contributions are either stored or pulled")
        super().__init__(m, n, k, dtype, members, device=device, **options)

    def _choose(self, free: bool) -> str:
        return "auto" if self.stored or self.pulled else super()._choose(free)

    def _backends(self) -> list[str]:
        """Of the contributions to the next rank, to the one after it, …"""
        sent = self.group.size - 1 - self.stored - self.pulled
        return ["auto"] * sent + ["tma_inline"] * self.stored + ["ldst_inline"] * self.pulled

    @staticmethod
    def _way(m: int, n: int, k: int, dtype: torch.dtype, size: int, num_sms: int) -> Way:
        """The fastest, on that many GPUs with that many multiprocessors each."""
        raise NotImplementedError


class MatmulReduceScatter(Reduction):
    """y = reduce_scatter(x @ w): x [M, K] and w [K, N] local, y [M / ranks, N], the sum over ranks of this rank's rows.

    M need not be a multiple of the ranks: the first M % ranks of them get one row more. Each rank's product is rounded
    to `dtype` before the sum, as the unfused pair does; the sum itself is accumulated as fp32 in rank order.
    """

    _way = staticmethod(choose_reduce_scatter_way)

    def _make_plan(self, mesh, dtype):
        tensor = plans.Tensor("C", (self.m, self.n), dtype)
        by_part = self.pull or bool(self.split_axis)
        return plans.push_reduce(
            mesh,
            tensor,
            0,
            self.split,
            by_part=by_part,
            pulled=self.group.size - 1 if self.pull else self.pulled,
            backends=self._backends(),
            split_axis=self.split_axis or 0,
        )

    @property
    def out_rows(self) -> int:
        base, extra = divmod(self.m, self.group.size)
        return base + (self.group.rank < extra)


class MatmulAllReduce(Reduction):
    """y = all_reduce(x @ w), the same bits on all ranks: x [M, K] and w [K, N] local, y [M, N]. Each rank sums its rows
    chunk by chunk and sends them on. With `pull` and `plain_kernel` each rank stores its sums at all ranks; beside the
    kernel by parts of columns (`split`)."""

    _way = staticmethod(choose_all_reduce_way)

    def _choose(self, free: bool) -> str:
        if free:  # while one part is made, the one before is summed and sent
            rounds = gemm_tiles(self.m, self.n, self.tiling) / self.programs
            self.split = max(1, min(MOST_PARTS, round(rounds / 2)))
            if self.split > 1:
                return "auto"
        return super()._choose(free)

    def _make_plan(self, mesh, dtype):
        tensor = plans.Tensor("C", (self.m, self.n), dtype)
        return plans.push_reduce(
            mesh,
            tensor,
            0,
            self.split,
            all=True,
            by_part=self.split > 1,
            pulled=self.group.size - 1 if self.pull else self.pulled,
            split_axis=int(self.pull) if self.split_axis is None else self.split_axis,
            backends=self._backends(),
        )


class MatmulAllToAll(FusedMatmul):
    """y = all_to_all(x @ w): block p of M / ranks rows of this rank's product becomes block r of y on rank p."""

    output = "D"

    def _make_plan(self, mesh, dtype):
        require_blocks(self.m, self.group.size)
        return plans.push_exchange(mesh, plans.Tensor("C", (self.m, self.n), dtype), "D", self.split)


class AllToAllMatmul(FusedMatmul):
    """y = all_to_all(x) @ w: block p of M / ranks rows of x becomes block r of what rank p multiplies. `chunking`: how a block
    is cut and sent; where neither it nor anything else about that is given, what suits the shape (cuts.choose_cut).
    """

    bind = ("a_desc", "A")
    output = ""
    input = "X"

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        chunking: Chunking | None = None,
        split: int | None = None,
        device: str = "cuda",
        **options: Any,
    ) -> None:
        if chunking is not None and split is not None:
            raise ValueError("chunking and split both say how blocks are cut: give one")
        members = group if isinstance(group, Group) else of_process_group(group, device)
        asked = options.keys() & {"backend", "tiling", "engine_blocks"}
        if members.device == "cuda" and chunking is None and split is None and not asked:
            num_sms = members.multiprocessors(PROGRAMS_ON_HOST)
            options["tiling"], chunking = choose_cut(m, n, k, members.size, dtype, num_sms)
        self.chunking = chunking or Chunking(split or 1)
        if self.chunking.engine_blocks and members.device == "cuda":
            options = {"backend": "tma_dedicated", "engine_blocks": self.chunking.engine_blocks, **options}
        super().__init__(m, n, k, dtype, members, split=self.chunking.rows, **options)

    def _make_plan(self, mesh, dtype):
        require_blocks(self.m, self.group.size)
        return plans.push_exchange(
            mesh,
            plans.Tensor("X", (self.m, self.k), dtype),
            "A",
            self.split,
            produced=False,
            transient=self.fetches,
            own_transient=True,
            **self.chunking.slicing,
        )


def require_blocks(m: int, size: int) -> None:
    if m % size:
        raise ValueError(
            f"an all-to-all sends blocks of equal size: {m} rows are no multiple of {size} ranks"
        )


_cache: dict[tuple, FusedMatmul] = {}


def _call(operator: type[FusedMatmul], x, w, group, out) -> torch.Tensor:
    device = "cuda" if x.is_cuda else "host"
    members = group if isinstance(group, Group) else of_process_group(group, device)
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[0]:
        raise ValueError(f"expected x [M, K] and w [K, N], got {list(x.shape)} and {list(w.shape)}")
    transposed = w.stride(0) == 1 and w.stride(1) == w.shape[0] and w.shape[0] > 1
    (m, k), n = x.shape, w.shape[1]
    key = (operator, m, n, k, x.dtype, id(members), transposed)
    if key not in _cache:
        _cache[key] = operator(m, n, k, x.dtype, members, w_transposed=transposed, device=device)
    return _cache[key](x, w.t() if transposed else w, out)


def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, group: Group | Any | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """reduce_scatter(x @ w), fused. x: [M, K], w: [K, N] or the transpose of a contiguous [N, K]; returns this rank's
    M / ranks rows of the sum over ranks, [M / ranks, N]. dtypes: bf16, fp16, fp32.

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up.
    """
    return _call(MatmulReduceScatter, x, w, group, out)


def matmul_all_reduce(
    x: torch.Tensor, w: torch.Tensor, group: Group | Any | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """all_reduce(x @ w), fused: as matmul_reduce_scatter, and returns the whole sum [M, N] on every rank."""
    return _call(MatmulAllReduce, x, w, group, out)


def matmul_all_to_all(
    x: torch.Tensor, w: torch.Tensor, group: Group | Any | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """all_to_all(x @ w) of equal blocks of rows, fused: arguments as matmul_reduce_scatter, M a multiple of the ranks;
    returns [M, N], whose block r comes from rank r."""
    return _call(MatmulAllToAll, x, w, group, out)


def all_to_all_matmul(
    x: torch.Tensor, w: torch.Tensor, group: Group | Any | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """all_to_all(x) @ w, fused: arguments as matmul_all_to_all; returns [M, N]."""
    return _call(AllToAllMatmul, x, w, group, out)
