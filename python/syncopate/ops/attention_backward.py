"""The backward of attention over a sequence that is sharded over ranks, fused (C++: ops/attention_backward.hpp): K and V come
again while tiles run, and what a tile adds to their gradients leaves as it is complete."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from ..call.in_graphs import refuse_tracing, runs_whole
from ..call.places import check_operand, require_tensors
from ..call.prepared import Prepared, timing
from ..call.stage_call import Stage
from ..face.fused import FusedKernel
from ..face.rows import whole_of
from ..kernels import attention_backward as kernels
from ..plans import Rows
from ..strategy import Strategy, shared
from .attention import Attention
from .attention_backward_launches import BackwardLaunches
from .attention_backward_tables import count_rows
from .attention_kernel import HOPPER
from .attention_passes import Slice
from .attention_places import for_descriptor
from .operator import members_of

if TYPE_CHECKING:
    from ..group import Group

#: grad, grad_lse, q, k, v, o, lse.
Operands = tuple[
    torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]
SPLIT = 4  # chunks of a run of rows on a GPU, unless `split` or parts of heads say: nothing hides the last one's way back

#: why_kind of "auto".
OF_AUTO = "the quickest by an estimate of its own, whatever the forward's kind"


class AttentionBackward(BackwardLaunches):
    """Gradients of q, k and v for one shape; arguments as of Attention, of the forward. With `bounded`, K and V come in passes, as
    many as leave equal slices of each run of rows: ValueError where there are none. `kind` is the one that is carried out, and
    `why_kind` says why it is not the one asked for, or that "auto" has taken it: by an estimate of its own, so that the forward's may be
    another. `parts` is not of the backward where groups of ranks exchange heads. `deterministic`: dQ is made in a fixed order by a kernel of
    its own: two products more for each five. `kept`: calls give K and V of the whole sequence, [B, HKV, S, D], as the forward has gathered
    them, and only gradients move. `gathers`: over nodes tiles that wait must leave multiprocessors to NCCL; where they do not, a call
    gathers K and V by torch first, `bounded` or not, and goes on as with `kept`.

    `is_alone`: one rank runs Hopper's kernel by itself, without a program and a heap. Its grid then shares out more.

    The heap has K, V (but with `kept`) and their gradients in fp32 of the whole sequence, and of the other ranks'
    contributions as much again as a rank holds. Where all ranks exchange heads it has Q, dO, K, V and the gradients of the whole
    sequence, all in the call's dtype, and of this rank's heads once more.

    Collective: all ranks construct and call it alike. Raises ValueError for what cannot be done."""

    name: ClassVar[str] = "attention_backward"

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
        deterministic: bool = False,
        kept: bool = False,
        bounded: bool | int = False,
        strategy: Strategy | None = None,
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        asked, members = options.get("kind", "auto"), members_of(group, options.get("device"))
        named = options
        if asked == "auto" and members.nodes == 1 and not options.get("parts"):  # these Attention refuses
            # One that need not be ranked: what is read of the forward is alike for all that "auto" takes.
            named = options | {"kind": "all_gather"}
        how = strategy or Strategy()  # nothing of the forward is looked up
        forward = Attention(b, h, hkv, s, d, dtype, members, strategy=how, bounded=bounded, **named)
        problem, self.group, self.device = forward.kernel.problem, forward.group, forward.device
        self.problem, self.d = problem, d
        self._programs = forward.kernel.programs
        self.deterministic, self.kept = deterministic, kept
        cuda = self.group.device == "cuda"
        hopper = cuda and torch.cuda.get_device_capability(self.group.ordinal)[0] == HOPPER
        name, tile, of_q, self.why_plain = _syncopate.ops.attention_backward_kernel(
            problem.d, DTYPE_NAMES[problem.dtype], problem.scale, cuda, hopper
        )
        self.is_gluon = name == "gluon"
        self.block_m, self.block_n = tile["block_m"], tile["block_n"]
        self.q_rows = of_q["block_m"]  # of a block of dQ's own kernel
        self._options = {"num_warps": tile["warps"], "num_stages": tile["stages"]}
        self.all_rows, self.rows = forward.all_rows, forward.rows
        self.num_rows = count_rows(self.rows)
        if not all(map(count_rows, self.all_rows)):
            counts = ", ".join(str(count_rows(rows)) for rows in self.all_rows)
            raise ValueError(
                f"the backward of attention takes rows on every rank; of {s} the ranks hold {counts}"
            )
        self.most_rows = max(map(count_rows, self.all_rows))
        self._first_row = sum(map(count_rows, self.all_rows[: self.group.rank]))

        def task(parts: int = 0) -> Any:
            of_forward = problem.task(
                self.all_rows, self, parts=parts, nodes=self.group.nodes,
                bounded=None if not bounded else 0 if bounded is True else int(bounded),
            )  # fmt: skip
            return _syncopate.ops.AttentionBackwardTask(of_forward, self.is_gluon, deterministic, self.kept)

        def outlined() -> Any:
            exchanged, pieces = self.kind == "ulysses", options.get("split")
            # Who asks for pieces of rows, which go around, asks for no parts of heads.
            parts = options.get("parts") or (1 if pieces and not exchanged else 0)
            if self.kind == "ulysses_ring":
                parts = 0
            pieces = (pieces or 1) if exchanged else split
            made = _syncopate.ops.attention_backward(task(parts), self.kind, inner, pieces)
            self.plan, self.exchanges, self._together = made.plan, made.exchanges, made.together
            self._shared_by = made.sharing  # neighbours that share the heads
            self._in_groups = 1 < self._shared_by < self.group.size
            self._make_tables(made.passes)
            return made

        split = options.get("split") or (SPLIT if cuda else 1)
        self.kind, self.why_kind, inner = self._choose(task(), forward, asked, split)
        made = outlined()
        self.gathers = not self._has_room()
        if self.gathers:
            self.kept, self.kind, bounded = True, "all_gather", False
            made = outlined()
        in_order = sorted(self.rows) == list(self.rows) and self.count == 1
        self.is_alone = self.group.size == 1 and self.is_gluon and not deterministic and in_order
        if not self.is_alone:
            self._make_scratch()
        # The plain kernel's loops are as long as the bounds say; where K and V come in passes, no tensor of the plan is in them.
        unknown = self.is_gluon and (not self.exchanges or self._in_groups)
        known = {} if unknown else self._known("bounds")
        stages = [Stage(self._function(), made.bindings[0], known)]
        if self.exchanges:
            second = kernels.attention_backward_q if deterministic else kernels.finish_rows
            stages.append(Stage(second, made.bindings[1], self._known("blocks") if deterministic else {}))
        self.fused = FusedKernel(
            stages, self.plan, self.group, strategy, in_heap=True,
            what=f"{self.name} {[b, h, hkv, s, d]} {dtype} deterministic={deterministic} kept={kept} bounded={bounded} {options}",
            **timing(deadline, host_delay, seed),
        )  # fmt: skip
        self.prepared: Prepared | None = None

    def _choose(self, task: Any, forward: Attention, kind: str, split: int) -> tuple[str, str, int]:
        """The kind that is carried out, why it is not the one asked for, and its `inner`: of "auto" the quickest by its own
        estimate, whatever the forward's is."""
        if kind != "auto" or self.group.nodes > 1 or self.group.size == 1:
            size, nodes = self.group.size, self.group.nodes
            asked = (size, self.problem.hkv, forward.inner, nodes, self.deterministic, self.kept)
            return *_syncopate.ops.backward_kind(forward.kind, *asked), forward.inner
        device = torch.cuda.get_device_name(self.group.ordinal) if self.group.device == "cuda" else ""
        with self.group.calling(f"{self.name} {list(self.problem.shape)}"):
            machine = self.group.machine
            ranked = _syncopate.ops.rank_attention_backward(task, forward.inner, split, device, machine)
            best = next(
                (Strategy(kind=one, inner=inner) for one, inner, _, why in ranked if not why), Strategy()
            )
            best, _ = shared(best, False, self.group)
        if not best.kind:
            raise ValueError("; ".join(f"{one}: {why}" for one, _, _, why in ranked))
        return best.kind, OF_AUTO, best.inner

    def prepare(self) -> Prepared | None:
        """Fuses and compiles on first use; None: `is_alone`. Collective."""
        if self.is_alone:
            return None
        if self.prepared is None:
            stand_ins = {
                name: torch.empty(shape, dtype=torch.float32 if dtype == "fp32" else self.problem.dtype, device=self.device)
                for name, shape, dtype in self.plan.tensors
            }  # fmt: skip
            own = self._empty(self.problem.h, self.most_rows)
            self.prepared = self.fused.prepare_calls(self._calls(stand_ins, own, own))
            if self.exchanges:  # rows that nobody sends, which a block of Q may have behind its last one
                held = count_rows(self._walked_rows(self.group.rank))
                self.prepared.tensors["LSE.heads"][:, :, held:] = math.inf
                for name in ("DELTA", "Q", "DO"):
                    self.prepared.tensors[f"{name}.heads"][:, :, held:] = 0.0
        self.prepared.require_there()
        return self.prepared

    @runs_whole
    def __call__(
        self,
        grad: torch.Tensor,
        grad_lse: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of q, k and v of this rank's rows, for `grad`, the one of o, and `grad_lse`, the one of lse (None: 0). q, o
        [B, H, rows, D], k, v [B, HKV, rows, D] and lse [B, H, rows] as the forward had them. With `kept` k and v are whole."""
        refuse_tracing("AttentionBackward")
        if self.gathers:
            self._require_shards(k=k, v=v)
            k, v = self._gathered(k), self._gathered(v)
        given = self._taken(grad, grad_lse, q, k, v, o, lse)
        while True:
            prepared = self.prepare()
            if prepared is None:
                return self._made_alone(*given)
            try:
                return self._made(prepared, *given)
            except ValueError:
                if not self.fused.drops(prepared):
                    raise
                self.prepared = None
                if not prepared.op.had_been_told:
                    raise  # else what ended it was no news to this rank

    def _require_shards(self, **operands: torch.Tensor) -> None:
        p = self.problem
        require_tensors(**operands)
        for name, one in operands.items():
            check_operand(name, one, (p.b, p.hkv, self.num_rows, self.d), p.dtype, self.group.device)

    def _taken(self, *given: torch.Tensor | None, whole: bool = False) -> Operands:
        """The operands of a call as the kernels take them. Raises ValueError, naming it, for one that does not fit."""
        grad, grad_lse, q, k, v, o, lse = given
        p = self.problem
        of_q, of_k = (p.b, p.h, self.num_rows), (p.b, p.hkv, p.s if whole or self.kept else self.num_rows)
        operands = {"grad": grad, "q": q, "k": k, "v": v, "o": o}
        require_tensors(**operands, lse=lse)
        for name, one in operands.items():
            shape = (*(of_k if name in ("k", "v") else of_q), self.d)
            check_operand(name, one, shape, p.dtype, self.group.device)
        for name, one in {"grad_lse": grad_lse, "lse": lse}.items():
            if one is not None:
                check_operand(name, one, of_q, torch.float32, self.group.device)
        grad, q, k, v, o = (for_descriptor(self._padded_head(one)) for one in operands.values())
        return grad, None if grad_lse is None else grad_lse.contiguous(), q, k, v, o, lse.contiguous()

    def _made(
        self,
        prepared: Prepared,
        grad: torch.Tensor,
        grad_lse: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *forward: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        p = self.problem
        self._prepare_rows(grad, grad_lse, *forward)
        dk, dv = (self._empty(p.hkv, self.num_rows) for _ in range(2))
        dq = self._empty(p.h, self.num_rows)
        for turn in range(self.count):
            self._give(prepared, turn, q, grad, k, v, dq, dk, dv)
            prepared.launch(
                (turn, self._key(q, grad)),
                lambda turn=turn: [call.arguments for call in self._calls(prepared.tensors, q, grad, turn)],
            )
            if self._in_groups:
                self._take_sums(prepared.tensors, [Slice(0, self._first_row, self.num_rows)], dk, dv)
            if not self.exchanges:
                self._take_sums(prepared.tensors, self._slices[turn], dk, dv)
                self._make_dq(prepared.tensors, q, grad, dq, turn)
        return dq[..., : self.d], dk[..., : self.d], dv[..., : self.d]

    def _made_alone(
        self, grad: torch.Tensor, grad_lse: torch.Tensor | None, *operands: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from ..kernels.gluon_attention_backward_call import attend_backward

        p, tables = self.problem, self._tables[0]
        seen: dict[str, Any] = {"causal": p.causal, "window": p.window}
        if p.documents:
            seen = {"tables": (tables.bounds, tables.seen)}
        dq, dk, dv = attend_backward(grad, *operands, grad_lse=grad_lse, scale=p.scale, **seen)
        return dq[..., : self.d], dk[..., : self.d], dv[..., : self.d]

    def _padded_head(self, operand: torch.Tensor) -> torch.Tensor:
        """With heads of the kernel's size: columns of zeros change no score, and get zeros."""
        more = self.problem.d - self.d
        return torch.nn.functional.pad(operand, (0, more)) if more else operand

    def unfused(self, *operands: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The unmodified kernels alone, with a call's operands, but k and v of the whole sequence: dq, and this rank's
        contributions to dk and dv, [B, HKV, S, D] in fp32, which are to be summed over ranks."""
        p = self.problem
        if self.exchanges or self.count > 1:
            raise ValueError(
                "unfused: in passes, or where ranks exchange heads, none makes a contribution by itself"
            )
        grad, grad_lse, q, k, v, o, lse = self._taken(*operands, whole=True)
        if self.is_alone:
            self._make_scratch()
        self._prepare_rows(grad, grad_lse, o, lse)
        heap = {"K": k, "V": v} | {name: self._empty(p.hkv, p.s, torch.float32) for name in ("DK", "DV")}
        (call,) = self._calls(heap, q, grad)
        self._launch(self._function(), call.grid, **call.arguments, **call.options)
        dq = self._empty(p.h, self.num_rows)
        self._make_dq(heap, q, grad, dq)
        return dq[..., : self.d], *(heap[name][..., : self.d] for name in ("DK", "DV"))

    def held_bytes(self) -> int:
        """Bytes of the heap on this rank."""
        return self.heap_bytes

    @property
    def heap_bytes(self) -> int:
        """Of each rank's memory that all ranks map. Collective, as prepare is."""
        prepared = self.prepare()
        return prepared.artifact.heap_bytes if prepared else 0

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different operators in a call of it: its next call sets it up anew."""
        return self.fused.calls_differ

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        if self.is_alone and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.fused.check()

    def reset(self) -> None:
        """After a call that failed on all ranks since one was late: calls go on. Collective."""
        self.fused.reset()

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.prepared = None
        self.fused.close()

    def _room(self) -> int | None:
        """Multiprocessors for tiles, one a program, that wait for what NCCL brings from other nodes on some of its own; None: none
        waits."""
        if self.group.nodes == 1 or self.device.type != "cuda" or self.kept:
            return None
        return self._programs

    def _has_room(self) -> bool:
        """Else K and V are gathered before, so that no tile waits. Raises ValueError where there is nothing to gather by."""
        room, of_q = self._room(), self.exchanges and self.deterministic
        tiles = max(self._tiles, self._blocks_of_q if of_q else 0)  # of dQ's own kernel, which waits, too
        if room is None or tiles <= room:
            return True
        self.why_kind = (
            f"over nodes its {tiles} tiles that wait are more than the {room} multiprocessors that are left to them, so K and V "
            "of the whole sequence are gathered before"
        )
        if self.group.process_group is None:
            raise ValueError(f"{self.name}: {self.why_kind}, which takes a torch process group")
        return False

    def _gathered(self, shard: torch.Tensor) -> torch.Tensor:
        whole = whole_of(shard.movedim(2, 0), self.all_rows, self.problem.s, self.group.process_group)
        return whole.movedim(0, 2).contiguous()

    def _give(
        self, prepared: Prepared, turn: int, q: torch.Tensor, grad: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor,
    ) -> None:  # fmt: skip
        """Tells the op where this rank's rows of the plan's tensors are."""
        op = prepared.op
        if self.exchanges:
            first = self._first_row
            outputs = {"DQ": dq} if self._in_groups else {"DQ": dq, "DK": dk, "DV": dv}
            inputs = {"Q": q, "DO": grad, "K": k, "V": v, "LSE": self._lse, "DELTA": self._delta}
            for give, given in ((op.set_input, inputs), (op.set_output, outputs)):
                for name, tensor in given.items():
                    box = [(0, n) for n in tensor.shape]
                    box[2] = (first, first + self.num_rows)
                    give(name, tensor.data_ptr(), list(tensor.stride()), box)
            return
        own = self._slices[turn]
        whole = [Slice(begin, begin, end - begin) for begin, end in self._first_held()] if self.kept else own
        for name, tensor in {"K": k, "V": v}.items():
            for part in whole:
                address = tensor.data_ptr() + part.begin * tensor.stride(2) * tensor.element_size()
                box = [(0, n) for n in tensor.shape]
                box[2] = (part.place, part.place + part.places)
                op.set_input(name, address, list(tensor.stride()), box)

    def _first_held(self) -> Rows:
        """The rows of K that the plan says this rank has at first."""
        return [tuple(box[2]) for name, box in self.plan.initial(self.group.rank) if name == "K"]
