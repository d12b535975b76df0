"""The arguments of the kernels of a mixture of experts (kernels/moe.py), stage by stage, for one shape. Nothing here makes a call, so
that they can be compiled ahead, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .. import _syncopate
from ..call.places import require_memory
from ..group import Group
from ..kernels import gluon_moe_call
from ..kernels import moe as kernels
from ..strategy import Strategy, Tiling
from ..strategy.choose import runs_gluon

#: By part, its kernels, as ops/moe.cpp has them.
_WHOLE = ["moe_count", "moe_layout", "moe_dispatch", "moe_up", "moe_down", "moe_combine"]
STAGES = {
    "whole": _WHOLE,
    "kept": _WHOLE,
    "dispatch": _WHOLE[:3],
    "combine": ["moe_layout", "moe_return", "moe_combine"],
}

_SENDERS = 80  # registers of a thread of what sends rows beside the first product: two programs leave it most of them
_COUNTED = 8192  # routes at once, at most (ops/mixture_parameters.cpp)

#: By name: the tensor, its shape, and the dtypes that it may have.
Operands = Mapping[str, tuple[torch.Tensor, tuple[int, ...], Sequence[torch.dtype]]]


def require_operands(operands: Operands, device: str) -> None:
    """Raises ValueError, naming it, for one that does not fit, or is elsewhere. `device`: torch's name of the type."""
    for name, (tensor, shape, dtypes) in operands.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
        if tensor.dtype not in dtypes:
            raise ValueError(
                f"{name}: expected dtype {' or '.join(map(str, dict.fromkeys(dtypes)))}, got {tensor.dtype}"
            )
        if tensor.device.type != device:
            raise ValueError(f"{name}: expected it on {device}, it is on {tensor.device}")


