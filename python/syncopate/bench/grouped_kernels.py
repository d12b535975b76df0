"""Two grouped products as users write them, which syncopate bench grouped fuses: of each expert's rows, which lie together, the gated
product, then the one behind it. Each program walks through the experts, and takes every num_programs-th tile. Extents are multiples
of a tile's."""

import triton
import triton.language as tl


@triton.jit
def gated_product(
    x_ptr, w_ptr, h_ptr, offsets_ptr, E, F: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h [., F] = silu(x @ w[:, :F]) * (x @ w[:, F:]), of x [., K] and w [E, K, 2 F]; offsets [E + 1]."""
    tile = tl.program_id(0)
    before = 0
    columns = tl.cdiv(F, BN)
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * columns
        while tile < before + tiles:
            # The rows of a column first: they share its weights.
            down = tl.cdiv(end - begin, BM)
            rows = begin + (tile - before) % down * BM + tl.arange(0, BM)
            cols = (tile - before) // down * BN + tl.arange(0, BN)
            gate = tl.zeros((BM, BN), dtype=tl.float32)
            up = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                x = tl.load(x_ptr + rows[:, None] * K + rk[None, :], mask=rows[:, None] < end, other=0.0)
                at = w_ptr + e * (2 * K * F) + rk[:, None] * (2 * F) + cols[None, :]
                gate = tl.dot(x, tl.load(at), gate)
                up = tl.dot(x, tl.load(at + F), up)
            made = gate / (1.0 + tl.exp(-gate)) * up
            tl.store(
                h_ptr + rows[:, None] * F + cols[None, :],
                made.to(h_ptr.dtype.element_ty),
                mask=rows[:, None] < end,
            )
            tile += tl.num_programs(0)
        before += tiles


@triton.jit
def product(
    h_ptr, w_ptr, c_ptr, offsets_ptr, E, N: tl.constexpr, F: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """c [., N] = h @ w, of h [., F] and w [E, F, N]."""
    tile = tl.program_id(0)
    before = 0
    columns = tl.cdiv(N, BN)
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * columns
        while tile < before + tiles:
            down = tl.cdiv(end - begin, BM)
            rows = begin + (tile - before) % down * BM + tl.arange(0, BM)
            cols = (tile - before) // down * BN + tl.arange(0, BN)
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, F, BK):
                rk = k + tl.arange(0, BK)
                h = tl.load(h_ptr + rows[:, None] * F + rk[None, :], mask=rows[:, None] < end, other=0.0)
                total = tl.dot(h, tl.load(w_ptr + e * (F * N) + rk[:, None] * N + cols[None, :]), total)
            tl.store(
                c_ptr + rows[:, None] * N + cols[None, :],
                total.to(c_ptr.dtype.element_ty),
                mask=rows[:, None] < end,
            )
            tile += tl.num_programs(0)
        before += tiles
