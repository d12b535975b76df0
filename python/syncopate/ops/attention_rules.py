"""What attention over a sharded sequence can be asked for, and what its plain kernel looks up of documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import require_whole
from ..plans import Rows

KINDS = ("all_gather", "ring", "double_ring", "ulysses", "ulysses_ring")
HEAD_DIMS = (64, 128, 256)  # those that the kernels have tiles for
_MOST_ROWS = 1 << 40
SMALL = 16  # rows of a tile on the host, and its head dims go down to this


@dataclass(frozen=True)
class AttentionTiling:
    """Rows of Q a tile, rows of K and V an iteration, and how the kernel is launched."""

    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 3


def attention_tiling(head_dim: int, device: str) -> AttentionTiling:
    """Of the plain kernel (C++: tune/play/attention.hpp)."""
    tile = _syncopate.attention_tiles("triton", head_dim, device == "cuda")
    return AttentionTiling(tile["block_m"], tile["block_n"], tile["warps"], tile["stages"])


def require_extents(b: int, h: int, hkv: int, s: int, d: int) -> None:
    """Raises TypeError or ValueError, naming the extent, for what is no whole number from 1 on."""
    for name, extent in {"B": b, "H": h, "HKV": hkv, "S": s, "D": d}.items():
        require_whole(name, extent, least=1)


def require_options(causal: Any, window: Any, scale: Any, bounded: Any) -> None:
    """Raises TypeError, naming the option, for what is none: numbers of rows are whole numbers."""
    if not isinstance(causal, int) or causal not in (0, 1):
        raise TypeError(f"causal: expected a bool, got {causal!r}")
    for name, one in {"window": window, "bounded": bounded}.items():
        is_bool = isinstance(one, bool)
        if not hasattr(one, "__index__") or (is_bool and name == "window"):
            raise TypeError(f"{name}: expected a number of rows, got {one!r}")
        if not is_bool and one >= _MOST_ROWS:
            raise ValueError(f"{name}: expected fewer than 2^40 rows, got {one}")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
        raise TypeError(f"scale: expected a number, got {scale!r}")


def require_kind(dtype: torch.dtype, h: int, hkv: int) -> None:
    """Raises ValueError for a dtype, or for heads, that the kernels do not take."""
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"expected dtype bf16 or fp16, got {dtype}")
    if h % hkv if hkv else h:
        raise ValueError(f"H must be a multiple of HKV, got {h} and {hkv}")


def padded_head(d: int, device: str) -> int:
    """The size of head that has tiles and room for `d` columns (C++: tune/play/attention.hpp). Raises ValueError where none has."""
    size = _syncopate.padded_head(d, device == "cuda")
    if size is None:
        raise ValueError(f"D: expected at most {HEAD_DIMS[-1]}, got {d}")
    return size


def seen_rows(rows: Rows, s: int, causal: bool, window: int, documents: Sequence[int]) -> torch.Tensor:
    """Of each of these rows of a sequence the first row that it sees, and past the last one, [2, rows]."""
    row = torch.cat([torch.arange(begin, end) for begin, end in rows] or [torch.arange(0)])
    first, last = torch.zeros_like(row), torch.full_like(row, s)
    for begin, end in pairwise(documents):
        inside = (row >= begin) & (row < end)
        first[inside], last[inside] = begin, end
    if window:
        first = torch.maximum(first, row - window + 1)
        last = torch.minimum(last, row + window)
    if causal:
        last = torch.minimum(last, row + 1)
    return torch.stack([first, last])


def plain_tables(
    s: int, documents: Sequence[int], tiling: AttentionTiling, causal: bool, window: int
) -> dict[str, torch.Tensor]:
    """Of the plain kernel: of each row the first column that it sees and past the last one, [2, S], and of each tile the
    blocks of columns that some and that all of its rows see, [tiles, 4]."""
    m, n = tiling.block_m, tiling.block_n
    if not documents:
        return {
            "bounds_ptr": torch.zeros(1, 4, dtype=torch.int32),
            "seen_ptr": torch.zeros(2, 1, dtype=torch.int32),
        }
    first, last = seen_rows([(0, s)], s, causal, window, documents)
    bounds = []
    for a, b in zip(first.split(m), last.split(m), strict=True):
        low, high = int(a.min()) // n * n, int(b.max())
        whole = min(math.ceil(int(a.max()) / n) * n, math.ceil(high / n) * n)
        bounds.append([low, whole, max(int(b.min()) // n * n, whole), high])
    return {
        "bounds_ptr": torch.tensor(bounds, dtype=torch.int32),
        "seen_ptr": torch.stack([first, last]).to(torch.int32),
    }
