"""Grouped products as users write them, over rows that lie expert by expert; host_ragged_kinds.py fuses them."""

import triton
import triton.language as tl


@triton.jit
def product_of_tile(
    a_ptr, b_ptr, c_ptr, expert, row, end, pid_n, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows [row, end) of a, at most BM, times columns of the expert's b."""
    rows, cols = row + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < end) & (cols[None, :] < N))


@triton.jit
def all_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BLOCKS,
):  # fmt: skip
    """Persistent over as many tiles of each expert as it could have."""
    columns = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), E * BLOCKS * columns, tl.num_programs(0)):
        expert = tile // (BLOCKS * columns)
        block, pid_n = tile // columns % BLOCKS, tile % columns
        end = tl.load(offsets_ptr + expert + 1)
        row = tl.load(offsets_ptr + expert) + block * BM
        if row < end:
            product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, pid_n, N, K, BM, BN, BK)


@triton.jit
def counted_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent over as many tiles as there are; which expert one is of, is looked for."""
    columns = tl.cdiv(N, BN)
    total = 0
    for e in range(E):
        total += tl.cdiv(tl.load(offsets_ptr + e + 1) - tl.load(offsets_ptr + e), BM) * columns
    for tile in range(tl.program_id(0), total, tl.num_programs(0)):
        expert, row, end, pid_n, before = 0, 0, 0, 0, 0
        for e in range(E):
            begin, last = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
            tiles = tl.cdiv(last - begin, BM) * columns
            if tile >= before and tile < before + tiles:
                expert = e
                row = begin + (tile - before) // columns * BM
                pid_n = (tile - before) % columns
                end = last
            before += tiles
        product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, pid_n, N, K, BM, BN, BK)


@triton.jit
def walked_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent as the grouped products of tutorials: each program walks through the groups, and takes its tiles there."""
    tile = tl.program_id(0)
    before = 0
    columns = tl.cdiv(N, BN)
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * columns
        while tile >= before and tile < before + tiles:
            row = begin + (tile - before) // columns * BM
            product_of_tile(a_ptr, b_ptr, c_ptr, e, row, end, (tile - before) % columns, N, K, BM, BN, BK)
            tile += tl.num_programs(0)
        before += tiles


