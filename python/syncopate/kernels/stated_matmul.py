"""The statement of kernels.gluon_matmul (C++: ops/statements.hpp), and the plain kernel of the same tiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from .. import _syncopate
from ..call.stated import StatedKernel
from . import matmul as plain
from .gluon_matmul import gluon_matmul


@functools.cache
def stated_matmul(
    w_transposed: bool = False, gated: bool = False, scales: str = "", whole_bias: bool = False
) -> StatedKernel:
    """gluon_matmul for w [K, N], or [N, K] with `w_transposed`; `gated`: with twice N columns. `scales`, `whole_bias`: as its
    SCALES and WHOLE_BIAS."""
    return StatedKernel(
        gluon_matmul,
        **_syncopate.ops.matmul_statement(w_transposed, gated, scales, whole_bias),
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
