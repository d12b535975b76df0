"""The kernel that each rank runs for attention, the plain one or that for Hopper, and what it is called with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from ..call.stage_call import Call
from ..group import Group
from ..host import interpreter
from ..kernels.attention import attention as plain_kernel
from ..plans import Rows
from .attention_places import place_table
from .attention_rules import AttentionTiling, attention_tiling, plain_tables

if TYPE_CHECKING:
    from ..kernels.gluon_attention_call import GluonAttentionTiling
    from ..strategy import Strategy

HOPPER = 9  # the compute capability's first figure
ENGINE_BLOCKS = 8  # of the chunk engine, where the strategy does not say


@dataclass(frozen=True)
class AttentionProblem:
    """What is to be computed, of the whole sequence: q [B, H, S, D], k, v [B, HKV, S, D], and what rows see."""

    b: int
    h: int
    hkv: int
    s: int
    d: int
    dtype: torch.dtype
    causal: bool
    window: int
    documents: Sequence[int]
    scale: float

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return self.b, self.h, self.hkv, self.s, self.d

    def task(self, rows: Sequence[Rows], tiling: Any, **asked: Any) -> _syncopate.ops.AttentionTask:
        """As C++ is told of it (ops/attention.hpp), and of what is asked besides. `rows`: by rank."""
        seen = list(self.documents), self.causal, self.window, (tiling.block_m, tiling.block_n)
        return _syncopate.ops.AttentionTask(self.shape, DTYPE_NAMES[self.dtype], rows, *seen, **asked)


class AttentionKernel:
    """`tiling`: of the plain kernel, or a GluonAttentionTiling; None: of the kernel that C++ chooses (tune/play/attention.hpp), and
    `why_plain` says why that is not the one for Hopper. Raises ValueError for a tiling that the device cannot run."""

    def __init__(
        self,
        problem: AttentionProblem,
        group: Group,
        tiling: AttentionTiling | GluonAttentionTiling | None,
        strategy: Strategy,
    ) -> None:
        self.problem, self.group, self.strategy = problem, group, strategy
        cuda = group.device == "cuda"
        self.device = torch.device("cuda", group.ordinal) if cuda else torch.device("cpu")
        self.why_plain = "" if tiling is None else "it was told to"
        self.tiling = self._choose_tiling() if tiling is None else tiling
        self.is_gluon = not isinstance(self.tiling, AttentionTiling)
        if self.is_gluon and not cuda:
            raise ValueError("tiling: the kernel for Hopper does not run on the host; leave it out")
        self._tables = self._make_tables()
        self._places = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.is_placed = False
        self.together = 0  # heads of Q whose K and V come in one part; 0: all
        self.relays = 0  # multiprocessors that streams need which pass on what has come

    def place(self, rows: Rows) -> None:
        """Q and O, for the kernel for Hopper also this rank's own K and V, are to be read and stored where the rank has these
        rows of them."""
        self.is_placed = True
        block = self.tiling.block_n if self.is_gluon else self.tiling.block_m
        table = place_table(rows, self.problem.s, block)
        if not self.is_gluon:
            table.clamp_(min=0)  # tiles of other ranks do not run here, but are looked at
        self._places = table.to(self.device)

    @property
    def function(self) -> Any:
        """The kernel, or its statement."""
        if not self.is_gluon:
            return plain_kernel
        from ..kernels.stated_attention import stated_attention

        p = self.problem
        return stated_attention(
            p.causal, p.window > 0, bool(p.documents), placed=self.is_placed, together=self.together
        )

    @property
    def known(self) -> dict[str, list[int]]:
        """Elements of its integer tensors by which tiles are told what they touch."""
        known = {}
        if self.problem.documents:
            known["bounds_ptr"] = self._tables["bounds_ptr"].reshape(-1).tolist()
        if self.is_placed and not self.is_gluon:
            known["place_ptr"] = self._places.tolist()
        return known

    @property
    def programs(self) -> int:
        """Of the persistent kernel: it leaves the chunk engine, relays, and what carries chunks from node to node multiprocessors of
        their own, as it stays where it is until K and V have come."""
        by_engine = (self.strategy.backend or "").endswith("_dedicated")
        engine = (self.strategy.engine_blocks or ENGINE_BLOCKS) if by_engine else 0
        channel = _syncopate.tune.CHANNEL_BLOCKS if self.group.nodes > 1 else 0
        return max(self.group.multiprocessors() - engine - channel - self.relays, 1)

    @property
    def options(self) -> dict[str, int]:
        tiling = self.tiling
        if isinstance(tiling, AttentionTiling):
            return {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
        return tiling.options()

    def call(self, tensors: Mapping[str, torch.Tensor]) -> Call:
        p = self.problem
        tiles = math.ceil(p.s / self.tiling.block_m) * p.h * p.b
        grid = min(tiles, self.programs) if self.is_gluon else tiles
        return Call((grid, 1, 1), self.arguments(tensors), self.options)

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """`tensors`: Q, K, V, O and L of the whole sequence; or with "own K" and "own V", Q and O are this rank's own, too."""
        if self.is_gluon:
            return self._gluon_arguments(tensors)
        p, m, n = self.problem, self.tiling.block_m, self.tiling.block_n

        def rows(name: str, block: int) -> TensorDescriptor:
            return TensorDescriptor.from_tensor(tensors[name], [1, 1, block, p.d])

        return {
            "q_desc": rows("Q", m),
            "k_desc": rows("K", n),
            "v_desc": rows("V", n),
            "o_desc": rows("O", m),
            "l_ptr": tensors["L"],
            **self._tables,
            "place_ptr": self._places,
            "scale": p.scale,
            "H": p.h,
            "HKV": p.hkv,
            "S": p.s,
            "WINDOW": p.window,
            "CAUSAL": p.causal,
            "DOCUMENTS": bool(p.documents),
            "PLACED": "own K" in tensors,
            "D": p.d,
            "BM": m,
            "BN": n,
        }

    def alone(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The unmodified kernel on whole tensors [B, heads, S, D]: o and lse of the whole sequence."""
        o = torch.full_like(q, float("nan"))
        lse = torch.full(q.shape[:3], float("nan"), dtype=torch.float32, device=q.device)
        call = self.call({"Q": q, "K": k, "V": v, "O": o, "L": lse})
        if self.group.device == "host":
            interpreter.repair_bf16()
        self.function[call.grid](**call.arguments, **call.options)
        return o, lse

    def _choose_tiling(self) -> AttentionTiling | GluonAttentionTiling:
        cuda, d = self.group.device == "cuda", self.problem.d
        name, _, self.why_plain = _syncopate.attention_kernel(
            self.problem.shape,
            DTYPE_NAMES[self.problem.dtype],
            self.group.size,
            self.problem.scale,
            cuda,
            cuda and torch.cuda.get_device_capability(self.group.ordinal)[0] == HOPPER,
        )
        if name != "gluon":
            return attention_tiling(d, self.group.device)
        from ..kernels.gluon_attention_call import tiling_of

        return tiling_of(d)

    def _make_tables(self) -> dict[str, torch.Tensor]:
        """What the kernel looks up where there are documents."""
        p = self.problem
        if not self.is_gluon:
            tables = plain_tables(p.s, p.documents, self.tiling, p.causal, p.window)
            return {name: table.to(self.device) for name, table in tables.items()}
        if not p.documents:
            return {}
        from ..kernels.gluon_attention_call import document_tables

        found = document_tables(
            p.documents, self.tiling, causal=p.causal, window=p.window, device=self.device
        )
        return dict(zip(("bounds_ptr", "seen_ptr", "order_ptr"), found, strict=True))

    def _gluon_arguments(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        from ..kernels.gluon_attention_call import Placed, gluon_attention_arguments

        p, placed = self.problem, None
        if "own K" in tensors:
            placed = Placed(self._places, tensors["own K"], tensors["own V"])
        return gluon_attention_arguments(
            *(tensors[name] for name in "QKVOL"),
            self.tiling,
            causal=p.causal,
            window=p.window,
            scale=p.scale,
            documents=tuple(self._tables.values()) or None,
            placed=placed,
        )
