"""What the kernels of attention's backward are launched with: tables of what rows see, scratch, arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from ..call.stage_call import Call
from ..host import interpreter
from ..kernels import attention_backward as kernels
from ..kernels.attention_backward_tables import seen_extents
from ..plans import Rows
from .attention_backward_tables import Tables, count_rows, cut_rows, joined, padded, tables_of
from .attention_passes import Slice
from .attention_rules import seen_rows

if TYPE_CHECKING:
    from ..group import Group
    from .attention_kernel import AttentionProblem


class BackwardLaunches:
    """Of one rank. AttentionBackward sets what is declared here before it makes the tables."""

    problem: AttentionProblem
    group: Group
    device: torch.device
    all_rows: list[Rows]
    num_rows: int
    most_rows: int
    is_gluon: bool
    deterministic: bool
    exchanges: bool
    block_m: int
    block_n: int
    q_rows: int
    _options: dict[str, int]
    _shared_by: int
    _in_groups: bool
    _together: int

    @property
    def count(self) -> int:
        """Of passes."""
        return len(self._slices)

    @property
    def _tiles(self) -> int:
        return math.ceil(self.width / self.block_n) * (self.problem.hkv // self._shared_by) * self.problem.b

    @property
    def _blocks_of_q(self) -> int:
        """Of all rows and heads that this rank's kernel walks."""
        block = self.q_rows if self.deterministic else self.block_m
        return math.ceil(self._sq / block) * (self.problem.h // self._shared_by) * self.problem.b

    def _walked_rows(self, rank: int) -> Rows:
        """Of Q, that a rank's kernel walks: of all ranks that it shares heads with."""
        if not self.exchanges:
            return self.all_rows[rank]
        first = rank // self._shared_by * self._shared_by
        return sorted(run for own in self.all_rows[first : first + self._shared_by] for run in own)

    def _known(self, table: str) -> dict[str, list[int]]:
        return {f"{table}_ptr": getattr(self._tables[0], table).reshape(-1).tolist()}

    def _function(self) -> Any:
        if not self.is_gluon:
            return kernels.attention_backward
        from ..kernels.stated_attention import stated_attention_backward

        p = self.problem
        whole = not (p.window or p.documents) and self.count == 1
        return stated_attention_backward(p.causal, self.exchanges, whole, self._together, self._in_groups)

    def _make_tables(self, passes: Any) -> None:
        """What each row of Q sees in a pass, of this rank's rows, or where heads are exchanged of all."""
        p = self.problem
        size = self.group.size
        # Of Q, that the kernel walks.
        self._sq = max(count_rows(self._walked_rows(rank)) for rank in range(size))
        self.width, self._slices, positions = cut_rows(passes, self.all_rows, self.group.rank)
        blocks = (self.block_m, self.block_n)

        def tables(rank: int, at: torch.Tensor) -> tuple[torch.Tensor, Tables]:
            seen = seen_rows(self._walked_rows(rank), p.s, p.causal, p.window, p.documents)
            return seen, tables_of(seen, self._sq, at, blocks, self.q_rows, self.device)

        made = [tables(self.group.rank, at) for at in positions]
        seen, self._tables = made[0][0], [one for _, one in made]
        if self._in_groups and not self.is_gluon:  # its loops are known, and alike on all ranks
            of_groups = [tables(rank, positions[0])[1].bounds for rank in range(0, size, self._shared_by)]
            self._tables = [joined(self._tables[0], of_groups)]
        self._dq_bounds = None  # of the kernel for Hopper that makes dQ by itself
        if self.is_gluon and self.deterministic and self.count == 1 and not self.exchanges:
            from ..kernels.gluon_attention_backward_call import DQ_TILES

            if p.d in DQ_TILES:
                at = torch.searchsorted(positions[0], seen)
                bounds = seen_extents(at, *DQ_TILES[p.d][:2])
                self._dq_bounds = None if bounds is None else bounds.to(self.device)

    def _make_scratch(self) -> None:
        """lse and delta of this rank's rows, and dQ's sums of the rows that the kernel walks."""
        p = self.problem
        self._padded = padded(self.most_rows, self.block_m)
        self._lse, self._delta = (
            torch.empty(p.b, p.h, self._padded, dtype=torch.float32, device=self.device) for _ in range(2)
        )
        shape = (p.b, p.h // self._shared_by, padded(self._sq, self.block_m), p.d)
        self._sums = torch.empty(
            (1, 1, 1, 1) if self.deterministic and self.count == 1 else shape,
            dtype=torch.float32,
            device=self.device,
        )

    def _empty(self, heads: int, rows: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        p = self.problem
        return torch.empty(p.b, heads, rows, p.d, dtype=dtype or p.dtype, device=self.device)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        if self.group.device == "host":
            interpreter.repair_bf16()
        kernel[grid](*arguments, **named)

    def _prepare_rows(
        self, grad: torch.Tensor, grad_lse: torch.Tensor | None, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        p = self.problem
        # Sums of exchanged heads are of other rows than this rank's, but mostly as many.
        alike = not self.exchanges or self._sums.numel() == p.b * p.h * self._padded * p.d
        zero = alike and not self.deterministic
        if self.exchanges and not zero:
            self._sums.zero_()
        dlse = lse if grad_lse is None else grad_lse  # a stand-in that is not read
        rows = kernels.rows_of_program(self.block_m, p.d)
        self._launch(
            kernels.prepare_rows, (self._padded // rows * p.b * p.h,),
            o, grad, lse, dlse, self._lse, self._delta, self._sums, p.h, self.num_rows, self._padded, *o.stride()[:3],
            *grad.stride()[:3], DLSE=grad_lse is not None, ZERO=zero, D=p.d, ROWS=rows,
        )  # fmt: skip

    def _key(self, q: torch.Tensor, grad: torch.Tensor) -> Any:
        if self.exchanges:
            return "backward"  # the kernels read and write the heap alone
        return tuple((tensor.data_ptr(), tensor.stride()) for tensor in (q, grad))

    def _calls(
        self, heap: Mapping[str, torch.Tensor], q: torch.Tensor, grad: torch.Tensor, turn: int = 0
    ) -> list[Call]:
        heads = ".heads" if self.exchanges else ""
        given = self._walked(heap, q, grad, self.is_gluon, turn)
        given |= {"dk_ptr": heap["DK" + heads], "dv_ptr": heap["DV" + heads]}
        given |= {"dq_ptr": self._sums, "bounds_ptr": self._tables[turn].bounds}
        if self.is_gluon:
            from ..kernels.gluon_attention_backward_call import OPTIONS, walked_arguments

            given, options = walked_arguments(given, add_dq=not self.deterministic), OPTIONS
        else:
            given["ADD_DQ"], options = not self.deterministic, self._options
        calls = [Call((self._tiles, 1, 1), given, options)]
        if not self.exchanges:
            return calls
        rows = self._blocks_of_q
        if self.deterministic:
            made = self._of_q(heap, q, grad, heap["DQ.heads"], turn) | {"FIRST": True, "LAST": True}
            calls.append(Call((rows, 1, 1), made, self._options))
        else:
            calls.append(Call((rows, 1, 1), self._finished(heap["DQ.heads"], self._sq), {"num_warps": 4}))
        return calls

    def _finished(self, dq: torch.Tensor, rows: int) -> dict[str, Any]:
        """finish_rows' arguments: of the sums of so many rows."""
        return {
            "sum_ptr": self._sums,
            "dq_ptr": dq,
            "S": rows,
            "padded": self._sums.shape[2],
            "scale": self.problem.scale,
            "D": self.problem.d,
            "ROWS": self.block_m,
            "PIECES": self.is_gluon,
        }

    def _walked(
        self,
        heap: Mapping[str, torch.Tensor],
        q: torch.Tensor,
        grad: torch.Tensor,
        gluon: bool,
        turn: int,
        of_q: int = 0,
    ) -> dict[str, Any]:
        """What the kernels have in common; the plain ones are given descriptors here. `of_q`: other rows of a block of Q."""
        p, of_q = self.problem, of_q or self.block_m
        k, v, lse, delta = heap.get("K"), heap.get("V"), self._lse, self._delta
        if self.exchanges:
            names = ("Q", "DO", "K", "V", "LSE", "DELTA")
            q, grad, k, v, lse, delta = (heap[name + ".heads"] for name in names)

        def blocks(tensor: torch.Tensor, rows: int) -> Any:
            return tensor if gluon else TensorDescriptor.from_tensor(tensor, [1, 1, rows, p.d])

        return {
            "q_desc": blocks(q, of_q),
            "do_desc": blocks(grad, of_q),
            "k_desc": blocks(k, self.block_n),
            "v_desc": blocks(v, self.block_n),
            "lse_ptr": lse,
            "delta_ptr": delta,
            "seen_ptr": self._tables[turn].seen,
            "scale": p.scale,
            "H": p.h // self._shared_by,
            "HKV": p.hkv // self._shared_by,
            "SQ": self._sq,
            "SK": self.width,
            "D": p.d,
            "BM": of_q,
            "BN": self.block_n,
        }

    def _of_q(
        self,
        heap: Mapping[str, torch.Tensor],
        q: torch.Tensor,
        grad: torch.Tensor,
        dq: torch.Tensor,
        turn: int,
    ) -> dict[str, Any]:
        """Of attention_backward_q."""
        given = self._walked(heap, q, grad, False, turn, self.q_rows)
        return given | {
            "dq_ptr": dq,
            "sum_ptr": self._sums,
            "blocks_ptr": self._tables[turn].blocks,
            "padded": given["lse_ptr"].shape[2],
        }

    def _make_dq(
        self,
        heap: Mapping[str, torch.Tensor],
        q: torch.Tensor,
        grad: torch.Tensor,
        dq: torch.Tensor,
        turn: int = 0,
    ) -> None:
        """Of this rank's rows, which no other rank has a part in: after the last pass, or a part of it after each."""
        p, last = self.problem, turn + 1 == self.count
        rows = self.q_rows if self.deterministic else self.block_m
        tiles = math.ceil(self.num_rows / rows) * p.h * p.b
        if not self.deterministic:
            if last:
                self._launch(kernels.finish_rows, (tiles,), **self._finished(dq, self.num_rows))
            return
        if self._dq_bounds is not None:
            from ..kernels.gluon_attention_backward_call import make_dq

            seen = self._tables[turn].seen
            make_dq(grad, q, heap["K"], heap["V"], self._lse, self._delta, dq, self._dq_bounds, seen, p.scale)
            return
        given = self._of_q(heap, q, grad, dq, turn) | {
            "SQ": self.num_rows,
            "FIRST": turn == 0,
            "LAST": last,
        }
        self._launch(kernels.attention_backward_q, (tiles,), **given, **self._options)

    def _take_sums(
        self, heap: Mapping[str, torch.Tensor], parts: list[Slice], dk: torch.Tensor, dv: torch.Tensor
    ) -> None:
        """This rank's rows of dK and dV of a pass, which stay in the heap until its next call, as the caller's dtype."""
        p, block = self.problem, 4096
        for part in parts:
            blocks = -(-part.places * p.d // block)
            if blocks:
                self._launch(
                    kernels.take_sums, (blocks * p.b * p.hkv, 2), heap["DK"], heap["DV"], dk, dv,
                    part.place, self.width, part.begin, self.num_rows, part.places, D=p.d, BLOCK=block,
                )  # fmt: skip
