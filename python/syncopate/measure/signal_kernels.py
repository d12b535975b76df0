"""Kernels that wait for words, for measuring what signals cost."""

import triton
import triton.language as tl


@triton.jit
def ping(mine, theirs, first: tl.constexpr, ROUNDS: tl.constexpr):
    """Whoever is first writes 1, 2, … to the other one's word, which answers with the same."""
    for i in range(1, ROUNDS + 1):
        if first:
            tl.atomic_xchg(theirs, i, sem="release", scope="sys")
        while tl.atomic_add(mine, 0, sem="acquire", scope="sys") < i:
            pass
        if not first:
            tl.atomic_xchg(theirs, i, sem="release", scope="sys")
