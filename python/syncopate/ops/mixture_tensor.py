"""A mixture of experts, tensor parallel, for one shape (mixture_function.py calls it): every rank has its share of all experts'
columns. Tokens go to all ranks, through two products there, and each rank gets the sum of what all make of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton

from .. import _syncopate
from ..call.in_graphs import refuse_tracing, runs_whole
from ..kernels import moe as kernels
from ..kernels import moe_tensor as own_kernels
from .mixture import Moe

#: By part, its kernels, as ops/moe_tensor.cpp has them.
_DISPATCH = ["moe_count", "moe_gather", "moe_tensor_layout", "moe_spread"]
_SUM = ["moe_sum", "moe_reduce"]
_WHOLE = [*_DISPATCH, "moe_up", "moe_down", *_SUM]
STAGES = {
    "whole": _WHOLE,
    "kept": _WHOLE,
    "dispatch": _DISPATCH,
    "combine": ["moe_tensor_layout", "moe_return", *_SUM],
}


@dataclass
class TensorHandle:
    """Where a dispatch has put a row of each route of all ranks, on the device. `own` [2, E]: of each expert its first row, and how
    many they are; `tokens` [ranks, T, H]; `routes` [ranks, T, topk, 3]: as kernels/moe_tensor.py has them."""

    operator: TensorMoe
    own: torch.Tensor
    counts: torch.Tensor
    origin: torch.Tensor
    tokens: torch.Tensor
    routes: torch.Tensor
    taken: torch.Tensor  # [T, topk] of each route of this rank, whether its id is an expert's
    status: torch.Tensor

    def check(self) -> None:
        """Raises ValueError, on all ranks, where an id named no expert. Waits for the device."""
        self.operator.judge(self.status)


class TensorMoe(Moe):
    """As Moe, of tensor parallel experts: w1 [E, H, 2 F / ranks] are this rank's columns of the gates, then those of what they
    gate, w2 [E, F / ranks, H] its rows. F is a multiple of the ranks. All rows come to every rank, so there is no `bound`."""

    parallel: ClassVar[str] = "tensor"
    stages: ClassVar[dict[str, list[str]]] = STAGES

    @staticmethod
    def _shares(experts: int, inner: int, ranks: int) -> tuple[int, int]:
        return experts, inner // ranks

    def own(self, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size, mine = self.group.size, slice(self.group.rank * self.inner, (self.group.rank + 1) * self.inner)
        gate, up = (half[..., mine] for half in w1.split(size * self.inner, -1))
        return torch.cat([gate, up], -1).contiguous(), w2[:, mine].contiguous()

    def _kernel(self, name: str) -> Any:
        return super()._kernel(name) if hasattr(kernels, name) else getattr(own_kernels, name)

    def scratch(self) -> dict[str, torch.Tensor]:
        return {
            "position_ptr": self._numbers(self.tokens, self.topk),
            "begins_ptr": self._numbers(self.group.size, self.experts),
            "own_ptr": self._numbers(2, self.experts),
            "status_ptr": self._numbers(2),
        }

    def _stand_ins(self) -> dict[str, torch.Tensor]:
        made = super()._stand_ins()
        if self.part == "combine":
            made["routes_ptr"] = self._numbers(self.group.size, self.tokens, self.topk, 3)
            made["partial_ptr"] = self._dots(self.group.size)
            made["dot_ptr"] = self._dots()
        return made

    def _dots(self, *ranks: int) -> torch.Tensor:
        return torch.empty(*ranks, self.tokens, self.topk, dtype=torch.float32, device=self.device)

    def _known(self, given: Mapping[str, torch.Tensor], tables: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        none, combines = given["status_ptr"], self.part == "combine"
        made = super()._known(given, tables) | {"DOTS": combines, "GATHERS": not combines, "TURNS": False}
        if not combines:
            made |= dict.fromkeys(("dots_ptr", "partial_ptr", "dot_ptr"), none)
        if not self.scales:
            scales = dict.fromkeys(("given_scale_ptr", "token_scale_ptr", "x_scale_ptr"), none)
            made |= {**scales, "stride_scales": 0, "SCALES": 0, "WIDE": 1}
        return made

    def _of_stage(self, given: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        pow2, strides = triton.next_power_of_2, self._strides
        made = super()._of_stage(given)
        # The rows of a token lie where its rank's and its own numbers say, on this rank.
        here = {"rank": 0, "stride": 0, "ROUTES": self.group.size * self.routes}
        made["moe_down"] |= here
        made["moe_return"] |= here
        block = _syncopate.ops.mixture_block(self.tokens, self.programs)
        lanes = pow2(block)
        tile = {"BLOCK": block, "TILES": triton.cdiv(self.tokens, block), "LANES": lanes}
        moved, summed = self._columns(lanes, 16384), self._columns(lanes, 2048)
        whole = self.part in ("whole", "kept")
        return made | {
            "moe_gather": {**tile, "COLUMNS": moved, "stride": strides.get("tokens", 0),
                           "stride_scales": strides.get("token_scale", 0), "stride_numbers": strides.get("routes", 0)},
            "moe_spread": {**tile, "COLUMNS": moved, "WEIGHTED": self.weighted and not whole},
            "moe_sum": {**tile, "COLUMNS": summed, "WEIGHTED": self.weighted and whole, "stride": strides.get("P", 0),
                        "stride_numbers": strides.get("dots", 0)},
            "moe_reduce": {**tile, "COLUMNS": summed},
        }  # fmt: skip

    def _handle(
        self, ids: torch.Tensor, made: Mapping[str, torch.Tensor], until_next: bool = False
    ) -> TensorHandle:
        taken = (ids >= 0) & (ids < self.experts)
        read = (self._told(name, until_next) for name in ("counts", "origin", "tokens", "routes"))
        return TensorHandle(self, made["own_ptr"], *read, taken, made["status_ptr"])

    @runs_whole
    def combine_parts(
        self, rows: torch.Tensor, partial: torch.Tensor, handle: TensorHandle
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the part "combine": y [T, H] of rows [rows, H] that lie as `dispatch` left them, and the sum over ranks of
        partial [ranks, T, topk], fp32, of which each rank gets its own."""
        refuse_tracing(type(self).__name__)
        shape = (self.group.size, self.tokens, self.topk)
        self._check({
            "rows": (rows, (len(handle.origin), self.hidden), (self.dtype,)),
            "partial": (partial, shape, (torch.float32,)),
        })  # fmt: skip
        made, dot = self.scratch(), self._dots()
        out = torch.empty(self.tokens, self.hidden, dtype=self.dtype, device=self.device)
        none = made["status_ptr"]
        self.launch({**made, "ids_ptr": none, "weights_ptr": none, "counts_ptr": handle.counts, "rows_ptr": rows,
                     "routes_ptr": handle.routes, "origin_ptr": handle.origin, "partial_ptr": partial, "dot_ptr": dot,
                     "out_ptr": out})  # fmt: skip
        return out, dot
