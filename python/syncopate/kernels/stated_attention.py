"""The statements of kernels.gluon_attention and of its backward (C++: ops/statements.hpp)."""

from __future__ import annotations

import functools

from .. import _syncopate
from ..call.stated import StatedKernel
from .gluon_attention import gluon_attention
from .gluon_attention_backward import gluon_attention_backward


@functools.cache
def stated_attention(
    causal: bool = False,
    windowed: bool = False,
    documents: bool = False,
    one_pass: bool = False,
    placed: bool = False,
    together: int = 0,
) -> StatedKernel:
    """gluon_attention with these CAUSAL, WINDOWED and DOCUMENTS. A tile's loop runs over the blocks of K that some of its rows
    see (_extent); its ranges may come in any order. Of documents the elements of bounds_ptr have to be known (`values`). One
    of several passes (PASS) has ranges of all blocks, as what rows see differs from pass to pass and from rank to rank. PLACED
    (`placed`) says nothing of q_desc and o_desc, which are each rank's own affair: what a rank makes is said by l_ptr.
    `together`: heads of Q whose K and V come in one part, whose tiles then run before those of the next; 0: all."""
    said = _syncopate.ops.attention_statement(causal, windowed, documents, one_pass, placed, together)
    return StatedKernel(gluon_attention, **said)


@functools.cache
def stated_attention_backward(
    causal: bool = False,
    exchanges: bool = False,
    whole: bool = False,
    together: int = 0,
    groups: bool = False,
) -> StatedKernel:
    """gluon_attention_backward by tables: a tile is a block of K. `exchanges`: Q and what goes with it come, too; then the
    elements of bounds_ptr have to be known (`values`). `whole`: rows see all that `causal` leaves. `together`: heads of K that come
    in one part (0: all). `groups`: of ranks exchange heads, and tiles await all of their Q."""
    said = _syncopate.ops.attention_backward_statement(causal, exchanges, whole, together, groups)
    return StatedKernel(gluon_attention_backward, **said)
