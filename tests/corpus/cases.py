"""How a kernel of the corpus is stated: what it is called with, what it must give, and what is expected of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

CHECKS = ("result", "footprint", "space", "grid", "gather", "scatter", "compile")


@dataclass
class Case:
    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]  # by parameter, in any order; outputs hold what they start from
    expected: dict[str, torch.Tensor]  # what a parameter's tensor holds afterwards
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=list
    )  # and (what it holds, what it must)
    values: tuple[str, ...] = ()  # integer tensors whose elements the front end may know
    tolerance: float = 0.0  # largest difference from it, relative to its largest value; 0: the same bits
    axes: dict[str, int] | tuple[int, ...] | None = (
        None  # the tile space: counts by axis, or counts; None: not looked at
    )
    reduction: str | None = None  # the variable of a tile's one loop that reads, those inside it left aside
    inexact: str = ""  # why a footprint may be larger than what is touched; empty: it must be equal
    refused: str = ""  # the diagnostic, from "the" on, for a kernel whose addresses depend on data
    unfusable: str = ""  # the diagnostic of fuse, for a kernel that cannot be given another tile
    gather: dict[str, int] = field(default_factory=dict)  # parameter → axis along which ranks hold it
    scatter: dict[str, int] = field(default_factory=dict)  # parameter → axis along which its sum is left
    compile: dict[str, Any] | None = (
        None  # compiles for sm_90, with these arguments in place of the small ones
    )
    xfail: dict[str, str] = field(default_factory=dict)  # check → why it cannot pass


REGISTRY: dict[str, Callable[[int], Case]] = {}


def case(make: Callable[[int], Case]) -> Callable[[int], Case]:
    """Registers `make(seed)`, which makes a case with data of its own for each seed, under "family/name"."""
    family = make.__module__.rsplit(".", 1)[-1]
    REGISTRY[f"{family}/{make.__name__}"] = make
    return make


def numbers(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers: their products and sums are exact in every dtype and order."""
    return torch.randint(-3, 4, tuple(shape), generator=torch.Generator().manual_seed(seed)).to(dtype)


def normal(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)).to(dtype)


def unset(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output: what the kernel leaves out shows as NaN (or as -77, for integers)."""
    return torch.full(tuple(shape), float("nan") if dtype.is_floating_point else -77, dtype=dtype)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
