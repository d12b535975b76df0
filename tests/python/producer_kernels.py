"""Kernels whose outputs are made in other ways than by one store of a whole tile. C = A @ B, all row-major.

Tests fuse them as they are: no directive says where a post goes.
"""

import triton
import triton.language as tl


@triton.jit
def split_k(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
            SPLIT_K: tl.constexpr):  # fmt: skip
    """Program (x, y) adds the y-th part of K to tile x by atomics; c must start as zero."""
    tile = tl.program_id(0)
    part = tl.program_id(1)
    columns = tl.cdiv(N, BLOCK_N)
    rows = (tile // columns) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (tile % columns) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        ks = (step * SPLIT_K + part) * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + ks[:, None] * N + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0
        )
        acc = tl.dot(a, b, acc, input_precision="ieee")
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=mask)


@triton.jit
def subtiled(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             PROGRAMS: tl.constexpr):  # fmt: skip
    """Persistent; the accumulator is stored in two halves, through a descriptor made in the kernel."""
    c_desc = tl.make_tensor_descriptor(
        c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N // 2]
    )
    columns = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * columns, PROGRAMS):
        row = (tile // columns) * BLOCK_M
        column = (tile % columns) * BLOCK_N
        rows = row + tl.arange(0, BLOCK_M)
        cols = column + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            ks = step * BLOCK_K + tl.arange(0, BLOCK_K)
            a = tl.load(
                a_ptr + rows[:, None] * K + ks[None, :],
                mask=(rows[:, None] < M) & (ks[None, :] < K),
                other=0.0,
            )
            b = tl.load(
                b_ptr + ks[:, None] * N + cols[None, :],
                mask=(ks[:, None] < K) & (cols[None, :] < N),
                other=0.0,
            )
            acc = tl.dot(a, b, acc, input_precision="ieee")
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c_desc.store([row, column], left.to(c_ptr.dtype.element_ty))
        c_desc.store([row, column + BLOCK_N // 2], right.to(c_ptr.dtype.element_ty))


@triton.jit
def block_pointers(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A grid of two axes; loads and the store go through block pointers. Tiles beyond the end return at once."""
    x = tl.program_id(0)
    y = tl.program_id(1)
    if y * BLOCK_M >= M:
        return
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (y * BLOCK_M, 0), (BLOCK_M, BLOCK_K), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (0, x * BLOCK_N), (BLOCK_K, BLOCK_N), (1, 0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _step in range(tl.cdiv(K, BLOCK_K)):
        left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(left, right, acc, input_precision="ieee")
        a = tl.advance(a, (0, BLOCK_K))
        b = tl.advance(b, (BLOCK_K, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (y * BLOCK_M, x * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(c, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def positive(x_ptr, c_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """C = 2 * X where X is above 0; other elements of C stay as they are."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = (rows < M) & (cols < N)
    x = tl.load(x_ptr + rows * N + cols, mask=inside, other=0.0)
    tl.store(c_ptr + rows * N + cols, 2 * x, mask=inside & (x > 0))
