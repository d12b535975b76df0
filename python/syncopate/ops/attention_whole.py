"""Attention in one call of a fused kernel, with K and V of the whole sequence in the heap as they arrive
(plan/templates/attention.hpp). Where ranks exchange heads, Q, O and the log-sum-exps are there, too."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _syncopate
from ..call.prepared import Prepared
from ..call.stage_call import Stage
from ..face.fused import FusedKernel
from ..plans import Rows
from ..trace.record import Trace, recorder_of, without_signals
from .attention_kernel import AttentionKernel
from .attention_places import fits_descriptor, for_descriptor

if TYPE_CHECKING:
    from ..strategy import Strategy


class AttentionAtOnce:
    """`rows`: by rank. The plan of `outline` has Q and O; or not, where `kernel` is told where these are
    (AttentionKernel.place)."""

    def __init__(
        self,
        outline: _syncopate.ops.AttentionOutline,
        kernel: AttentionKernel,
        rows: Sequence[Rows],
        strategy: Strategy,
        **timing: Any,
    ) -> None:
        self.kernel, self.plan = kernel, outline.plan
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
        self._given: dict[str, tuple[int, tuple[int, ...]]] = {}

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
        self.prepared.require_there()
        return self.prepared

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """q, o [B, H, rows, D], k, v [B, HKV, rows, D] and lse [B, H, rows] of this rank's rows."""
        operands = self._fitting(q, k, v, o, lse)
        prepared = self._place(operands)
        try:
            prepared.launch(self._key(operands), lambda: [self._arguments(prepared, operands)])
        except ValueError:
            if self.fused.drops(prepared):
                self.prepared, self._given = None, {}
                if prepared.op.had_been_told:
                    return self(q, k, v, o, lse)
            raise
        if operands[3] is not o:
            o.copy_(operands[3])

    def record(self, *operands: torch.Tensor) -> Trace:
        """One more call, recorded; q, k, v, o and lse."""
        fitting = self._fitting(*operands)
        prepared = self._place(fitting)
        recorder = recorder_of(prepared, self.kernel.options)
        return recorder.call(prepared.arguments(0, self._arguments(prepared, fitting)))

    def run_local(self) -> None:
        """The fused kernel alone, on what a call has left in the heap (for benchmarks): nobody waits."""
        prepared = self.prepare()

        def full() -> dict[str, Any]:
            rows = sum(end - begin for begin, end in self._rows)
            own = self._own(rows, torch.randn) if self.kernel.is_placed else []
            return prepared.arguments(0, self._arguments(prepared, own)) | {
                "sy_control": prepared.op.control_tensor.clone(),
                "sy_schedule": without_signals(prepared.op.table_tensor),
            }

        prepared.launch_alone("alone", full)

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different operators in a call of it: its next call sets it up anew."""
        return self.fused.calls_differ

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.prepared = None
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

    def _arguments(self, prepared: Prepared, operands: Sequence[torch.Tensor]) -> dict[str, Any]:
        return self.kernel.arguments(self._tensors(prepared.tensors, operands))

    def _tensors(
        self, heap: Mapping[str, torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What is in the heap, and this rank's own tensors where the kernel reads these."""
        if not self.kernel.is_placed:
            return dict(heap)
        q, k, v, o, *_ = operands
        return dict(heap) | {"Q": q, "O": o, "own K": k, "own V": v}

    def _key(self, operands: Sequence[torch.Tensor]) -> Hashable:
        if not self.kernel.is_placed:
            return "attention"  # the kernel reads and writes the heap alone
        own = operands[:4] if self.kernel.is_gluon else (operands[0], operands[3])
        return tuple((tensor.data_ptr(), tensor.stride()) for tensor in own)

    def _place(self, operands: Sequence[torch.Tensor]) -> Prepared:
        """Tells the op where q, k, v, o and lse are, as far as they move."""
        prepared = self.prepare()
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
        for begin, end in self._rows:
            box = [(0, tensor.shape[0]), (0, tensor.shape[1]), (begin, end)]
            if name != "L":
                box.append((0, self.kernel.problem.d))
            address = tensor.data_ptr() + skipped * tensor.stride(2) * tensor.element_size()
            give(name, address, list(tensor.stride()), box)
            skipped += end - begin
        self._given[name] = place
