"""The plain products that bench/sync/chains.py chains: C = act(A @ Bᵀ), persistent, descriptors made on the host."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def product(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
    PDL: tl.constexpr = 0,
):
    """Rows of tiles one after another. `PDL`: 1: it waits for the whole kernel before it; the next one may start at once."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        row = tile // tiles_n * BLOCK_M
        column = tile % tiles_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([column, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        if ACTIVATION == "relu":
            acc = tl.maximum(acc, 0.0)
        c_desc.store([row, column], acc.to(c_desc.dtype))
