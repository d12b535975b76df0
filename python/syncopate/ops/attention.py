"""Attention over a sequence that is sharded over ranks:

o, lse = sy.ops.attention(q, k, v, causal=True)      q [B, H, S / ranks, D], k, v [B, HKV, S / ranks, D]
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from .. import _syncopate, interpreter, plans, trace
from ..arguments import DTYPE_NAMES
from ..fused import Call, FusedKernel, Stage
from ..group import Group
from ..kernels.attention import attention as kernel
from ..places import check_operand
from ..plans import Rows
from ..prepared import Prepared
from ..strategy import Strategy
from .operator import members_of

if TYPE_CHECKING:
    from ..kernels.gluon_attention_call import GluonAttentionTiling

KINDS = ("all_gather", "ring", "double_ring", "ulysses", "ulysses_ring")
SHARDINGS = ("contiguous", "zigzag", "documents")
HEAD_DIMS = (64, 128, 256)
HOPPER = 9  # the compute capability's first figure
ENGINE_BLOCKS = 8  # of the chunk engine, where the strategy does not say
SMALL = 16  # rows of a tile on the host, and its head dims go down to this


@dataclass(frozen=True)
class AttentionTiling:
    """Rows of Q a tile, rows of K and V an iteration, and how the kernel is launched."""

    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 3


def attention_tiling(head_dim: int, device: str) -> AttentionTiling:
    """Of the plain kernel (C++: tune/attention.hpp)."""
    tile = _syncopate.attention_tiles("triton", head_dim, device == "cuda")
    return AttentionTiling(tile["block_m"], tile["block_n"], tile["warps"], tile["stages"])


def refusal(kind: str, ranks: int, heads: int, inner: int = 0) -> str:
    """Why attention of that kind cannot be done; empty: it can."""
    if kind not in KINDS:
        return f"there is no kind {kind!r}: one of {', '.join(KINDS)}"
    group = ranks if kind == "ulysses" else inner if kind == "ulysses_ring" else 1
    if kind == "ulysses_ring" and (not 1 < inner < ranks or ranks % inner):
        return f"ulysses_ring needs inner, a number of ranks between 1 and {ranks} that divides them; got {inner}"
    if heads % group:
        return f"{heads} heads cannot be shared out over {group} ranks"
    if kind == "double_ring" and inner and ranks % inner:
        return f"{ranks} ranks are no multiple of the inner ring's {inner}"
    return ""


class Attention:
    """softmax(q @ kᵀ · scale) @ v over a sequence of S rows, sharded over the ranks, for one shape: q [B, H, rows, D], k and v
    [B, HKV, rows, D] on each rank, which gets o like q, and lse [B, H, rows], fp32, the log-sum-exp of the scaled scores.
    dtypes: bf16, fp16; D: 64, 128, 256 (on the host from 16 on); H a multiple of HKV.

    `causal`: a row sees the rows up to itself. `window`: … so many rows up to itself, or without `causal` to either side; 0: all.
    `cu_seqlens`: several documents lie one behind another in the sequence, and rows see only rows of their own: where each
    begins, and the end of the last (0, 137, 2178). `scale`: default D ** -0.5. `kind`: "all_gather", "ring", "double_ring" (`inner` ranks in an inner ring), "ulysses"
    (ranks exchange heads for rows), "ulysses_ring" (`inner` ranks do, and K and V go round between such groups), or "auto".
    `sharding`: which rows a rank holds (`rows`): "contiguous", "zigzag", "documents" (zigzag in each), or "auto": zigzag where
    causal, in each document, which gives ranks alike much work; or `rows`, by rank, runs of rows in multiples of a tile's. `split`: chunks into which each run of rows is cut to be sent. `strategy`: its fields marked *.
    `tiling`: of the plain kernel (attention_tiling), or a GluonAttentionTiling (kernels.gluon_attention_call.tiling_of): then the
    kernel for Hopper runs; default: that one wherever it can, and `why_plain` says why not ("" where it does).

    Collective: all ranks construct and call it alike. A rank is sent only the rows of K and V that its own rows see, and each
    tile starts with those that have arrived, in whatever order they come. Raises ValueError for what cannot be done.
    """

    name: ClassVar[str] = "attention"
    extents: ClassVar[tuple[str, ...]] = ("B", "H", "HKV", "S", "D")
    keys: ClassVar[Mapping[str, str]] = {"split": "split", "backend": "backend"}
    flags: ClassVar[tuple[str, ...]] = ("kind", "causal", "window", "sharding", "inner", "cu_seqlens")
    defaults: ClassVar[Mapping[str, int]] = {"B": 1, "H": 32, "HKV": 8, "D": 128}  # those of tune/problem.hpp
    bindings: ClassVar[tuple[Mapping[str, str], ...]] = (
        {"q_desc": "Q", "k_desc": "K", "v_desc": "V", "o_desc": "O", "l_ptr": "L"},
    )

    def __init__(
        self,
        b: int,
        h: int,
        hkv: int,
        s: int,
        d: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        causal: bool = False,
        kind: str = "auto",
        window: int = 0,
        cu_seqlens: Sequence[int] | torch.Tensor | None = None,
        scale: float | None = None,
        sharding: str = "auto",
        split: int = 1,
        inner: int = 0,
        tiling: AttentionTiling | GluonAttentionTiling | None = None,
        strategy: Strategy | None = None,
        rows: list[Rows] | None = None,
        device: str = "cuda",
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.group = members_of(group, device)
        self.dtype, self.causal, self.window = dtype, causal, window
        self.b, self.h, self.hkv, self.s, self.d = b, h, hkv, s, d
        self.scale = d**-0.5 if scale is None else scale
        ranks = self.group.size
        self.kind = kind
        self._require(inner)
        self.documents = documents_of(cu_seqlens, s)
        self.why_plain = "" if tiling is None else "it was told to"
        self.tiling = self._choose_tiling() if tiling is None else tiling
        self.is_gluon = not isinstance(self.tiling, AttentionTiling)
        if self.is_gluon and self.group.device != "cuda":
            raise ValueError("tiling: the kernel for Hopper does not run on the host; leave it out")
        self.kernel = self._stated() if self.is_gluon else kernel
        balanced = "documents" if self.documents else "zigzag"
        self.sharding = (balanced if causal else "contiguous") if sharding == "auto" else sharding
        if self.sharding not in SHARDINGS:
            raise ValueError(f"there is no sharding {self.sharding!r}: one of {', '.join(SHARDINGS)}")
        self.all_rows: list[Rows] = rows or plans.shard_rows(
            s, ranks, self.sharding, self.tiling.block_m, self.documents
        )
        if not all(self.all_rows):
            raise ValueError(
                f"a sequence of {s} rows is too short for {ranks} ranks in tiles of {self.tiling.block_m} rows"
            )
        self.strategy = strategy or Strategy()
        cuda = self.group.device == "cuda"
        if kind == "auto":
            self.kind, inner = self._choose(inner)
        self.split, self.inner = split, inner
        self.plan = self._make_plan(split, inner)
        self.device = torch.device("cuda", self.group.ordinal) if cuda else torch.device("cpu")
        self._tables = self._make_tables()
        known = {"bounds_ptr": self._tables["bounds_ptr"].reshape(-1).tolist()} if self.documents else {}
        self.fused = FusedKernel(
            [Stage(self.kernel, dict(self.bindings[0]), known)],
            self.plan,
            self.group,
            self.strategy,
            deadline=deadline,
            host_delay=host_delay,
            seed=seed,
        )
        self.prepared: Prepared | None = None
        self._recorded: Attention | None = None  # the same by the plain kernel, which keeps times
        self._timing = {"deadline": deadline, "host_delay": host_delay, "seed": seed}
        self._given: dict[str, tuple[int, tuple[int, ...]]] = {}

    def _choose_tiling(self) -> AttentionTiling | GluonAttentionTiling:
        """Of the kernel that C++ chooses (tune/attention.hpp)."""
        cuda = self.group.device == "cuda"
        name, _, self.why_plain = _syncopate.attention_kernel(
            (self.b, self.h, self.hkv, self.s, self.d),
            DTYPE_NAMES[self.dtype],
            self.group.size,
            self.scale,
            cuda,
            cuda and torch.cuda.get_device_capability(self.group.ordinal)[0] == HOPPER,
            bool(self.documents),
        )
        if name != "gluon":
            return attention_tiling(self.d, self.group.device)
        from ..kernels.gluon_attention_call import tiling_of

        return tiling_of(self.d)

    def _stated(self) -> Any:
        from ..kernels.stated_attention import stated_attention

        return stated_attention(self.causal, self.window > 0, bool(self.documents))

    def _make_tables(self) -> dict[str, torch.Tensor]:
        """What the kernel looks up where there are documents."""
        if self.is_gluon:
            if not self.documents:
                return {}
            from ..kernels.gluon_attention_call import document_tables

            tables = document_tables(
                self.documents, self.tiling, causal=self.causal, window=self.window, device=self.device
            )
            return dict(zip(("bounds_ptr", "seen_ptr", "order_ptr"), tables, strict=True))
        seen, bounds = self._seen()
        return {"bounds_ptr": bounds.to(self.device), "seen_ptr": seen.to(self.device)}

    def _seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the plain kernel: of each row the first column that it sees and past the last one, [2, S], and of each tile the
        blocks of columns that some and that all of its rows see, [tiles, 4]."""
        m, n = self.tiling.block_m, self.tiling.block_n
        if not self.documents:
            return torch.zeros(2, 1, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int32)
        row = torch.arange(self.s)
        number = torch.bucketize(row, torch.tensor(self.documents[1:]), right=True)
        cuts = torch.tensor(self.documents)
        first, last = cuts[number], cuts[number + 1]
        if self.window:
            first = torch.maximum(first, row - self.window + 1)
            last = torch.minimum(last, row + self.window)
        if self.causal:
            last = torch.minimum(last, row + 1)
        bounds = []
        for a, b in zip(first.split(m), last.split(m), strict=True):
            low, high = int(a.min()) // n * n, int(b.max())
            whole = min(math.ceil(int(a.max()) / n) * n, math.ceil(high / n) * n)
            bounds.append([low, whole, max(int(b.min()) // n * n, whole), high])
        return torch.stack([first, last]).to(torch.int32), torch.tensor(bounds, dtype=torch.int32)

    def _require(self, inner: int) -> None:
        b, h, hkv, s, d = self.b, self.h, self.hkv, self.s, self.d
        if min(b, h, hkv, s, d) < 1:
            raise ValueError(f"B, H, HKV, S and D must be at least 1, got {b}, {h}, {hkv}, {s} and {d}")
        if self.dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"expected dtype bf16 or fp16, got {self.dtype}")
        if h % hkv:
            raise ValueError(f"H must be a multiple of HKV, got {h} and {hkv}")
        small = self.group.device == "host" and d in (16, 32)
        if d not in HEAD_DIMS and not small:
            raise ValueError(f"D: expected one of {', '.join(map(str, HEAD_DIMS))}, got {d}")
        if self.window < 0:
            raise ValueError(f"window: expected 0 or more rows, got {self.window}")
        if self.kind != "auto" and (why := refusal(self.kind, self.group.size, h, inner)):
            raise ValueError(f"kind {self.kind!r}: {why}")

    def _choose(self, inner: int) -> tuple[str, int]:
        """The kind that the estimate takes for the quickest, and its `inner` (tune/attention.hpp)."""
        ranked = _syncopate.rank_attention(
            (self.b, self.h, self.hkv, self.s, self.d),
            DTYPE_NAMES[self.dtype],
            self.all_rows,
            self.documents,
            self.causal,
            self.window,
            "gluon" if self.is_gluon else "triton",
            self.tiling.block_n,
            inner,
            torch.cuda.get_device_name(self.group.ordinal) if self.group.device == "cuda" else "",
        )
        return next((kind, chosen) for kind, chosen, _, why in ranked if kind in KINDS and not why)

    def _make_plan(self, split: int, inner: int) -> _syncopate.Plan:
        ranks = self.group.size
        ulysses = {"ulysses": ranks, "ulysses_ring": inner}.get(self.kind, 1)
        circulation = {"ring": "ring", "double_ring": "double_ring", "ulysses_ring": "ring"}
        attended = [
            plans.attended_rows(
                self.s,
                rows,
                causal=self.causal,
                window=self.window,
                block=self.tiling.block_n,
                documents=self.documents,
            )
            for rows in self.all_rows
        ]
        return plans.attention(
            plans.mesh_of(ranks),
            (self.b, self.h, self.hkv, self.s, self.d),
            DTYPE_NAMES[self.dtype],
            self.all_rows,
            attended,
            circulation=circulation.get(self.kind, "all_gather"),
            ulysses=ulysses,
            inner=inner if self.kind == "double_ring" else 0,
            split=split,
        )

    @property
    def rows(self) -> Rows:
        """The rows of the sequence that this rank holds, runs of (begin, end), in the order in which q, k, v, o and lse have
        them."""
        return self.all_rows[self.group.rank]

    @property
    def num_rows(self) -> int:
        return sum(end - begin for begin, end in self.rows)

    def shard(self, whole: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """What a rank (default: this one) holds of a tensor [B, heads, S, …]."""
        rows = self.all_rows[self.group.rank if rank is None else rank]
        return torch.cat([whole[:, :, begin:end] for begin, end in rows], 2)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One call: o and lse, into `out` where it is given."""
        o, lse = out or self.empty_outputs()
        prepared = self._place(q, k, v, o, lse)
        prepared.launch(self._key(), lambda: [self._arguments(prepared.tensors)])
        return o, lse

    def record(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> trace.Trace:
        """One more call, recorded (syncopate.trace). The first one on a GPU compiles: take the second. The kernel for Hopper
        keeps no times: the plain one stands in. Collective then."""
        if self.is_gluon:
            return self._by_plain_kernel().record(q, k, v)
        outputs = self.empty_outputs()  # until the call is over
        prepared = self._place(q, k, v, *outputs)
        recorder = trace.recorder_of(prepared, self._options)
        return recorder.call(prepared.arguments(0, self._arguments(prepared.tensors)))

    def _by_plain_kernel(self) -> Attention:
        """This operator by the plain kernel, with the same rows on each rank."""
        if self._recorded is None:
            self._recorded = Attention(
                self.b,
                self.h,
                self.hkv,
                self.s,
                self.d,
                self.dtype,
                self.group,
                causal=self.causal,
                kind=self.kind,
                window=self.window,
                cu_seqlens=self.documents or None,
                scale=self.scale,
                sharding=self.sharding,
                split=self.split,
                inner=self.inner,
                tiling=attention_tiling(self.d, self.group.device),
                strategy=self.strategy,
                rows=self.all_rows,
                **self._timing,
            )
        return self._recorded

    def unfused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The unmodified kernel alone, on whole tensors [B, heads, S, D]: o and lse of the whole sequence."""
        o = torch.full_like(q, float("nan"))
        lse = torch.full(q.shape[:3], float("nan"), dtype=torch.float32, device=q.device)
        call = self._call({"Q": q, "K": k, "V": v, "O": o, "L": lse})
        if self.group.device == "host":
            interpreter.repair_bf16()
        self.kernel[call.grid](**call.arguments, **call.options)
        return o, lse

    def run_local(self) -> None:
        """The fused kernel alone, on a GPU after a call, on what that one has left in the heap: nobody waits, and nothing is
        posted (for benchmarks)."""
        prepared = self.prepare()

        def full() -> dict[str, Any]:
            return prepared.arguments(0, self._arguments(prepared.tensors)) | {
                "sy_control": prepared.op.control_tensor.clone(),
                "sy_schedule": trace.without_signals(prepared.op.table_tensor),
            }

        prepared.launch_alone("alone", full)

    def prepare(self) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.prepared is None:
            stand_ins = {
                name: torch.empty(shape, dtype=_dtype(dtype, self.dtype), device=self.device)
                for name, shape, dtype in self.plan.tensors
            }
            self.prepared = self.fused.prepare_calls([self._call(stand_ins)])
        return self.prepared

    def empty_outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.b, self.h, self.num_rows)
        return (
            torch.empty(*shape, self.d, dtype=self.dtype, device=self.device),
            torch.empty(*shape, dtype=torch.float32, device=self.device),
        )

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        self.fused.check()

    def close(self) -> None:
        """Frees the heap. Collective."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None
        self.prepared = None
        self.fused.close()

    @property
    def _options(self) -> dict[str, int]:
        tiling = self.tiling
        if isinstance(tiling, AttentionTiling):
            return {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
        return tiling.options()

    def _arguments(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        m, n = self.tiling.block_m, self.tiling.block_n
        if not isinstance(self.tiling, AttentionTiling):
            return self._gluon_arguments(tensors)

        def rows(name: str, block: int) -> TensorDescriptor:
            return TensorDescriptor.from_tensor(tensors[name], [1, 1, block, self.d])

        return {
            "q_desc": rows("Q", m),
            "k_desc": rows("K", n),
            "v_desc": rows("V", n),
            "o_desc": rows("O", m),
            "l_ptr": tensors["L"],
            **self._tables,
            "scale": self.scale,
            "H": self.h,
            "HKV": self.hkv,
            "S": self.s,
            "WINDOW": self.window,
            "CAUSAL": self.causal,
            "DOCUMENTS": bool(self.documents),
            "D": self.d,
            "BM": m,
            "BN": n,
        }

    def _gluon_arguments(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        from ..kernels.gluon_attention_call import gluon_attention_arguments

        return gluon_attention_arguments(
            *(tensors[name] for name in "QKVOL"),
            self.tiling,
            causal=self.causal,
            window=self.window,
            scale=self.scale,
            documents=tuple(self._tables.values()) or None,
        )

    @property
    def _programs(self) -> int:
        """Of the persistent kernel: it leaves the chunk engine's multiprocessors to it, as it stays where it is until K and V
        have come."""
        by_engine = (self.strategy.backend or "").endswith("_dedicated")
        engine = (self.strategy.engine_blocks or ENGINE_BLOCKS) if by_engine else 0
        return max(self.group.multiprocessors(132) - engine, 1)

    def _call(self, tensors: Mapping[str, torch.Tensor]) -> Call:
        tiles = math.ceil(self.s / self.tiling.block_m) * self.h * self.b
        if self.is_gluon:
            tiles = min(tiles, self._programs)
        return Call((tiles, 1, 1), self._arguments(tensors), self._options)

    def _key(self) -> Hashable:
        return "attention"  # the kernel reads and writes the heap alone

    def _place(self, *operands: torch.Tensor) -> Prepared:
        """Checks q, k, v, o and lse, and tells the op where they are, run of rows by run."""
        n = self.num_rows
        shapes = {
            "q": (self.b, self.h, n, self.d),
            "k": (self.b, self.hkv, n, self.d),
            "v": (self.b, self.hkv, n, self.d),
            "o": (self.b, self.h, n, self.d),
            "lse": (self.b, self.h, n),
        }
        for (name, shape), tensor in zip(shapes.items(), operands, strict=True):
            dtype = torch.float32 if name == "lse" else self.dtype
            check_operand(name, tensor, shape, dtype, self.group.device)
            if tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name}: the last axis must be contiguous, its stride is {tensor.stride(-1)}"
                )
        prepared = self.prepared or self.prepare()
        for name, tensor in zip("QKVOL", operands, strict=True):
            self._set(prepared, name, tensor)
        return prepared

    def _set(self, prepared: Prepared, name: str, tensor: torch.Tensor) -> None:
        place = (tensor.data_ptr(), tensor.stride())
        if self._given.get(name) == place:
            return
        give: Callable[..., None] = prepared.op.set_output if name in "OL" else prepared.op.set_input
        skipped = 0
        for begin, end in self.rows:
            box = [(0, tensor.shape[0]), (0, tensor.shape[1]), (begin, end)]
            if name != "L":
                box.append((0, self.d))
            address = tensor.data_ptr() + skipped * tensor.stride(2) * tensor.element_size()
            give(name, address, list(tensor.stride()), box)
            skipped += end - begin
        self._given[name] = place


def documents_of(cu_seqlens: Sequence[int] | torch.Tensor | None, s: int) -> list[int]:
    """Where each document begins, and the end of the last; empty: there is one. Raises ValueError for what is no such list."""
    if cu_seqlens is None:
        return []
    values = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else [int(n) for n in cu_seqlens]
    if len(values) < 2 or values[0] != 0 or values[-1] != s or any(a >= b for a, b in pairwise(values)):
        raise ValueError(f"cu_seqlens: expected rising numbers from 0 to {s}, got {values}")
    return values if len(values) > 2 else []


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name == "fp32" else dtype


MOST_MADE = 16  # shapes, or lists of documents, that are kept set up
_made: OrderedDict[Hashable, Attention] = OrderedDict()  # the last used last


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: Group | Any | None = None,
    *,
    causal: bool = False,
    kind: str = "auto",
    window: int = 0,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    scale: float | None = None,
    sharding: str = "auto",
    length: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of attention over a sequence of `length` rows (default: as many on each rank as here), of which q [B, H, rows,
    D], k and v [B, HKV, rows, D] are this rank's, as `sharding` says (Attention.rows). Arguments: as of Attention.

    Collective over `group` (a torch process group; default: the world). The first call with a shape, or with other documents,
    sets it up: new tables and a heap, but the same compiled kernel. Of those the last MOST_MADE are kept.
    """
    members = members_of(group, "cuda" if q.is_cuda else "host")
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        raise ValueError(
            f"expected q [B, H, rows, D] and k, v [B, HKV, rows, D], got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    b, h, rows, d = q.shape
    s = rows * members.size if length is None else length
    documents = tuple(documents_of(cu_seqlens, s))
    key = (b, h, k.shape[1], s, d, q.dtype, id(members), causal, kind, window, documents, scale, sharding)
    made = _made.get(key)
    if made is None:
        while len(_made) >= MOST_MADE:
            _, oldest = _made.popitem(last=False)
            if q.is_cuda:
                torch.cuda.synchronize(q.device)  # its last call may still run
            oldest.close()
        made = _made[key] = Attention(
            b,
            h,
            k.shape[1],
            s,
            d,
            q.dtype,
            members,
            causal=causal,
            kind=kind,
            window=window,
            cu_seqlens=documents or None,
            scale=scale,
            sharding=sharding,
        )
    _made.move_to_end(key)
    return made(q, k, v)
