"""Attention of rows that stay where they are, to K and V that come a slice at a time (plan/templates/attention_passes.hpp).

Q, O and the log-sum-exps are each rank's own tensors, and only the K and V of one pass are in the heap: few rows of a long
sequence, or all of one that is too short to be cut at whole tiles. Each pass is a call of one fused kernel; what it has made
of a row so far is carried on in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from .. import _syncopate
from ..call.prepared import Prepared
from ..call.stage_call import Call, Stage
from ..face.fused import FusedKernel
from ..kernels.attention_pass import attention_pass
from ..plans import Rows
from ..trace.record import Trace, recorder_of, without_signals
from .attention_rules import seen_rows

if TYPE_CHECKING:
    from ..strategy import Strategy
    from .attention_kernel import AttentionKernel


@dataclass(frozen=True)
class Slice:
    """Rows [begin, begin + places) of this rank's K and V, which go to places [place, place + places) of a pass."""

    begin: int
    place: int
    places: int


@dataclass(frozen=True)
class Tables:
    """What the kernel looks up in a pass: int32 positions [width], and of the kernel for Hopper bounds, seen and order."""

    positions: torch.Tensor
    documents: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None


class AttentionPasses:
    """softmax(q @ kᵀ · scale) @ v of this rank's rows, in `count` passes: what ops.Attention does where rows are not
    whole tiles, or where memory is to be bounded. `width`: rows of K and V that a rank has in the heap at once.

    `outline`: with its passes. `rows`: by rank, any runs. Ranks with fewer rows than others work on copies that are as long.
    """

    def __init__(
        self,
        outline: _syncopate.ops.AttentionOutline,
        kernel: AttentionKernel,
        rows: Sequence[Rows],
        strategy: Strategy,
        **options: Any,
    ) -> None:
        problem, self.group, self.device = kernel.problem, kernel.group, kernel.device
        self.b, self.h, self.hkv, self.s, self.d = problem.shape
        self.dtype, self.tiling, self.scale = problem.dtype, kernel.tiling, problem.scale
        self.is_gluon, self._programs = kernel.is_gluon, kernel.programs
        self._rows = rows[self.group.rank]
        self.plan = outline.plan
        self.width, self._places, self._slices = outline.passes
        self.count = len(self._slices)
        self.num_rows = sum(end - begin for begin, end in self._rows)
        self.most_rows = max(sum(end - begin for begin, end in own) for own in rows)
        self._tables = self._make_tables(problem.causal, problem.window, problem.documents)
        rows_kept = self.most_rows if self.count > 1 else 1
        kept = (self.b, self.h, rows_kept)
        self._carry = torch.empty(*kept, self.d, dtype=torch.float32, device=self.device)
        self._tops = torch.empty(2, *kept, dtype=torch.float32, device=self.device)
        self._padded: list[torch.Tensor] | None = None
        function = self._stated() if self.is_gluon else attention_pass
        self.fused = FusedKernel(
            [Stage(function, outline.bindings)],
            self.plan,
            self.group,
            strategy,
            in_heap=True,
            **options,
        )
        self.prepared: Prepared | None = None

    def _stated(self) -> Any:
        from ..kernels.stated_attention import stated_attention

        return stated_attention(one_pass=True)

    def _make_tables(self, causal: bool, window: int, documents: Sequence[int]) -> list[Tables]:
        """By pass."""
        seen = torch.zeros(2, self.most_rows, dtype=torch.int64)
        seen[:, : self.num_rows] = seen_rows(self._rows, self.s, causal, window, documents)
        self._seen = seen.to(self.device, torch.int32)
        made = []
        for by_rank in self._slices:
            at = torch.full((self.width,), -1, dtype=torch.int64)
            for places, slices in zip(self._places, by_rank, strict=True):
                for (begin, _), ((first, end), fresh) in zip(places, slices, strict=True):
                    at[begin + fresh - first : begin + end - first] = torch.arange(fresh, end)
            tables = None
            if self.is_gluon:
                from ..kernels.gluon_attention_call import pass_tables

                found = pass_tables(seen, at, self.tiling.block_m, self.tiling.block_n)
                tables = (found[0].to(self.device), self._seen, found[2].to(self.device))
            made.append(Tables(at.to(self.device, torch.int32), tables))
        return made

    def slices_of(self, index: int) -> list[Slice]:
        """What this rank brings to a pass."""
        local, made = 0, []
        slices = self._slices[index][self.group.rank]
        for run, place, ((first, _), _) in zip(
            self._rows, self._places[self.group.rank], slices, strict=True
        ):
            made.append(Slice(local + first - run[0], place[0], place[1] - place[0]))
            local += run[1] - run[0]
        return made

    def prepare(self) -> Prepared:
        """Fuses and compiles on first use. Collective."""
        if self.prepared is None:
            heads = (self.h, self.hkv, self.hkv, self.h)
            sizes = (self.most_rows, self.width, self.width, self.most_rows)
            q, k, v, o = (
                torch.empty(self.b, n, rows, self.d, dtype=self.dtype, device=self.device)
                for n, rows in zip(heads, sizes, strict=True)
            )
            lse = torch.empty(self.b, self.h, self.most_rows, dtype=torch.float32, device=self.device)
            call = Call(self._grid, self._arguments(0, q, k, v, o, lse), self._options)
            self.prepared = self.fused.prepare_calls([call])
        self.prepared.require_there()
        return self.prepared

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """q, o [B, H, rows, D], k, v [B, HKV, rows, D] and lse [B, H, rows] of this rank's rows."""
        prepared = self.prepare()
        own = self._as_long(q, o, lse)
        try:
            for index in range(self.count):
                self._bring(prepared, index, k, v)
                prepared.launch(
                    (index, *(t.data_ptr() for t in own)),
                    lambda index=index: [self._given(prepared, index, own)],
                )
        except ValueError:
            if self.fused.drops(prepared):
                self.prepared = None
                if prepared.op.had_been_told:
                    return self(q, k, v, o, lse)
            raise
        self._cut(own, o, lse)

    def record(self, q, k, v, o, lse) -> Trace:
        """One more call, of which the last pass is recorded."""
        prepared = self.prepare()
        own = self._as_long(q, o, lse)
        recorder = recorder_of(prepared, self._options)
        for index in range(self.count):
            self._bring(prepared, index, k, v)
            made = recorder.call(prepared.arguments(0, self._given(prepared, index, own)))
        self._cut(own, o, lse)
        return made

    def run_local(self) -> None:
        """The fused kernel alone, pass by pass, on what a call has left in the heap (for benchmarks): nobody waits."""
        prepared = self.prepare()
        for index in range(self.count):

            def full(index: int = index) -> dict[str, Any]:
                own = [torch.empty_like(t) for t in self._as_long(*self._stand_ins())]
                return prepared.arguments(0, self._given(prepared, index, own)) | {
                    "sy_control": prepared.op.control_tensor.clone(),
                    "sy_schedule": without_signals(prepared.op.table_tensor),
                }

            prepared.launch_alone(("alone", index), full)

    def _stand_ins(self) -> list[torch.Tensor]:
        shape = (self.b, self.h, self.most_rows)
        q = torch.empty(*shape, self.d, dtype=self.dtype, device=self.device)
        return [q, q, torch.empty(shape, dtype=torch.float32, device=self.device)]

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.prepared = None
        self.fused.close()

    def _as_long(self, q: torch.Tensor, o: torch.Tensor, lse: torch.Tensor) -> list[torch.Tensor]:
        """q, o and lse with as many rows as any rank has, and contiguous, as the kernel takes them."""
        if self.num_rows == self.most_rows and all(t.is_contiguous() for t in (q, o, lse)):
            return [q, o, lse]
        if self._padded is None:
            self._padded = self._stand_ins()
            self._padded[1] = torch.empty_like(self._padded[0])
            self._padded[0].zero_()
        self._padded[0][:, :, : self.num_rows] = q
        return self._padded

    def _cut(self, own: Sequence[torch.Tensor], o: torch.Tensor, lse: torch.Tensor) -> None:
        if own[1] is not o:
            o.copy_(own[1][:, :, : self.num_rows])
            lse.copy_(own[2][:, :, : self.num_rows])

    def _bring(self, prepared: Prepared, index: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Tells the op where this rank's rows of a pass are."""
        for part in self.slices_of(index):
            box = [(0, self.b), (0, self.hkv), (part.place, part.place + part.places), (0, self.d)]
            for name, tensor in (("K", k), ("V", v)):
                address = tensor.data_ptr() + part.begin * tensor.stride(2) * tensor.element_size()
                prepared.op.set_input(name, address, list(tensor.stride()), box)

    def _given(self, prepared: Prepared, index: int, own: Sequence[torch.Tensor]) -> dict[str, Any]:
        q, o, lse = own
        return self._arguments(index, q, prepared.tensors["K"], prepared.tensors["V"], o, lse)

    @property
    def _grid(self) -> tuple[int, int, int]:
        tiles = math.ceil(self.most_rows / self.tiling.block_m) * self.h * self.b
        return (min(tiles, self._programs) if self.is_gluon else tiles, 1, 1)

    @property
    def _options(self) -> dict[str, int]:
        if self.is_gluon:
            return self.tiling.options()
        return {"num_warps": self.tiling.num_warps, "num_stages": self.tiling.num_stages}

    def _arguments(self, index: int, q, k, v, o, lse) -> dict[str, Any]:
        tables = self._tables[index]
        if self.is_gluon:
            from ..kernels.gluon_attention_call import Pass, gluon_attention_arguments

            return gluon_attention_arguments(
                q, k, v, o, lse, self.tiling, scale=self.scale, documents=tables.documents,
                later=Pass(tables.positions, self._carry, self._tops, index == 0, index == self.count - 1),
            )  # fmt: skip

        def blocks(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
            return TensorDescriptor.from_tensor(tensor, [1, 1, rows, self.d])

        m, n = self.tiling.block_m, self.tiling.block_n
        return {
            "q_desc": blocks(q, m),
            "k_desc": blocks(k, n),
            "v_desc": blocks(v, n),
            "o_desc": blocks(o, m),
            "l_ptr": lse,
            "carry_ptr": self._carry,
            "tops_ptr": self._tops,
            "seen_ptr": self._seen,
            "position_ptr": tables.positions,
            "scale": self.scale,
            "B": self.b,
            "H": self.h,
            "HKV": self.hkv,
            "SQ": self.most_rows,
            "SK": self.width,
            "FIRST": int(index == 0),
            "LAST": int(index == self.count - 1),
            "D": self.d,
            "BM": m,
            "BN": n,
        }
