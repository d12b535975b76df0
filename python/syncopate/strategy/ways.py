"""Names of the ways in which a sum over ranks of a product can be made: for benches and what they have measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .model import Strategy
from .tiling import Tiling

NARROW = Tiling(128, 128, 64, 6, -1)  # tiles half as wide as those of a large product

#: By kind, what the numbers in a way's name are.
NUMBERS_OF = {
    "after": ["engine_blocks"],
    "beside": ["engine_blocks", "split"],
    "inline": ["split"],
    "mixed": ["stored"],
    "narrow": ["stored"],
    "fused": ["split"],
    "pulled": ["split"],
    "pulled_last": ["pulled"],
    "one_step": ["split"],
}

COUNTED = ("mixed", "narrow", "pulled_last")  # whose number is of contributions, at least one


@dataclass(frozen=True)
class Way:
    """How owners get the contributions to their sums, and all ranks the sums.

    kind      "after": by the chunk engine when the kernel, left as it is, has ended; "beside": by the chunk engine on
              `engine_blocks` multiprocessors that the kernel leaves free, one of `split` parts after another; "pulled": by
              the sums, kernels that run beside the product's on what it leaves of all multiprocessors, one a part;
              "inline": tiles are stored at the owners, whose sums store themselves at all ranks; "mixed": of each rank's
              contributions the last `stored` so, the others copied; "narrow": the same by narrow tiles; "fused": copied, as
              an operator does by itself, or with `split` in so many parts of columns; "pulled_last": copied, but the last `pulled`
              contributions of each rank, which the sums read where they are; "one_step": tiles are stored at all ranks, and each
              sums what it is to have. `sum_parts`: of a reduce-scatter's sums, at most
    """

    kind: str
    engine_blocks: int = 8
    split: int = 1
    stored: int = 0
    pulled: int = 0
    sum_parts: int = 8

    @classmethod
    def named(cls, text: str) -> Way:
        """From "beside:16:8": a kind, multiprocessors (or blocks) of the engine, and parts. Raises ValueError for
        anything else."""
        kind, *numbers = text.split(":")
        names = NUMBERS_OF.get(kind)
        if names is None:
            raise ValueError(f"way '{text}': expected {', '.join(NUMBERS_OF)}")
        if len(numbers) > len(names) or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ValueError(
                f"way '{text}': expected {kind} with up to {len(names)} numbers from 1 on after it"
            )
        given = dict(zip(names, map(int, numbers), strict=False))
        return cls(kind, **dict.fromkeys(names, 1) | given) if kind in COUNTED else cls(kind, **given)

    def __str__(self) -> str:
        numbers = [getattr(self, name) for name in NUMBERS_OF[self.kind]]
        if numbers == [1] and self.kind not in COUNTED:  # one part is no part
            numbers = []
        return ":".join(map(str, [self.kind, *numbers]))

    @property
    def strategy(self) -> Strategy:
        """That of sy.fuse which carries it out."""
        parts: dict[str, Any] = {"split": self.split, "split_axis": 1} if self.split > 1 else {}
        chosen: dict[str, Any] = {
            "after": {"plain_kernel": True, "backend": "ldst_dedicated", "engine_blocks": self.engine_blocks},
            "beside": {
                "pull": True,
                "backend": "ldst_dedicated",
                "engine_blocks": self.engine_blocks,
                "split": self.split,
            },
            "inline": {"backend": "tma_inline", **parts},
            "mixed": {"stored": self.stored},
            "narrow": {"stored": self.stored, "tilings": (NARROW,)},
            "fused": {"sum_parts": self.sum_parts, **parts},
            "pulled": {"pull": True, "backend": "ldst_inline", **parts},
            "pulled_last": {"pulled": self.pulled, "sum_parts": 1},
            "one_step": {"one_step": True, "backend": "tma_inline", **parts},
        }
        return Strategy(**chosen[self.kind])