@triton.jit
def walked_sizes(
    a_ptr, b_ptr, c_ptr, sizes_ptr, N, E: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """The same from the groups' sizes, of which it adds up where they begin."""
    tile = tl.program_id(0)
    columns: tl.constexpr = tl.cdiv(N, BN)
    end, before = 0, 0
    for e in tl.range(E):
        begin = end
        size = tl.load(sizes_ptr + e)
        end = begin + size
        if size > 0:
            tiles = tl.cdiv(size, BM) * columns
            while tile >= before and tile < before + tiles:
                row = begin + (tile - before) % tl.cdiv(size, BM) * BM
                pid_n = (tile - before) // tl.cdiv(size, BM)
                product_of_tile(a_ptr, b_ptr, c_ptr, e, row, end, pid_n, N, K, BM, BN, BK)
                tile += PROGRAMS
            before += tiles


@triton.jit
def by_ends(
    a_ptr, b_ptr, c_ptr, ends_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Where each expert's rows end, as torch's grouped product is told."""
    expert = tl.program_id(2)
    begin = 0
    if expert > 0:
        begin = tl.load(ends_ptr + expert - 1)
    end = tl.load(ends_ptr + expert)
    row = begin + tl.program_id(0) * BM
    if row < end:
        product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, tl.program_id(1), N, K, BM, BN, BK)


@triton.jit
def swizzled_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """As `counted_tiles`, with blocks of GROUP rows together, and looking for its expert with `while`."""
    columns = tl.cdiv(N, BN)
    total = tl.cdiv(tl.load(offsets_ptr + 1) - tl.load(offsets_ptr), BM)
    for e in tl.static_range(1, E):
        total += tl.cdiv(tl.load(offsets_ptr + e + 1) - tl.load(offsets_ptr + e), BM)
    for tile in tl.range(tl.program_id(0), total * columns, tl.num_programs(0), flatten=True):
        expert = 0
        before = 0
        blocks = tl.cdiv(tl.load(offsets_ptr + 1) - tl.load(offsets_ptr), BM)
        while tile >= before + blocks * columns:
            before += blocks * columns
            expert += 1
            blocks = tl.cdiv(tl.load(offsets_ptr + expert + 1) - tl.load(offsets_ptr + expert), BM)
        local = tile - before
        width = GROUP * columns
        first = local // width * GROUP
        rows_of_group = min(blocks - first, GROUP)
        pid_m = first + local % width % rows_of_group
        pid_n = local % width // rows_of_group
        row, end = tl.load(offsets_ptr + expert) + pid_m * BM, tl.load(offsets_ptr + expert + 1)
        product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, pid_n, N, K, BM, BN, BK)


@triton.jit
def bisected(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """The expert of a tile from all of them at once."""
    columns = tl.cdiv(N, BN)
    e = tl.arange(0, BE)
    begin = tl.load(offsets_ptr + e, mask=e < E, other=0)
    last = tl.load(offsets_ptr + e + 1, mask=e < E, other=0)
    blocks = tl.where(e < E, tl.cdiv(last - begin, BM), 0)
    ends = tl.cumsum(blocks, 0)
    total = tl.sum(blocks, 0) * columns
    for tile in range(tl.program_id(0), total, tl.num_programs(0)):
        pid_m = tile // columns
        expert = tl.sum((ends <= pid_m).to(tl.int32), 0)
        before = tl.sum(tl.where(e < expert, blocks, 0), 0)
        row, end = tl.load(offsets_ptr + expert) + (pid_m - before) * BM, tl.load(offsets_ptr + expert + 1)
        product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, tile % columns, N, K, BM, BN, BK)


@triton.jit
def expert_of_tile(offsets_ptr, tile, columns, BM: tl.constexpr):
    """Whose the tile is, how many tiles come before those, and how many blocks of rows the expert has."""
    expert, before = 0, 0
    blocks = tl.cdiv(tl.load(offsets_ptr + 1) - tl.load(offsets_ptr), BM)
    while tile >= before + blocks * columns:
        before += blocks * columns
        expert += 1
        blocks = tl.cdiv(tl.load(offsets_ptr + expert + 1) - tl.load(offsets_ptr + expert), BM)
    return expert, before, blocks


@triton.jit
def while_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As `counted_tiles`, by `while`, with its search in a helper."""
    columns = tl.cdiv(N, BN)
    total = 0
    for g in range(E):
        total += tl.cdiv(tl.load(offsets_ptr + g + 1) - tl.load(offsets_ptr + g), BM) * columns
    tile = tl.program_id(0)
    while tile < total:
        expert, before, _ = expert_of_tile(offsets_ptr, tile, columns, BM)
        row, end = (
            tl.load(offsets_ptr + expert) + (tile - before) // columns * BM,
            tl.load(offsets_ptr + expert + 1),
        )
        product_of_tile(a_ptr, b_ptr, c_ptr, expert, row, end, (tile - before) % columns, N, K, BM, BN, BK)
        tile += tl.num_programs(0)


@triton.jit
def stepped_tiles(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """As `walked_tiles`, but of each group it counts from the group's first tile on."""
    columns = tl.cdiv(N, BN)
    before = 0
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * columns
        first = (tl.program_id(0) + PROGRAMS - before % PROGRAMS) % PROGRAMS
        for t in range(first, tiles, PROGRAMS):
            row = begin + t // columns * BM
            product_of_tile(a_ptr, b_ptr, c_ptr, e, row, end, t % columns, N, K, BM, BN, BK)
        before += tiles


@triton.jit
def rows_of_blocks(
    a_ptr, b_ptr, c_ptr, expert, rows, inside, pid_n, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    cols = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=inside[:, None] & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=inside[:, None] & (cols[None, :] < N))


@triton.jit
def by_blocks(
    a_ptr, b_ptr, c_ptr, sorted_ptr, experts_ptr, padded_ptr, rows_given, N, K: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Blocks of BM places, of one expert each, which a table names; another one has the row of each place."""
    columns = tl.cdiv(N, BN)
    pid_m, pid_n = tl.program_id(0) // columns, tl.program_id(0) % columns
    if pid_m * BM >= tl.load(padded_ptr):
        return
    rows = tl.load(sorted_ptr + pid_m * BM + tl.arange(0, BM))
    expert = tl.load(experts_ptr + pid_m)
    rows_of_blocks(a_ptr, b_ptr, c_ptr, expert, rows, rows < rows_given, pid_n, N, K, BM, BN, BK)


@triton.jit
def blocks_in_turn(
    a_ptr, b_ptr, c_ptr, sorted_ptr, experts_ptr, padded_ptr, rows_given, N, K: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same, persistent."""
    columns = tl.cdiv(N, BN)
    total = tl.cdiv(tl.load(padded_ptr), BM) * columns
    for tile in tl.range(tl.program_id(0), total, tl.num_programs(0)):
        pid_m = tile // columns
        rows = tl.load(sorted_ptr + pid_m * BM + tl.arange(0, BM))
        expert = tl.load(experts_ptr + pid_m)
        rows_of_blocks(a_ptr, b_ptr, c_ptr, expert, rows, rows < rows_given, tile % columns, N, K, BM, BN, BK)


@triton.jit
def block_pointers(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Block pointers that end where an expert's rows end."""
    expert = tl.program_id(2)
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    if row < end - begin:
        a = tl.make_block_ptr(a_ptr + begin * K, (end - begin, K), (K, 1), (row, 0), (BM, BK), (1, 0))
        b = tl.make_block_ptr(b_ptr + expert * K * N, (K, N), (N, 1), (0, col), (BK, BN), (1, 0))
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, tl.cdiv(K, BK)):
            left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
            right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
            acc += tl.dot(left, right, input_precision="ieee")
            a, b = tl.advance(a, (0, BK)), tl.advance(b, (BK, 0))
        c = tl.make_block_ptr(c_ptr + begin * N, (end - begin, N), (N, 1), (row, col), (BM, BN), (1, 0))
        tl.store(c, acc, boundary_check=(0, 1))


@triton.jit
def halves(a_ptr, b_ptr, h_ptr, offsets_ptr, E, F: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """The first of three kernels of a layer: rows times each expert's [K, 2 F], as the walk of `walked_tiles`."""
    tile = tl.program_id(0)
    before = 0
    for e in range(E):
        begin, end = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(end - begin, BM) * tl.cdiv(2 * F, BN)
        while tile < before + tiles:
            row, column = (
                begin + (tile - before) // tl.cdiv(2 * F, BN) * BM,
                (tile - before) % tl.cdiv(2 * F, BN),
            )
            product_of_tile(a_ptr, b_ptr, h_ptr, e, row, end, column, 2 * F, K, BM, BN, BK)
            tile += tl.num_programs(0)
        before += tiles


@triton.jit
def gated(h_ptr, ends_ptr, E, F: tl.constexpr, BF: tl.constexpr, BM: tl.constexpr):
    """The second: the left half times what is positive of the right one, in place; of all rows, however many there are."""
    total = tl.load(ends_ptr + E - 1)
    columns = tl.arange(0, BF)
    for row in range(tl.program_id(0) * BM, total, tl.num_programs(0) * BM):
        rows = row + tl.arange(0, BM)
        inside = (rows[:, None] < total) & (columns[None, :] < F)
        at = h_ptr + rows[:, None] * 2 * F + columns[None, :]
        left = tl.load(at, mask=inside, other=0.0)
        tl.store(at, left * tl.maximum(tl.load(at + F, mask=inside, other=0.0), 0.0), mask=inside)


@triton.jit
def lowered(
    h_ptr, w_ptr, c_ptr, ends_ptr, N, F: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr
):
    """The third: an expert's rows times its [F, N]."""
    expert = tl.program_id(0)
    begin = 0
    if expert > 0:
        begin = tl.load(ends_ptr + expert - 1)
    end = tl.load(ends_ptr + expert)
    rows, cols = begin + tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(2) * BN + tl.arange(0, BN)
    f = tl.arange(0, BF)
    h = tl.load(
        h_ptr + rows[:, None] * 2 * F + f[None, :], mask=(rows[:, None] < end) & (f[None, :] < F), other=0.0
    )
    w = tl.load(
        w_ptr + (expert * F + f[:, None]) * N + cols[None, :],
        mask=(f[:, None] < F) & (cols[None, :] < N),
        other=0.0,
    )
    acc = tl.dot(h, w, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < end) & (cols[None, :] < N))