class Stages:
    """What a call of one shape is made of. Its maker sets what stands here."""

    parallel: ClassVar[str] = "expert"
    stages: ClassVar[dict[str, list[str]]] = STAGES
    scales: str = ""

    tokens: int
    experts: int
    topk: int
    hidden: int
    #: Experts whose weights this rank has, and how many columns of F.
    own_experts: int
    inner: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    group: Group
    part: str
    bound: int
    activation: str
    weighted: bool
    products: tuple[Any, Any] | None
    strategy: Strategy
    tiling: Tiling
    programs: int
    device: torch.device
    #: What the plan moves, by name of its tensor.
    heap: dict[str, torch.Tensor]
    prepared: Any
    _names: list[str]
    _strides: dict[str, int]
    _seen: torch.Tensor

    @staticmethod
    def _shares(experts: int, inner: int, ranks: int) -> tuple[int, int]:
        return experts // ranks, inner

    def own(self, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the whole w1 [E, H, 2 F] and w2 [E, F, H] what this rank has."""
        mine = slice(self.group.rank * self.own_experts, (self.group.rank + 1) * self.own_experts)
        return w1[mine], w2[mine]

    @property
    def _up_by_gluon(self) -> bool:
        """Whether a Gluon kernel makes the first product: as a strategy says, where TMA loads what it reads."""
        asked = self.strategy.kernel == "gluon" and self.part == "whole"
        return asked and self.products is None and not self.scales and self.streams

    def _kernel(self, name: str) -> Any:
        if name == "moe_up" and self._up_by_gluon:
            from ..kernels.gluon_moe import gluon_moe_up

            return gluon_moe_up
        return getattr(kernels, name)

    @property
    def routes(self) -> int:
        """Rows that this rank sends in a call: its tokens times topk."""
        return self.tokens * self.topk

    def _stride(self, name: str) -> int:
        """Elements from one rank's tensor to the next one's."""
        return self.prepared.op.heap.stride // self.heap[name].element_size()

    def _numbers(self, *shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.int32, device=self.device)

    def scratch(self) -> dict[str, torch.Tensor]:
        """Of one call: what the kernels tell each other about its routing."""
        return {
            "position_ptr": self._numbers(self.tokens, self.topk),
            "sent_ptr": self._numbers(2, self.experts),
            "order_ptr": self._numbers(self.routes),
            "group_ptr": self._numbers(self.experts),
            "own_ptr": self._numbers(2, self.own_experts),
            "status_ptr": self._numbers(2),
            "turn_ptr": self._numbers(1),
        }

    def _stand_ins(self) -> dict[str, torch.Tensor]:
        """Operands of a call that is only compiled."""

        def empty(*shape: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        ids = empty(self.tokens, self.topk, dtype=torch.int64)
        given = {
            "ids_ptr": ids,
            "weights_ptr": empty(self.tokens, self.topk, dtype=torch.float32),
            **self.scratch(),
        }
        if self.part != "combine":
            given["given_ptr"] = empty(self.tokens, self.hidden)
        if self.part in ("whole", "kept"):
            given |= {"w1": empty(self.own_experts, self.hidden, 2 * self.inner)}
            given |= {"w2": empty(self.own_experts, self.inner, self.hidden)}
        if self.part == "kept":
            given["h_ptr"] = empty(1, 2 * self.inner)
        if self.part == "combine":
            given |= {"counts_ptr": self._numbers(self.group.size, self.experts + 1)}
            given |= {"rows_ptr": empty(1, self.hidden), "origin_ptr": self._numbers(1)}
        if self.part != "dispatch":
            given["out_ptr"] = empty(self.tokens, self.hidden, dtype=self.out_dtype)
        return given

    def _options(self, name: str) -> dict[str, int]:
        if name == "moe_up" and self._up_by_gluon:
            return gluon_moe_call.OPTIONS
        if name in ("moe_up", "moe_down"):
            return {"num_warps": self.tiling.num_warps, "num_stages": self.tiling.stages}
        if name == "moe_dispatch":
            return {"num_warps": 16} if self._sending[2] else {"num_warps": 4, "maxnreg": _SENDERS}
        counts = 16 if self.routes >= _COUNTED else 8
        return {"num_warps": counts if name == "moe_count" else 4, "num_stages": 2}

    @property
    def _sending(self) -> tuple[int, int, bool]:
        """Of moe_dispatch: rows of a slot, programs, and whether these have multiprocessors of their own."""
        row = self.hidden * self.dtype.itemsize
        return _syncopate.ops.mixture_sending(self.routes, row, self.programs)

    def _items(self, given: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
        """Of each stage's kernel, its arguments; what the plan moves lies in the heap."""
        stage = {name: index for index, name in enumerate(self._names)}
        tables = {name: self.prepared.op.table_tensor_of(index) for name, index in stage.items()}
        known = {
            **given,
            **{f"{name.lower()}_ptr": tensor for name, tensor in self.heap.items()},
            **self._known(given, tables),
        }
        of_stage = self._of_stage(given)
        if "moe_up" in stage:
            up, down = self._products(given)
            of_stage["moe_up"] = {"COLUMNS": known["UP"], **up}
            of_stage["moe_down"] |= {"COLUMNS": known["DOWN"], **down}
        made = []
        for name in self._names:
            every = known | of_stage.get(name, {})
            made.append(
                {one: every[one] for one in self._kernel(name).arg_names if not one.startswith("sy_")}
            )
        return made

    def _known(self, given: Mapping[str, torch.Tensor], tables: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Arguments of every stage."""
        pow2, cdiv = triton.next_power_of_2, triton.cdiv
        tiles, group, none = self.tiling, self.group, given["status_ptr"]
        down = "moe_return" if self.part == "combine" else "moe_down"
        return {
            "rank": group.rank,
            "dispatch_ptr": tables.get("moe_dispatch", none), "up_ptr": tables.get("moe_up", none),
            "down_ptr": tables.get(down, none),
            "stride_numbers": self._strides.get("origin", 0),
            "ROUTES": self.routes, "T": self.tokens, "E": self.experts, "R": group.size, "EXPERTS": self.own_experts,
            "TOPK": self.topk, "H": self.hidden, "F": self.inner,
            "BOUND": self.bound, "TILE": tiles.block_m,
            "UP": cdiv(self.inner, tiles.block_n) if "moe_up" in tables else 0,
            "DOWN": 0 if down not in tables else 1 if self.part == "combine" else cdiv(self.hidden, tiles.block_n),
            "BE": pow2(self.own_experts), "BR": pow2(group.size), "BALL": pow2(self.experts),
            "SLOTS": 32, "DISPATCHES": "moe_dispatch" in tables, "WEIGHTED": self.weighted,
            "SENT": self._sending[0], "TURNS": self._sending[2], "turn_ptr": given.get("turn_ptr", none),
            "seen_ptr": self._seen, "h_ptr": given.get("h_ptr", none), "KEPT": self.part == "kept",
            "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k,
            "ACTIVATION": self.activation, "PRECISION": "ieee" if self.dtype == torch.float32 else "tf32",
        }  # fmt: skip

    def _of_stage(self, given: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
        """And of one."""
        pow2, strides = triton.next_power_of_2, self._strides
        moved = {"COLUMNS": self._columns(self.tiling.block_m, 16384)}
        slot, _, apart = self._sending
        lanes, size = (min(slot, 16), 65536) if apart else (slot, 8192)  # bytes at once
        sent = {"LANES": lanes, "COLUMNS": self._columns(lanes, min(size // 2, size // self.dtype.itemsize))}
        sent["STARTS_NEXT"] = "moe_up" in self._names
        made = {
            "moe_count": {"BLOCK": min(_COUNTED, pow2(self.routes)), "stride": strides.get("counts", 0)},
            "moe_layout": {"BLOCK": min(256, pow2(self.routes))},
            "moe_dispatch": {"stride": strides.get("X", 0), "WEIGHTED": self.weighted and self.part == "dispatch", **sent},
            "moe_down": {"stride": strides.get("Y", 0)},
            "moe_return": {"stride": strides.get("Y", 0), **moved},
        }  # fmt: skip
        if "done" in self.heap:
            blocks = self.heap["done"].shape[1]
            tokens = pow2(triton.cdiv(self.tokens, blocks))
            made["moe_combine"] = {"BLOCKS": blocks, "TOKENS": tokens, "COLUMNS": self._columns(tokens, 4096)}
        return made

    def _columns(self, rows: int, elements: int) -> int:
        """Of a block of so many rows."""
        return min(triton.next_power_of_2(self.hidden), max(128, elements // rows))

    def _products(self, given: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        own = self.products or (None, None)
        if self._up_by_gluon:
            up = gluon_moe_call.wide_up_operands(self.heap["X"], given["w1"], self.heap["A"])
            up["STAGES"] = self.tiling.stages
        else:
            up = self._product("x_ptr", self.heap["X"], given["w1"], own[0])
        return up, self._product("a_ptr", self.heap["A"], given["w2"], own[1])

    def _product(self, name: str, rows: torch.Tensor, w: torch.Tensor, own: Any) -> dict[str, Any]:
        """What a product's kernel takes of its operands: descriptors where TMA can load them. `own`: what the user makes it by."""
        if own is not None or not self.streams or w.data_ptr() % 16 or w.stride(0) * w.itemsize % 16:
            return {name: rows, "w_ptr": w, "STREAMED": False, "OWN": own}
        m, n, k = self.tiling.block_m, self.tiling.block_n, self.tiling.block_k
        of_rows, of_w = TensorDescriptor.from_tensor(rows, [m, k]), TensorDescriptor.from_tensor(w, [1, k, n])
        return {name: of_rows, "w_ptr": of_w, "STREAMED": True, "OWN": None}

    @property
    def streams(self) -> bool:
        """Whether TMA can load what the products read: on Hopper, if rows are whole 16 bytes of 2-byte elements."""
        return self._has_tma() and self.dtype.itemsize == 2 and self.hidden % 8 == 0 and self.inner % 8 == 0

    def _has_tma(self) -> bool:
        return runs_gluon(self.device.type)

    def _check(self, operands: Operands) -> None:
        for name, (tensor, *_) in operands.items():
            require_memory(name, tensor)
        require_operands(operands, self.device.type)
        for name, (tensor, *_) in operands.items():
            if not tensor.is_contiguous():
                raise ValueError(f"{name}: it must be contiguous")

    def _routed(self, ids: torch.Tensor, weights: torch.Tensor | None = None) -> dict[str, tuple]:
        shape = (self.tokens, self.topk)
        made = {"topk_ids": (ids, shape, (torch.int32, torch.int64))}
        if weights is not None:
            made["topk_weights"] = (weights, shape, (torch.float32, self.out_dtype))
        return made
