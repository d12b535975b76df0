"""The statement of kernels.gluon_attention: what each of its tiles reads and writes, block by block of K."""

from __future__ import annotations

import functools

from ..call.stated import StatedKernel
from .gluon_attention import gluon_attention

_ROWS = ["b", "h", "m*BM : (m+1)*BM"]


@functools.cache
def stated_attention(
    causal: bool = False,
    windowed: bool = False,
    documents: bool = False,
    one_pass: bool = False,
    placed: bool = False,
) -> StatedKernel:
    """gluon_attention with these CAUSAL, WINDOWED and DOCUMENTS. A tile's loop runs over the blocks of K that some of its rows
    see (_extent); its ranges may come in any order. Of documents the elements of bounds_ptr have to be known (`values`). One
    of several passes (PASS) has ranges of all blocks, as what rows see differs from pass to pass and from rank to rank. PLACED
    (`placed`) says nothing of q_desc and o_desc, which are each rank's own affair: what a rank makes is said by l_ptr."""
    begin, end = "(m*BM + OFFSET)", "(min((m+1)*BM, SQ) + OFFSET)"
    low, high = "0", "SK"
    if causal:
        high = f"min(SK, {end})"
    elif windowed:
        high = f"min(SK, {end} + WINDOW - 1)"
    if windowed:
        low = f"max({begin} - WINDOW + 1, 0) // BN"
    order: tuple[str, ...] = ("-m", "b", "h") if causal and not windowed else ()
    if one_pass:
        low, high, order = "0", "SK", ("-m", "b", "h")
    elif documents:
        low, high = "bounds_ptr[4*m] // BN", "bounds_ptr[4*m + 3]"
        order = ("bounds_ptr[4*m] - bounds_ptr[4*m + 3]", "b", "h")
    block = [
        "b",
        "h // (H // HKV)",
        f"({low} + n)*BN : ({low} + n + 1)*BN",
        ":",
    ]
    return StatedKernel(
        gluon_attention,
        tiles={"b": "B", "h": "H", "m": "cdiv(SQ, BM)"},
        loops={"n": f"cdiv(max({high}, 0), BN) - {low}"},
        any_order=("n",),
        reads={"k_desc": block, "v_desc": block} | ({} if placed else {"q_desc": [*_ROWS, ":"]}),
        writes={"l_ptr": _ROWS} | ({} if placed else {"o_desc": [*_ROWS, ":"]}),
        order=order,
    )
