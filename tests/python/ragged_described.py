"""Kernels that read rows by descriptors, beside those of ragged_kernels.py."""

import triton
import triton.language as tl


@triton.jit
def described_on_device(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Descriptors that each expert's tile makes of its rows and its weights: they end where those end."""
    expert = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    row, col = tl.program_id(1) * BM, tl.program_id(2) * BN
    if begin + row < end:
        a_desc = tl.make_tensor_descriptor(a_ptr + begin * K, [end - begin, K], [K, 1], [BM, BK])
        b_desc = tl.make_tensor_descriptor(b_ptr + expert * K * N, [K, N], [N, 1], [BK, BN])
        c_desc = tl.make_tensor_descriptor(c_ptr + begin * N, [end - begin, N], [N, 1], [BM, BN])
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc += tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), input_precision="ieee")
        c_desc.store([row, col], acc)


@triton.jit
def described_whole(
    a_ptr, b_ptr, c_ptr, offsets_ptr, M, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent, with descriptors of all rows and all weights: a block reads on into the next expert's rows."""
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [E, K, N], [K * N, N, 1], [1, BK, BN])
    tile = tl.program_id(0)
    before = 0
    columns = tl.cdiv(N, BN)
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * columns
        while tile >= before and tile < before + tiles:
            row, col = begin + (tile - before) // columns * BM, (tile - before) % columns * BN
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                b = b_desc.load([e, k, col]).reshape(BK, BN)
                acc += tl.dot(a_desc.load([row, k]), b, input_precision="ieee")
            rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
            inside = (rows[:, None] < end) & (cols[None, :] < N)
            tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=inside)
            tile += tl.num_programs(0)
        before += tiles


@triton.jit
def described_by_host(
    a_desc, b_desc, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same by descriptors that the host has made, one tile a program."""
    expert, row, col = tl.program_id(0), tl.program_id(1) * BM, tl.program_id(2) * BN
    end = tl.load(offsets_ptr + expert + 1)
    row += tl.load(offsets_ptr + expert)
    if row < end:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            b = b_desc.load([expert * K + k, col])
            acc += tl.dot(a_desc.load([row, k]), b, input_precision="ieee")
        rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
        inside = (rows[:, None] < end) & (cols[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=inside)


@triton.jit
def sums_of_blocks(a_desc, c_ptr, offsets_ptr, E, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """To each row the sum of its block, that of the next experts' rows in it, too: no product, but it shows what is awaited."""
    tile, before, total = tl.program_id(0), 0, tl.load(offsets_ptr + E)
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM)
        while tile < before + tiles:
            row = begin + (tile - before) * BM
            rows, cols = row + tl.arange(0, BM), tl.arange(0, BK)
            block = tl.where(rows[:, None] < total, a_desc.load([row, 0]), 0.0)
            sums = tl.sum(block, 0)[None, :] + tl.zeros((BM, BK), tl.float32)
            inside = (rows[:, None] < end) & (cols[None, :] < K)
            tl.store(c_ptr + rows[:, None] * K + cols[None, :], sums, mask=inside)
            tile += tl.num_programs(0)
        before += tiles
