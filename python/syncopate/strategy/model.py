"""A problem, and a strategy for it: everything that may be chosen, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import torch_dtype
from .brief import brief
from .tiling import Tiling

PROGRAMS_ON_HOST = 4  # of a grid, where each is a thread's work in the interpreter
CHOICES = {
    "kernel": ("", "plain", "gluon"),
    "backend": _syncopate.BACKENDS,
    "tile_order": _syncopate.TILE_ORDERS,
}
DEDICATED = ("tma_dedicated", "ldst_dedicated")  # the backends of the chunk engine


@dataclass(frozen=True)
class Problem:
    """An operator (`ops.OPERATORS`), its extents, and what it runs on: `ranks` devices of `num_sms` multiprocessors.
    `dtype`, `out`: torch's, or their names. `f`: the inner width of a feed-forward block on one rank. `out`: the dtype of what products of fp8 make; None: bf16 of
    these, else `dtype`. `scales`: their factors (ops.scales)."""

    operator: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    ranks: int
    num_sms: int = PROGRAMS_ON_HOST
    device: str = "cuda"
    f: int = 0
    out: torch.dtype | None = None
    scales: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("dtype", "out"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, torch_dtype(getattr(self, name)))

    @property
    def is_fp8(self) -> bool:
        """Whether its products are of float8_e4m3fn."""
        return self.dtype == torch.float8_e4m3fn

    @property
    def out_dtype(self) -> torch.dtype:
        """What its products make."""
        return self.out or (torch.bfloat16 if self.is_fp8 else self.dtype)

    @property
    def products(self) -> tuple[tuple[int, int, int], ...]:
        """(M, N, K) of each product, one after the other."""
        if self.f:
            return (self.m, self.f, self.k), (self.m, self.n, self.f)
        return ((self.m, self.n, self.k),)


@dataclass(frozen=True)
class Chunking:
    """How a shard, or a block for another rank, is cut and sent: `rows` chunks along M, each in `slices` along K, so many
    equal ones or of these extents; all ranks' first slices travel first, or `peer_by_peer` all slices to one peer before
    the next one's."""

    rows: int = 1
    slices: int | tuple[int, ...] = 1
    peer_by_peer: bool = False

    __repr__ = brief

    def __post_init__(self) -> None:
        if self.slices == ():
            raise ValueError("slices: give a number, or the extent of each slice")

    @property
    def slicing(self) -> dict[str, Any]:
        """As options of a plan's template: what is sent of rows [M, K] is cut along K."""
        if self.slices == 1:
            return {}
        option = "minor_sizes" if isinstance(self.slices, tuple) else "minor_split"
        return {"minor_axis": 1, option: self.slices, "peer_by_peer": self.peer_by_peer}


@dataclass(frozen=True)
class Strategy:
    """How a problem is carried out. Of a user's own kernel and plan (sy.fuse) only what is marked * is left to choose.

    kernel          of the products: "plain" (Triton), or "gluon", the library's for 16 bits and fp8 on Hopper; where
                    that does not run, the plain one is taken. "": the quicker one; with tilings, the plain one
    tilings         tiles of each product (one for all of them is enough); (): by the product's shape
    programs        of each kernel's grid, at most; None: the multiprocessors that communication leaves
    chunking        of what comes before a product
    split           chunks of each rank's shard of what a product makes; None: by the backend and the shape
    split_axis      the axis that `split` cuts; None: the one that the plan is about
    pull            receivers fetch; of sums: their owners read the contributions where they are
    stored, pulled  of a reduction: so many of each rank's contributions, its last, are stored at their owners tile by tile;
                    or are read where they are by their owners' sums
    one_step        of sums: every rank sends all that it makes to all, which sum what they are to have
    kernel_sums *   the kernel's programs add up what arrives when they have made their tiles, which store all of it at
                    its owners; for kernels that state that they can (the Gluon product)
    together *      all tiles wait for what arrives, also those of own rows; for kernels whose tiles all run at once, so that those
                    of the same columns of w read them together
    backend *       of transfers whose plan leaves it open; "auto": the best legal one
    engine_blocks * multiprocessors of the chunk engine, which kernels beside it leave free; None: by the backend
    sum_parts *     into how many parts a sum is cut at most, each summed beside the kernel once its own tiles are made
    tile_order *    of tiles that may run alike: "kernel" (its own), "rows", "columns", "snake" or "grouped"
    plain_kernel *  the kernel is left as it is, and the chunk engine moves what it makes when it has ended
    phases *        a tile may begin its reduction loop on the chunks that have arrived
    unfused         the vendors' libraries: a product, and a collective before or after it
    apart           a block as two operators, one after the other, by the strategies `parts`; (): each by its shape. Then
                    nothing else counts
    """

    tilings: tuple[Tiling, ...] = ()
    programs: int | None = None
    chunking: Chunking = Chunking()
    split: int | None = None
    split_axis: int | None = None
    pull: bool = False
    stored: int = 0
    pulled: int = 0
    one_step: bool = False
    kernel_sums: bool = False
    together: bool = False
    backend: str = "auto"
    engine_blocks: int | None = None
    sum_parts: int = 8
    tile_order: str = "kernel"
    plain_kernel: bool = False
    phases: bool = True
    unfused: bool = False
    kernel: str = ""
    apart: bool = False
    parts: tuple[Strategy, ...] = ()

    __repr__ = brief

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (given := getattr(self, name)) not in known:
                words = ", ".join(f'"{word}"' for word in known)
                raise ValueError(f"{name}: expected one of {words}, got {given!r}")
        if not isinstance(self.tilings, (tuple, list)):
            raise TypeError(f"tilings: expected a tuple of tilings, got {self.tilings!r}")
        object.__setattr__(self, "tilings", tuple(self.tilings))
        if self.tilings and not self.kernel:
            object.__setattr__(self, "kernel", "plain")

    @property
    def fused(self) -> bool:
        """Whether the operator's kernel and plan are what runs."""
        return not (self.unfused or self.apart)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Strategy:
        """From values by name; those of the chunking are `chunking.rows` and so on."""
        cut = {
            name.removeprefix("chunking."): v for name, v in values.items() if name.startswith("chunking.")
        }
        own = {name: v for name, v in values.items() if name in {field.name for field in fields(cls)}}
        return cls(**own, **({"chunking": Chunking(**cut)} if cut else {}))
