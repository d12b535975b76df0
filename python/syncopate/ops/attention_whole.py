"""Attention in one call of a fused kernel, with K and V of the whole sequence in the heap as they arrive
(plan/templates/attention.hpp). Where ranks exchange heads, Q, O and the log-sum-exps are there, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _syncopate
from ..call.executable import APART, ROWS, Executable, Operand, Part
from ..call.prepared import Prepared
from ..call.stage_call import Stage
from ..face.fused import FusedKernel
from ..plans import Rows
from ..trace.record import Trace, recorder_of, without_signals
from .attention_gather import AllGather
from .attention_kernel import AttentionKernel
from .attention_places import fits_descriptor, for_descriptor

if TYPE_CHECKING:
    from ..strategy import Strategy


class AttentionAtOnce:
    """`rows`: by rank. The plan of `outline` has Q and O; or not, where `kernel` is told where these are
    (AttentionKernel.place). `gather`: what brings all of K and V before the kernel, whose plan then moves nothing."""

    def __init__(
        self,
        outline: _syncopate.ops.AttentionOutline,
        kernel: AttentionKernel,
        rows: Sequence[Rows],
        strategy: Strategy,
        gather: AllGather | None = None,
        **timing: Any,
    ) -> None:
        self.kernel, self.plan, self._gather = kernel, outline.plan, gather
        self._rows = rows[kernel.group.rank]
        self._most_rows = max(sum(end - begin for begin, end in own) for own in rows)
        self.fused = FusedKernel(
            [Stage(kernel.function, outline.bindings, kernel.known)],
            self.plan,
            kernel.group,
            strategy,
            read_in_place=("K", "V") if kernel.is_placed and kernel.is_gluon else (),
            in_heap=True,
            **timing,
        )
        self.prepared: Prepared | None = None
        self.executable: Executable | None = None

    def prepare(self) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.prepared is None:
            stand_ins = {
                name: torch.empty(
                    shape, dtype=torch.float32 if dtype == "fp32" else self.kernel.problem.dtype,
                    device=self.kernel.device,
                )
                for name, shape, dtype in self.plan.tensors
            }  # fmt: skip
            own = self._own(self._most_rows) if self.kernel.is_placed else []
            self.prepared = self.fused.prepare_calls([self.kernel.call(self._tensors(stand_ins, own))])
            self.executable = Executable(self.prepared, self._operands(), self._arguments)
        self.prepared.require_there()
        return self.prepared

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """q, o [B, H, rows, D], k, v [B, HKV, rows, D] and lse [B, H, rows] of this rank's rows."""
        operands = self._fitting(q, k, v, o, lse)
        prepared = self.prepare()
        if self._gather is not None and prepared.op.had_been_told and self.drops():
            return self(q, k, v, o, lse)  # ranks that know it already make it anew first
        self._bring(k, v)
        try:
            if not self.executable.run(operands):
                raise RuntimeError("attention: its kernel does not take these tensors")  # which were checked
        except ValueError:
            if self.drops() and prepared.op.had_been_told:
                return self(q, k, v, o, lse)
            raise
        if operands[3] is not o:
            o.copy_(operands[3])

    def _bring(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self._gather is not None:
            self._gather(k, v, self.prepared.tensors["K"], self.prepared.tensors["V"])

    def drops(self) -> bool:
        """After a ValueError of its call: whether the ranks' calls differ, so that its next call prepares it anew."""
        if self.prepared is None or not self.fused.drops(self.prepared):
            return False
        self.prepared = self.executable = None
        return True

    def record(self, *operands: torch.Tensor) -> Trace:
        """One more call, recorded; q, k, v, o and lse."""
        fitting = self._fitting(*operands)
        prepared = self.prepare()
        self._bring(*operands[1:3])
        self.executable.native.place(fitting)
        recorder = recorder_of(prepared, self.kernel.options)
        return recorder.call(prepared.arguments(0, self._arguments(fitting)[0]))

    def run_local(self) -> None:
        """The fused kernel alone, on what a call has left in the heap (for benchmarks): nobody waits."""
        prepared = self.prepare()

        def full() -> dict[str, Any]:
            rows = sum(end - begin for begin, end in self._rows)
            own = self._own(rows, torch.randn) if self.kernel.is_placed else []
            return prepared.arguments(0, self._arguments(own)[0]) | {
                "sy_control": prepared.op.control_tensor.clone(),
                "sy_schedule": without_signals(prepared.op.table_tensor),
            }

        prepared.launch_alone("alone", full)

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.prepared = self.executable = None
        self.fused.close()

    def _own(self, rows: int, make: Callable[..., torch.Tensor] = torch.empty) -> list[torch.Tensor]:
        """q, k, v and o of so many rows."""
        p = self.kernel.problem
        heads = (p.h, p.hkv, p.hkv, p.h)
        return [make(p.b, n, rows, p.d, dtype=p.dtype, device=self.kernel.device) for n in heads]

    def _fitting(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        """The same, or copies, where a descriptor of one is needed and cannot be made; of o room for it."""
        if not self.kernel.is_placed:
            return list(operands)
        q, k, v, o, lse = operands
        room = o if fits_descriptor(o) else torch.empty(o.shape, dtype=o.dtype, device=o.device)
        return [*(for_descriptor(tensor) for tensor in (q, k, v)), room, lse]

    def _arguments(self, operands: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        return [self.kernel.arguments(self._tensors(self.prepared.tensors, operands))]

    def _tensors(
        self, heap: Mapping[str, torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What is in the heap, and this rank's own tensors where the kernel reads these."""
        if not self.kernel.is_placed:
            return dict(heap)
        q, k, v, o, *_ = operands
        return dict(heap) | {"Q": q, "O": o, "own K": k, "own V": v}

    def _operands(self) -> list[Operand]:
        """q, k, v, o and lse, as every call gives them."""
        p, made = self.kernel.problem, []
        rows = sum(end - begin for begin, end in self._rows)
        for name in "QKVOL":
            heads, row = p.hkv if name in "KV" else p.h, () if name == "L" else (p.d,)
            moved = self._parts(p.b, heads, row, name) if name in self.prepared.tensors else []
            dtype = torch.float32 if name == "L" else p.dtype
            ways = {"outputs" if name in "OL" else "inputs": moved}
            layout = APART if name in "OL" else ROWS
            made.append(Operand(name.lower(), dtype, (p.b, heads, rows, *row), layout, **ways))
        return made

    def _parts(self, batch: int, heads: int, row: tuple[int, ...], name: str) -> list[Part]:
        """Run by run, where the plan has this rank's rows of a tensor, and where they are in the rank's own."""
        parts, before = [], 0
        for begin, end in self._rows:
            box = [(0, batch), (0, heads), (begin, end), *((0, columns) for columns in row)]
            parts.append((name, box, [0, 0, before, *(0 for _ in row)]))
            before += end - begin
        return parts
