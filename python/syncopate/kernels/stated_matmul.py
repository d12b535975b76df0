"""The statement of kernels.gluon_matmul: what each of its tiles reads and writes, and the plain kernel of the same tiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ..call.stated import StatedKernel
from . import matmul as plain
from .gluon_matmul import gluon_matmul

_ROWS = "m*BLOCK_M : (m+1)*BLOCK_M"
_COLUMNS = "n*BLOCK_N : (n+1)*BLOCK_N"
_DEPTH = "k*BLOCK_K : (k+1)*BLOCK_K"
_COPIED = "cdiv(cdiv(K, BLOCK_K), cdiv(N, BLOCK_N))*BLOCK_K"  # of a row, by each of its tiles


@functools.cache
def stated_matmul(
    w_transposed: bool = False, gated: bool = False, scales: str = "", whole_bias: bool = False
) -> StatedKernel:
    """gluon_matmul for w [K, N], or [N, K] with `w_transposed`; `gated`: with twice N columns. `scales`, `whole_bias`: as its
    SCALES and WHOLE_BIAS."""
    columns = [_COLUMNS, f"N + {_COLUMNS.replace(':', ': N +')}"] if gated else [_COLUMNS]
    b = [[each, _DEPTH] if w_transposed else [_DEPTH, each] for each in columns]
    bias = [_ROWS, _COLUMNS] if whole_bias else [_COLUMNS]
    reads: dict[str, Any] = {"a_desc": [_ROWS, _DEPTH], "b_desc": b, "bias_ptr": bias}
    if scales == "row":
        reads |= {"scale_a_ptr": [_ROWS], "scale_b_ptr": [_COLUMNS]}
    elif scales == "block":
        first, last = "n*BLOCK_N // 128", "cdiv((n+1)*BLOCK_N, 128)"
        reads |= {"scale_a_ptr": [_ROWS, ":"], "scale_b_ptr": [f"{first} : {last}", ":"]}
    return StatedKernel(
        gluon_matmul,
        tiles={"m": "cdiv(M, BLOCK_M)", "n": "cdiv(N, BLOCK_N)"},
        loops={"k": "cdiv(K, BLOCK_K)"},
        reads=reads,
        writes={"c_desc": [_ROWS, _COLUMNS], "a_copy_desc": [_ROWS, f"n*{_COPIED} : (n+1)*{_COPIED}"]},
        placed=("a_desc", "c_desc"),
        split="SPLIT_K",
        sums="SUMS",
        head_start="HEAD_START",
        order=("m // GROUP_M", "n", "m"),
        early={"b_desc": "B_EARLY"},
        host=None if gated else plain.matmul,
        host_arguments=_plain_arguments,
    )


@dataclasses.dataclass
class _Block:
    """As Triton's descriptor, with a block of any size: Triton takes powers of two."""

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"


def _plain_arguments(arguments: Mapping[str, Any], grid: tuple[int, ...]) -> dict[str, Any]:
    """What kernels.matmul takes that gluon_matmul does not, or takes otherwise: blocks of all of a tile."""

    def of(name: str, block: list[int]) -> Any:
        given = arguments[name]
        return _Block(given.base, list(given.shape), list(given.strides), block)

    rows, columns, depth = (arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    return {
        "a_desc": of("a_desc", [rows, depth]),
        "b_desc": of("b_desc", [columns, depth] if arguments["B_TRANSPOSED"] else [depth, columns]),
        "c_desc": of("c_desc", [rows, columns]),
        "NUM_SMS": grid[0],
        "SPLIT_STORE": 1,
        "PRECISION": "ieee",
    }
