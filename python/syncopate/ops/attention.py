"""Attention over a sequence that is sharded over ranks:

o, lse = sy.ops.attention(q, k, v, causal=True)      q [B, H, S / ranks, D], k, v [B, HKV, S / ranks, D]
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from .attention_passes import AttentionPasses
from .attention_places import fits_descriptor, for_descriptor, is_rising, place_table
from .attention_rules import (
    CIRCULATIONS,
    HEAD_DIMS,
    KINDS,
    SHARDINGS,
    AttentionTiling,
    attention_tiling,
    documents_of,
    plain_tables,
    refusal,
)
from .operator import members_of

if TYPE_CHECKING:
    from ..kernels.gluon_attention_call import GluonAttentionTiling

HOPPER = 9  # the compute capability's first figure
ENGINE_BLOCKS = 8  # of the chunk engine, where the strategy does not say


class Attention:
    """softmax(q @ kᵀ · scale) @ v over a sequence of S rows, sharded over the ranks, for one shape: q [B, H, rows, D], k and v
    [B, HKV, rows, D] on each rank, which gets o like q, and lse [B, H, rows], fp32, the log-sum-exp of the scaled scores.
    dtypes: bf16, fp16; D: 64, 128, 256 (on the host from 16 on); H a multiple of HKV.

    `causal`: a row sees the rows up to itself. `window`: … so many rows up to itself, or without `causal` to either side; 0: all.
    `cu_seqlens`: several documents lie one behind another in the sequence, and rows see only rows of their own: where each
    begins, and the end of the last (0, 137, 2178). `scale`: default D ** -0.5. `kind`: "all_gather", "ring", "double_ring" (`inner` ranks in an inner ring), "ulysses"
    (ranks exchange heads for rows), "ulysses_ring" (`inner` ranks do, and K and V go round between such groups), or "auto".
    `sharding`: which rows a rank holds (`rows`): "contiguous", "zigzag", "documents" (zigzag in each), or "auto": zigzag where
    causal, in each document, which gives ranks alike much work; or `rows`, by rank, any runs of rows. They are cut between tiles,
    unless the sequence is too short for that, or `even`, where ranks are to hold as many rows as each other. `split`: chunks into which each run of rows is cut to be sent. `strategy`: its fields marked *.
    `tiling`: of the plain kernel (attention_tiling), or a GluonAttentionTiling (kernels.gluon_attention_call.tiling_of): then the
    kernel for Hopper runs; default: that one wherever it can, and `why_plain` says why not ("" where it does).

    `bounded`: how many rows of K and V, of the whole sequence, a rank has in the heap at once; True: as many as two ranks
    hold. They then come in passes (ops.attention_passes), and Q, O and lse, which stay where they are, are in no heap. So they do
    where rows are not whole tiles. Not with the kinds that exchange heads.

    Where ranks do not exchange heads, q is read and o stored where they are, by the kernel for Hopper also this rank's own k and v:
    the heap then has K and V for what arrives, and lse.

    Collective: all ranks construct and call it alike. A rank is sent only the rows of K and V that its own rows see, and each
    tile starts with those that have arrived, in whatever order they come. Raises ValueError for what cannot be done.
    """

    name: ClassVar[str] = "attention"
    extents: ClassVar[tuple[str, ...]] = ("B", "H", "HKV", "S", "D")
    keys: ClassVar[Mapping[str, str]] = {"split": "split", "backend": "backend"}
    flags: ClassVar[tuple[str, ...]] = (
        "kind",
        "causal",
        "window",
        "sharding",
        "inner",
        "cu_seqlens",
        "bounded",
    )
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
        even: bool = False,
        bounded: bool | int = False,
        device: str = "cuda",
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.group = members_of(group, device)
        self.dtype, self.causal, self.window = dtype, causal, window
        self.b, self.h, self.hkv, self.s, self.d = b, h, hkv, s, d
        self.scale = d**-0.5 if scale is None else scale
        self.kind = kind
        self._require(inner)
        self.documents = documents_of(cu_seqlens, s)
        self.why_plain = "" if tiling is None else "it was told to"
        self.tiling = self._choose_tiling() if tiling is None else tiling
        self.is_gluon = not isinstance(self.tiling, AttentionTiling)
        if self.is_gluon and self.group.device != "cuda":
            raise ValueError("tiling: the kernel for Hopper does not run on the host; leave it out")
        balanced = "documents" if self.documents else "zigzag"
        self.sharding = (balanced if causal else "contiguous") if sharding == "auto" else sharding
        if self.sharding not in SHARDINGS:
            raise ValueError(f"there is no sharding {self.sharding!r}: one of {', '.join(SHARDINGS)}")
        self.all_rows, stays = self._share_out(rows, even, inner if kind == "ulysses_ring" else 1)
        if bounded or stays:
            self._require_circulation(bool(bounded), inner)
        self.strategy = strategy or Strategy()
        cuda = self.group.device == "cuda"
        if kind == "auto":
            self.kind, inner = self._choose(inner, CIRCULATIONS if bounded or stays else KINDS)
        self.split, self.inner = split, inner
        self.device = torch.device("cuda", self.group.ordinal) if cuda else torch.device("cpu")
        self._timing = {"deadline": deadline, "host_delay": host_delay, "seed": seed}
        self._tables = self._make_tables()
        self.bounded = bounded
        # Where Q and O do not move, they are read and stored where the user has them.
        self.is_placed = (
            self.kind in CIRCULATIONS and not (bounded or stays) and all(is_rising(r) for r in self.all_rows)
        )
        self.kernel = self._stated() if self.is_gluon else kernel
        self._places = self._make_places()
        self.passes = self._in_passes() if bounded or stays else None
        if self.passes is not None:
            self.plan, self.fused = self.passes.plan, self.passes.fused
        else:
            self.plan = self._make_plan(split, inner)
            known = {"bounds_ptr": self._tables["bounds_ptr"].reshape(-1).tolist()} if self.documents else {}
            if self.is_placed and not self.is_gluon:
                known["place_ptr"] = self._places.tolist()
            moving = {tensor for tensor, *_ in self.plan.tensors}
            bind = {p: tensor for p, tensor in self.bindings[0].items() if tensor in moving}
            self.fused = FusedKernel(
                [Stage(self.kernel, bind, known)],
                self.plan,
                self.group,
                self.strategy,
                read_in_place=("K", "V") if self.is_placed and self.is_gluon else (),
                **self._timing,
            )
        self.prepared: Prepared | None = None
        self._recorded: Attention | None = None  # the same by the plain kernel, which keeps times
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
        )
        if name != "gluon":
            return attention_tiling(self.d, self.group.device)
        from ..kernels.gluon_attention_call import tiling_of

        return tiling_of(self.d)

    def _stated(self) -> Any:
        from ..kernels.stated_attention import stated_attention

        return stated_attention(self.causal, self.window > 0, bool(self.documents), placed=self.is_placed)

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
        tables = plain_tables(self.s, self.documents, self.tiling, self.causal, self.window)
        return {name: table.to(self.device) for name, table in tables.items()}

    def _make_places(self) -> torch.Tensor:
        """Where tiles, of the kernel for Hopper blocks of K, begin in this rank's own rows."""
        if not self.is_placed:
            return torch.zeros(1, dtype=torch.int32, device=self.device)
        block = self.tiling.block_n if self.is_gluon else self.tiling.block_m
        table = place_table(self.rows, self.s, block)
        if not self.is_gluon:
            table.clamp_(min=0)  # tiles of other ranks do not run here, but are looked at
        return table.to(self.device)

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

    def _share_out(self, rows: list[Rows] | None, even: bool, group: int) -> tuple[list[Rows], bool]:
        """Which rows each rank holds, and whether some are not whole tiles and stay where they are. `group`: so many ranks
        exchange heads, and then share tiles."""
        ranks, block = self.group.size, self.tiling.block_m

        def cut(multiple: int, group: int = 1) -> list[Rows]:
            return plans.shard_rows(self.s, ranks, self.sharding, multiple, self.documents, group)

        made = rows or cut(block)
        lengths = {sum(end - begin for begin, end in own) for own in made}
        if rows is None and (min(lengths) == 0 or (even and len(lengths) > 1)):
            made = cut(1) if group == 1 or even else cut(block, group)
        whole = all(made) and _syncopate.cut_at_tiles(made, self.s, block, group)
        if whole or self.kind == "ulysses":
            return made, False
        return made, True

    def _require_circulation(self, bounded: bool, inner: int) -> None:
        if self.kind == "auto" or self.kind in CIRCULATIONS:
            return
        groups = self.group.size // max(inner, 1)
        what = (
            "bounded: "
            if bounded
            else f"{groups} groups of {inner} ranks do not each hold whole tiles of {self.tiling.block_m} of {self.s} rows: "
        )
        raise ValueError(
            f"{what}kind {self.kind!r} exchanges rows for heads; take one of {', '.join(CIRCULATIONS)}"
        )

    def _in_passes(self) -> AttentionPasses:
        most = 0
        if self.bounded:
            held = max(sum(end - begin for begin, end in own) for own in self.all_rows)
            most = 2 * held if self.bounded is True else int(self.bounded)
        return AttentionPasses(
            (self.b, self.h, self.hkv, self.s, self.d),
            (self.dtype, DTYPE_NAMES[self.dtype]),
            self.group,
            self.all_rows,
            self.tiling,
            causal=self.causal,
            window=self.window,
            documents=self.documents,
            scale=self.scale,
            circulation=self.kind,
            inner=self.inner if self.kind == "double_ring" else 0,
            split=self.split,
            most=most,
            gluon=self.is_gluon,
            programs=self._programs,
            strategy=self.strategy,
            **self._timing,
        )

    def _choose(self, inner: int, kinds: Sequence[str]) -> tuple[str, int]:
        """Of these kinds the one that the estimate takes for the quickest, and its `inner` (tune/attention.hpp)."""
        ranked = _syncopate.rank_attention(
            (self.b, self.h, self.hkv, self.s, self.d),
            DTYPE_NAMES[self.dtype],
            self.all_rows,
            self.documents,
            self.causal,
            self.window,
            "gluon" if self.is_gluon else "triton",
            (self.tiling.block_m, self.tiling.block_n),
            inner,
            torch.cuda.get_device_name(self.group.ordinal) if self.group.device == "cuda" else "",
        )
        return next((kind, chosen) for kind, chosen, _, why in ranked if kind in kinds and not why)

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
            q_o_stay=self.is_placed,
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
        return torch.cat([whole[:, :, begin:end] for begin, end in rows or [(0, 0)]], 2)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One call: o and lse, into `out` where it is given."""
        o, lse = out or self.empty_outputs()
        if self.passes is not None:
            self._check_operands(q, k, v, o, lse)
            self.passes(q, k, v, o, lse)
            return o, lse
        operands = self._fitting(q, k, v, o, lse)
        prepared = self._place(*operands)
        prepared.launch(self._key(operands), lambda: [self._arguments(self._tensors(prepared, operands))])
        if operands[3] is not o:
            o.copy_(operands[3])
        return o, lse

    def record(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> trace.Trace:
        """One more call, recorded (syncopate.trace). The first one on a GPU compiles: take the second. The kernel for Hopper
        keeps no times: the plain one stands in. Collective then."""
        if self.is_gluon:
            return self._by_plain_kernel().record(q, k, v)
        outputs = self.empty_outputs()  # until the call is over
        if self.passes is not None:
            self._check_operands(q, k, v, *outputs)
            return self.passes.record(q, k, v, *outputs)
        operands = self._fitting(q, k, v, *outputs)
        prepared = self._place(*operands)
        recorder = trace.recorder_of(prepared, self._options)
        return recorder.call(prepared.arguments(0, self._arguments(self._tensors(prepared, operands))))

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
                bounded=self.bounded,
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
        if self.passes is not None:
            return self.passes.run_local()
        prepared = self.prepare()

        def full() -> dict[str, Any]:
            operands = self._own(self.num_rows, torch.randn) if self.is_placed else []
            return prepared.arguments(0, self._arguments(self._tensors(prepared, operands))) | {
                "sy_control": prepared.op.control_tensor.clone(),
                "sy_schedule": trace.without_signals(prepared.op.table_tensor),
            }

        prepared.launch_alone("alone", full)

    def prepare(self) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.passes is not None:
            self.prepared = self.passes.prepare()
        if self.prepared is None:
            stand_ins = {
                name: torch.empty(shape, dtype=_dtype(dtype, self.dtype), device=self.device)
                for name, shape, dtype in self.plan.tensors
            }
            if self.is_placed:
                most = max(sum(end - begin for begin, end in rows) for rows in self.all_rows)
                stand_ins = self._tensors(stand_ins, self._own(most))
            self.prepared = self.fused.prepare_calls([self._call(stand_ins)])
        return self.prepared

    def _own(self, rows: int, make: Callable[..., torch.Tensor] = torch.empty) -> list[torch.Tensor]:
        """q, k, v and o of so many rows."""
        heads = (self.h, self.hkv, self.hkv, self.h)
        return [make(self.b, n, rows, self.d, dtype=self.dtype, device=self.device) for n in heads]

    def _fitting(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        """The same, or copies, where a descriptor of one is needed and cannot be made; of o room for it."""
        self._check_operands(*operands)
        if not self.is_placed:
            return list(operands)
        q, k, v, o, lse = operands
        inputs = [for_descriptor(tensor) for tensor in (q, k, v)]
        return [
            *inputs,
            o if fits_descriptor(o) else torch.empty(o.shape, dtype=o.dtype, device=o.device),
            lse,
        ]

    def _tensors(
        self, prepared: Prepared | Mapping[str, torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What the kernel is given: what is in the heap, and this rank's own tensors where it reads these."""
        tensors = dict(prepared.tensors if isinstance(prepared, Prepared) else prepared)
        if not self.is_placed:
            return tensors
        q, k, v, o, *_ = operands
        return tensors | {"Q": q, "O": o, "own K": k, "own V": v}

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
        if self.passes is not None:
            return self.passes.close()
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
            "place_ptr": self._places,
            "scale": self.scale,
            "H": self.h,
            "HKV": self.hkv,
            "S": self.s,
            "WINDOW": self.window,
            "CAUSAL": self.causal,
            "DOCUMENTS": bool(self.documents),
            "PLACED": "own K" in tensors,
            "D": self.d,
            "BM": m,
            "BN": n,
        }

    def _gluon_arguments(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        from ..kernels.gluon_attention_call import Placed, gluon_attention_arguments

        placed = None
        if "own K" in tensors:
            placed = Placed(self._places, tensors["own K"], tensors["own V"])
        return gluon_attention_arguments(
            *(tensors[name] for name in "QKVOL"),
            self.tiling,
            causal=self.causal,
            window=self.window,
            scale=self.scale,
            documents=tuple(self._tables.values()) or None,
            placed=placed,
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

    def _key(self, operands: Sequence[torch.Tensor]) -> Hashable:
        if not self.is_placed:
            return "attention"  # the kernel reads and writes the heap alone
        own = operands[:4] if self.is_gluon else (operands[0], operands[3])
        return tuple((tensor.data_ptr(), tensor.stride()) for tensor in own)

    @property
    def heap_bytes(self) -> int:
        """Of each rank's memory that all ranks map. Collective, as prepare is."""
        return self.prepare().artifact.heap_bytes

    def _check_operands(self, *operands: torch.Tensor) -> None:
        """q, k, v, o and lse."""
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

    def _place(self, *operands: torch.Tensor) -> Prepared:
        """Tells the op where q, k, v, o and lse are, run of rows by run."""
        prepared = self.prepared or self.prepare()
        for name, tensor in zip("QKVOL", operands, strict=True):
            if name in prepared.tensors:
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
    bounded: bool | int = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of attention over a sequence of `length` rows (default: as many on each rank as here, also where these are no
    whole tiles), of which q [B, H, rows,
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
    key = (
        b,
        h,
        k.shape[1],
        s,
        d,
        q.dtype,
        id(members),
        causal,
        kind,
        window,
        documents,
        scale,
        sharding,
        length is None,
        bounded,
    )
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
            even=length is None,
            bounded=bounded,
        )
    _made.move_to_end(key)
    return made(q, k, v)
