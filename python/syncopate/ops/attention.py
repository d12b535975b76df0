"""Attention over a sequence that is sharded over ranks, for one shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .. import _syncopate, trace
from ..call.arguments import torch_dtype
from ..call.in_graphs import refuse_tracing, runs_whole
from ..call.places import check_operand, require_apart, require_pair, written
from ..call.prepared import Prepared, timing
from ..face.fused import FusedKernel
from ..face.rows import documents_of, require_sharding
from ..group import FailedTogether, Group
from ..plans import Rows
from ..strategy import Strategy
from ..strategy.failures import warn_of_default
from . import attention_choice, attention_rules
from .attention_gather import AllGather
from .attention_kernel import AttentionKernel, AttentionProblem
from .attention_passes import AttentionPasses
from .attention_rules import KINDS, AttentionTiling, attention_tiling, padded_head
from .attention_whole import AttentionAtOnce
from .differentiable import refuse_gradients
from .operator import is_capturing, members_of

if TYPE_CHECKING:
    from ..call.executable import Executable
    from ..kernels.gluon_attention_call import GluonAttentionTiling


class Attention:
    """softmax(q @ kᵀ · scale) @ v over a sequence of S rows, sharded over the ranks, for one shape: q [B, H, rows, D], k and v
    [B, HKV, rows, D] on each rank, which gets o like q, and lse [B, H, rows], fp32, the log-sum-exp of the scaled scores.
    dtypes: bf16, fp16; D: up to 256. The kernels have tiles for 64, 128 and 256 (on the host also 16 and 32): for another D
    each call copies q, k, v and o to the next one's width (`padded_d`). H is a multiple of HKV.

    `causal`: a row sees the rows up to itself. `window`: … so many rows up to itself, or without `causal` to either
    side; 0: all. `cu_seqlens`: several documents lie one behind another in the sequence, and rows see only rows of
    their own: where each begins, and the end of the last (0, 137, 2178; an offset that is repeated is a document of no
    rows). `scale`: default D ** -0.5. `kind`: "all_gather", "ring", "double_ring" (`inner` ranks in an inner ring),
    "ulysses" (ranks exchange heads for rows), "ulysses_ring" (`inner` ranks do, and K and V go round between such
    groups), or "auto". `sharding`: which rows a rank holds (`rows`): "contiguous", one run in the order of the ranks;
    "zigzag", a run from either end, which under a causal mask gives ranks alike much work; or "documents", zigzag in
    each; or `rows`, by rank, any runs of rows. They end where sy.shard_rows cuts, or between tiles if ranks then hold
    other numbers of rows: `shard` and `rows` say it. With `even` they never do the latter. `split`:
    chunks into which each run of rows is cut to be sent. `parts`: of the heads, sent one after another, so that the first tiles
    wait for the first part only; 0: as many as are worth their transfers, but one with a window or documents, and under a
    causal mask by the plain kernel or over nodes. `strategy`: its fields marked *, and kind, inner, split and head_parts, which
    are then those of the call; unfused: torch's all-gather of K and V, then the kernel. Without one what tuning has found is taken,
    or the kind that is estimated to be the quickest. `tiling`: of the plain kernel (attention_tiling), or a GluonAttentionTiling (kernels.gluon_attention_call.tiling_of): then the kernel for Hopper
    runs; default: that one wherever it can, and `why_plain` says why not ("" where it does).

    `bounded`: how many rows of K and V, of the whole sequence, a rank has in the heap at once; True: as many as two ranks
    hold. They then come in passes (ops.attention_passes), and Q, O and lse, which stay where they are, are in no heap.
    So they do where rows are not whole tiles. Not with the kinds that exchange heads.

    Where ranks do not exchange heads, q is read and o stored where they are, by the kernel for Hopper also this rank's
    own k and v: the heap then has K and V for what arrives, and lse.

    Collective: all ranks construct and call it alike. A rank is sent only the rows of K and V that its own rows see, and each
    tile starts with those that have arrived, in whatever order they come. Raises ValueError for what cannot be done.
    """

    name: ClassVar[str] = "attention"

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
        sharding: str = "contiguous",
        split: int = 1,
        parts: int = 0,
        inner: int = 0,
        tiling: AttentionTiling | GluonAttentionTiling | None = None,
        strategy: Strategy | None = None,
        rows: list[Rows] | None = None,
        even: bool = False,
        bounded: bool | int = False,
        device: Any = None,
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        attention_rules.require_extents(b, h, hkv, s, d)
        attention_rules.require_options(causal, window, scale, bounded)
        self.group = members_of(group, device)
        self.dtype, self.causal = torch_dtype(dtype), bool(causal)
        self.window = min(window, s)  # kernels add it to row numbers
        self.b, self.h, self.hkv, self.s, self.d = b, h, hkv, s, d
        self.scale = d**-0.5 if scale is None else scale
        self.kind = self.asked_kind = kind
        self._require(inner)
        self.padded_d = padded_head(d, self.group.device)
        self.documents = documents_of(cu_seqlens, s)
        shape = (b, h, hkv, s, self.padded_d)
        problem = AttentionProblem(*shape, self.dtype, self.causal, self.window, self.documents, self.scale)
        self.kernel = AttentionKernel(problem, self.group, tiling, strategy or Strategy())
        self.device = self.kernel.device
        self.sharding = require_sharding(sharding)
        ranks, block = self.group.size, self.tiling.block_m
        together = inner if kind == "ulysses_ring" else 1  # so many ranks exchange heads, and share tiles
        shared_out = (s, self.documents, ranks, sharding, block, together)
        self.all_rows = rows or _syncopate.ops.attention_rows(*shared_out, even)
        nodes, places = self.group.nodes, ranks // self.group.nodes
        if nodes > 1 and kind == "double_ring":
            inner = inner or places
        if bounded is not True and bounded < 0:
            raise ValueError(f"bounded: expected a number of rows, or True, got {bounded}")
        most = None if not bounded else 0 if bounded is True else int(bounded)
        if parts and kind == "auto":
            raise ValueError("parts: of a kind that you name; `auto` takes as many as are of use")
        self.split, self.parts, self.inner, self.bounded = split, parts, inner, bounded
        #: Whether all else follows from its SPEC, by which tuning knows it.
        self.is_usual = not (
            tiling or self.documents or self.window or bounded or inner or parts or split != 1
            or self.scale != d**-0.5
        ) and self.all_rows == _syncopate.ops.attention_rows(*shared_out, False)  # fmt: skip
        self._asked_for = kind, inner, split, parts
        self._timing = timing(deadline, host_delay, seed)
        self._way: AttentionPasses | AttentionAtOnce | None = None
        self._left: list[AttentionPasses | AttentionAtOnce] = []  # by what was found and failed
        taken, found = attention_choice.chosen(self, strategy, most)
        #: What tuning found has yet to show that it works here, on all ranks.
        self._on_trial = found and taken.fused
        if self._on_trial:
            with self.group.calling(self._what):
                self._together("made", lambda: self._take(taken, most))
        else:
            self._take(taken, most)
        if nodes > 1 and self.device.type == "cuda" and not self.is_gluon:
            # Its tiles, one a program, may hold all multiprocessors while they wait for what NCCL brings on one.
            raise ValueError(
                "attention over nodes on GPUs takes the kernel for Hopper, whose programs leave room for NCCL"
            )
        self._recorded: Attention | None = None  # the same by the plain kernel, which keeps times

    def _take(self, strategy: Strategy, most: int | None) -> None:
        attention_choice.take(self, strategy)
        self._way = self._set_up(most)

    def _together(self, what: str, work: Callable[[], Any]) -> bool:
        """Work by a strategy that tuning found. Where it fails on any rank, all take the kind that is chosen without it: False."""
        try:
            self.group.together(what, work)
            return True
        except FailedTogether as error:
            warn_of_default(self.spec, self.strategy.name, error, stacklevel=4)
        self._on_trial = False
        if self._way is not None and self._way.prepared is not None:
            self._left.append(self._way)
        self.kind, self.inner, self.split, self.parts = self._asked_for
        self.kernel = AttentionKernel(self.kernel.problem, self.group, None, Strategy())
        taken, _ = attention_choice.chosen(self, None, None, looks=False)
        self._take(taken, None)
        return False

    def _require(self, inner: int) -> None:
        h, hkv = self.h, self.hkv
        attention_rules.require_kind(self.dtype, h, hkv)
        if self.window < 0:
            raise ValueError(f"window: expected 0 or more rows, got {self.window}")
        if not math.isfinite(self.scale):
            raise ValueError(f"scale: expected a finite number, got {self.scale}")
        if self.kind not in ("auto", *KINDS):
            raise ValueError(f"there is no kind {self.kind!r}: one of auto, {', '.join(KINDS)}")
        if self.kind != "auto" and (
            why := _syncopate.ops.attention_objection(self.kind, self.group.size, h, inner)
        ):
            raise ValueError(f"kind {self.kind!r}: {why}")

    def _set_up(self, most: int | None) -> AttentionPasses | AttentionAtOnce:
        """`most`: rows of K and V at once; 0: as many as two ranks hold; None: all (C++: ops/attention.hpp)."""
        kernel = self.kernel
        task = kernel.problem.task(
            self.all_rows, self.tiling, kind=self.kind, inner=self.inner, split=self.split, parts=self.parts,
            nodes=self.group.nodes, bounded=most, gathered=self.strategy.unfused,
        )  # fmt: skip
        made = _syncopate.ops.attention(task)
        kernel.relays = made.relays
        if made.passes is not None:
            return AttentionPasses(
                made, kernel, self.all_rows, self.strategy, what=self._what, in_step=self._on_trial,
                **self._timing,
            )  # fmt: skip
        kernel.together = made.together
        if made.placed:  # Q and O, which do not move, are read and stored where the user has them
            kernel.place(self.rows)
        gather = AllGather(self.group, self.all_rows, self.device) if self.strategy.unfused else None
        return AttentionAtOnce(
            made, kernel, self.all_rows, self.strategy, gather, what=self._what, in_step=self._on_trial,
            **self._timing,
        )  # fmt: skip

    @property
    def _what(self) -> str:
        """The call, with what tells variants of the operator apart."""
        options = ("causal", "window", "documents", "sharding", "kind", "inner", "split", "parts", "bounded")
        given = {name: getattr(self, name) for name in options if getattr(self, name)}
        if self.scale != self.d**-0.5:
            given["scale"] = self.scale
        return f"{self.name} {[self.b, self.h, self.hkv, self.s, self.d]} {self.dtype} {given}"

    @property
    def spec(self) -> str:
        """SPEC, and the key by which tuning knows it."""
        return attention_choice.spec_of(self)

    @property
    def tiling(self) -> AttentionTiling | GluonAttentionTiling:
        """The kernel's tiles."""
        return self.kernel.tiling

    @property
    def is_gluon(self) -> bool:
        """Whether the kernel for Hopper runs."""
        return self.kernel.is_gluon

    @property
    def why_plain(self) -> str:
        """Why it does not; "" where it does."""
        return self.kernel.why_plain

    @property
    def is_placed(self) -> bool:
        """Whether q is read and o stored where they are, and not through the heap."""
        return self.kernel.is_placed or self.passes is not None

    @property
    def passes(self) -> AttentionPasses | None:
        """Where K and V come in passes, or rows stay where they are."""
        return self._way if isinstance(self._way, AttentionPasses) else None

    @property
    def plan(self) -> _syncopate.Plan:
        """Who sends which rows of K and V to whom."""
        return self._way.plan

    @property
    def fused(self) -> FusedKernel:
        """The kernel and the plan, fused. Collective on first use."""
        return self._way.fused

    def held_bytes(self) -> int:
        """Bytes of the heap on this rank."""
        return self.prepare().artifact.heap_bytes

    @property
    def prepared(self) -> Prepared | None:
        """What is set up; None before the first call, and after close()."""
        return self._way.prepared

    @property
    def _executable(self) -> Executable | None:
        """By which C++ makes a whole call alone; None before the first call, and where it takes several."""
        alone = isinstance(self._way, AttentionAtOnce) and not (self.strategy.unfused or self._on_trial)
        return self._way.executable if alone else None

    def drops(self) -> bool:
        """After a ValueError of a call that C++ made alone: whether the ranks' calls differ, so that its next call prepares it
        anew."""
        return isinstance(self._way, AttentionAtOnce) and self._way.drops()

    @property
    def rows(self) -> Rows:
        """The rows of the sequence that this rank holds, runs of (begin, end), in the order in which q, k, v, o and lse have
        them."""
        return self.all_rows[self.group.rank]

    @property
    def num_rows(self) -> int:
        """Rows of the sequence on this rank."""
        return sum(end - begin for begin, end in self.rows)

    def shard(self, whole: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """What a rank (default: this one) holds of a tensor [B, heads, S, …]."""
        rows = self.all_rows[self.group.rank if rank is None else rank]
        return torch.cat([whole[:, :, begin:end] for begin, end in rows or [(0, 0)]], 2)

    @runs_whole
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One call: o and lse, into `out` where it is given."""
        refuse_tracing("Attention")
        o, lse = self.empty_outputs() if out is None else require_pair(out)
        self._check_operands(q, k, v, *(() if out is None else (o, lse)))
        refuse_gradients("Attention", "sy.ops.attention", "qkv", (q, k, v))
        if out is not None:
            written(o, lse)
        wide = self._padded(q, k, v, o)
        if not self._on_trial or is_capturing(self.device) or not self._try(*wide, lse):
            self._way(*wide, lse)
        if self.padded_d != self.d:
            o.copy_(wide[3][..., : self.d])
        return o, lse

    def _try(self, *operands: torch.Tensor) -> bool:
        """The first call by what tuning found. False: it failed, and another way is set up. Collective."""

        def first() -> None:
            try:
                self._way(*operands)
                self.check()
            except Exception:
                if self._way.prepared is not None:  # else the ranks' calls differ
                    self._way.prepared.op.give_up()  # the others need not wait for what fails here
                raise

        with self.group.calling(self._what):
            ran = self._together("prepared", self._way.prepare) and self._together("run", first)
        self._on_trial = False
        return ran

    def _padded(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        """With heads of the kernel's size: columns of zeros change no score, and make columns of zeros."""
        more = self.padded_d - self.d
        return [torch.nn.functional.pad(one, (0, more)) if more else one for one in operands]

    def record(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> trace.Trace:
        """One more call, recorded (syncopate.trace). The first one on a GPU compiles: take the second. The kernel for Hopper
        keeps no times: the plain one stands in. Collective then."""
        if self.is_gluon:
            return self._by_plain_kernel().record(q, k, v)
        o, lse = self.empty_outputs()
        self._check_operands(q, k, v)
        wide = self._padded(q, k, v, o)  # until the call is over
        return self._way.record(*wide, lse)

    def _by_plain_kernel(self) -> Attention:
        """This operator by the plain kernel, with the same rows on each rank."""
        if self._recorded is None:
            names = (
                "causal",
                "kind",
                "window",
                "scale",
                "sharding",
                "split",
                "parts",
                "inner",
                "strategy",
                "bounded",
            )
            self._recorded = Attention(
                self.b, self.h, self.hkv, self.s, self.d, self.dtype, self.group, cu_seqlens=self.documents or None,
                rows=self.all_rows, tiling=attention_tiling(self.padded_d, self.group.device),
                **{name: getattr(self, name) for name in names}, **self._timing,
            )  # fmt: skip
        return self._recorded

    def unfused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The unmodified kernel alone, on whole tensors [B, heads, S, D]: o and lse of the whole sequence."""
        o, lse = self.kernel.alone(*self._padded(q, k, v))
        return o[..., : self.d], lse

    def run_local(self) -> None:
        """The fused kernel alone, on a GPU after a call, on what that one has left in the heap: nobody waits, and nothing is
        posted (for benchmarks)."""
        self._way.run_local()

    def prepare(self) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self._on_trial and self.prepared is None:
            with self.group.calling(self._what):
                self._together("prepared", self._way.prepare)
        return self._way.prepare()

    def empty_outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """o and lse of this rank, with no values yet."""
        shape = (self.b, self.h, self.num_rows)
        return (
            torch.empty(*shape, self.d, dtype=self.dtype, device=self.device),
            torch.empty(*shape, dtype=torch.float32, device=self.device),
        )

    def reset(self) -> None:
        """After a call that failed on all ranks since one was late: calls go on. Collective."""
        self.fused.reset()

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        self.fused.check()

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different operators in a call of it: its next call sets it up anew."""
        return self.fused.calls_differ

    def close(self) -> None:
        """Frees the heap. Collective."""
        if self._recorded is not None:
            self._recorded.close()
            self._recorded = None
        for way in (*self._left, self._way):
            way.close()
        self._left.clear()

    @property
    def heap_bytes(self) -> int:
        """Of each rank's memory that all ranks map. Collective, as prepare is."""
        return self.prepare().artifact.heap_bytes

    def _check_operands(self, *operands: torch.Tensor) -> None:
        """q, k, v, and where they are given o and lse."""
        n = self.num_rows
        shapes = {
            "q": (self.b, self.h, n, self.d),
            "k": (self.b, self.hkv, n, self.d),
            "v": (self.b, self.hkv, n, self.d),
            "o": (self.b, self.h, n, self.d),
            "lse": (self.b, self.h, n),
        }
        for (name, shape), tensor in zip(shapes.items(), operands, strict=False):
            dtype = torch.float32 if name == "lse" else self.dtype
            check_operand(name, tensor, shape, dtype, self.group.device)
            if tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name}: the last axis must be contiguous, its stride is {tensor.stride(-1)}"
                )
            if name in ("o", "lse"):
                require_apart(name, tensor)
