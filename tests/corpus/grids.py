"""Ways in which kernels number their tiles: groups without masks, rows of a program, strides over programs, triangles, snakes,
split and streamed sums. Each launch grid either follows from the kernel or is asked for; it is never another one."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, numbers, unset


@triton.jit
def grouped_exact(a_ptr, b_ptr, c_ptr, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Sizes are multiples of the blocks, so nothing is masked: programs beyond the last one would wrap around."""
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * columns
    first = (pid // width) * GROUP
    height = min(rows - first, GROUP)
    rm = (first + (pid % width) % height) * BM + tl.arange(0, BM)
    rn = ((pid % width) // height) * BN + tl.arange(0, BN)
    rk = tl.arange(0, K)
    a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
    b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], tl.dot(a, b, input_precision="ieee"))


@case
def grouped_tiles_without_masks(seed):
    a, b = numbers((48, 16), seed), numbers((16, 32), seed + 50)
    args = {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": unset((48, 32)),
        "M": 48,
        "N": 32,
        "K": 16,
        "BM": 16,
        "BN": 16,
        "GROUP": 4,
    }
    return Case(grouped_exact, (6,), args, {"c_ptr": a @ b}, axes={"M": 3, "N": 2}, gather={"a_ptr": 0})


@triton.jit
def rows_of_a_program(x_ptr, y_ptr, T, D: tl.constexpr, ROWS: tl.constexpr):
    """Each program walks its own stretch of rows."""
    pid = tl.program_id(0)
    cols = tl.arange(0, D)
    for t in range(pid * ROWS, min((pid + 1) * ROWS, T)):
        x = tl.load(x_ptr + t * D + cols)
        tl.store(y_ptr + t * D + cols, x + t)


@case
def rows_in_stretches(seed):
    x = numbers((13, 8), seed)
    args = {"x_ptr": x, "y_ptr": unset((13, 8)), "T": 13, "D": 8, "ROWS": 4}
    return Case(
        rows_of_a_program, (4,), args, {"y_ptr": x + torch.arange(13.0)[:, None]}, gather={"x_ptr": 0}
    )


@triton.jit
def skip_first(x_ptr, y_ptr, n, B: tl.constexpr):
    """The first program only sets what the others do not."""
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    if pid == 0:
        return
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@case
def early_return_of_one_program(seed):
    x = numbers((29,), seed)
    wanted = x.clone()
    wanted[:8] = 0
    return Case(skip_first, (4,), {"x_ptr": x, "y_ptr": torch.zeros(29), "n": 29, "B": 8}, {"y_ptr": wanted})


@triton.jit
def partial_sums(x_ptr, part_ptr, n, PROGRAMS: tl.constexpr, B: tl.constexpr):
    """Blocks of a program lie PROGRAMS apart; their sum is all that it stores."""
    pid = tl.program_id(0)
    acc = tl.zeros((B,), tl.float32)
    for block in range(pid, tl.cdiv(n, B), PROGRAMS):
        at = block * B + tl.arange(0, B)
        acc += tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(part_ptr + pid, tl.sum(acc, 0))


@case
def partial_sums_by_stride(seed):
    x = numbers((77,), seed)
    padded = torch.cat([x, torch.zeros(3)]).view(10, 8).sum(1)
    wanted = torch.stack([padded[p::3].sum() for p in range(3)])
    args = {"x_ptr": x, "part_ptr": unset((3,)), "n": 77, "PROGRAMS": 3, "B": 8}
    return Case(partial_sums, (3,), args, {"part_ptr": wanted}, gather={"x_ptr": 0})


@triton.jit
def grid_stride(x_ptr, y_ptr, n, B: tl.constexpr):
    """Every program goes on by the whole grid."""
    step = tl.num_programs(0) * B
    for start in range(tl.program_id(0) * B, n, step):
        at = start + tl.arange(0, B)
        tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@case
def blocks_a_grid_apart(seed):
    x = numbers((100,), seed)
    args = {"x_ptr": x, "y_ptr": unset((100,)), "n": 100, "B": 8}
    return Case(grid_stride, (4,), args, {"y_ptr": 2 * x}, gather={"x_ptr": 0})


@triton.jit
def persistent_batches(x_ptr, y_ptr, n, P: tl.constexpr, B: tl.constexpr):
    """Persistent along x, one batch for each program along y."""
    z = tl.program_id(1)
    for t in range(tl.program_id(0), tl.cdiv(n, B), P):
        at = t * B + tl.arange(0, B)
        x = tl.load(x_ptr + z * n + at, mask=at < n)
        tl.store(y_ptr + z * n + at, x - z, mask=at < n)


@case
def persistent_beside_batches(seed):
    x = numbers((5, 60), seed)
    args = {"x_ptr": x, "y_ptr": unset((5, 60)), "n": 60, "P": 3, "B": 8}
    return Case(
        persistent_batches, (3, 5), args, {"y_ptr": x - torch.arange(5.0)[:, None]}, gather={"x_ptr": 0}
    )


@triton.jit
def lower_triangle(x_ptr, y_ptr, N: tl.constexpr, B: tl.constexpr):
    """Tiles on and below the diagonal are numbered by one id."""
    pid = tl.program_id(0)
    row = 0
    first = 0
    while first + row + 1 <= pid:
        first += row + 1
        row += 1
    column = pid - first
    r, c = row * B + tl.arange(0, B), column * B + tl.arange(0, B)
    at = r[:, None] * N + c[None, :]
    tl.store(y_ptr + at, tl.load(x_ptr + at), mask=c[None, :] <= r[:, None])


@case
def tiles_of_a_triangle(seed):
    x = numbers((24, 24), seed)
    args = {"x_ptr": x, "y_ptr": torch.zeros(24, 24), "N": 24, "B": 8}
    return Case(lower_triangle, (6,), args, {"y_ptr": x.tril()}, gather={"x_ptr": 0})


@triton.jit
def snake(x_ptr, y_ptr, M, N, B: tl.constexpr):
    """Every other row of tiles is walked backwards."""
    pid = tl.program_id(0)
    columns = tl.cdiv(N, B)
    row = pid // columns
    column = pid % columns
    column = columns - 1 - column if row % 2 == 1 else column
    r, c = row * B + tl.arange(0, B), column * B + tl.arange(0, B)
    at = r[:, None] * N + c[None, :]
    keep = (r[:, None] < M) & (c[None, :] < N)
    tl.store(y_ptr + at, -tl.load(x_ptr + at, mask=keep), mask=keep)


@case
def tiles_in_a_snake(seed):
    x = numbers((20, 21), seed)
    args = {"x_ptr": x, "y_ptr": unset((20, 21)), "M": 20, "N": 21, "B": 8}
    return Case(snake, (9,), args, {"y_ptr": -x}, axes=(3, 3), gather={"x_ptr": 0}, scatter={"y_ptr": 0})


@triton.jit
def backwards(x_ptr, y_ptr, n, B: tl.constexpr):
    """The last block first."""
    block = tl.cdiv(n, B) - 1 - tl.program_id(0)
    at = block * B + tl.arange(0, B)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)


@case
def blocks_from_the_last_to_the_first(seed):
    x = numbers((50,), seed)
    return Case(
        backwards, (7,), {"x_ptr": x, "y_ptr": unset((50,)), "n": 50, "B": 8}, {"y_ptr": x * 3}, axes=(7,),
        gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def split_k(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):
    """Blocks of K in turn among SPLIT programs of axis y, which add to one tile."""
    pid, pid_k = tl.program_id(0), tl.program_id(1)
    columns = tl.cdiv(N, BN)
    rm = (pid // columns) * BM + tl.arange(0, BM)
    rn = (pid % columns) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(pid_k * BK, K, BK * SPLIT):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@case
def split_k_in_turn(seed):
    a, b = numbers((20, 70), seed), numbers((70, 30), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": torch.zeros(20, 30), "M": 20, "N": 30, "K": 70, "BM": 16, "BN": 16, "BK": 16,
        "SPLIT": 2,
    }  # fmt: skip
    return Case(split_k, (4, 2), args, {"c_ptr": a @ b}, axes=(2, 2, 2), reduction="k", gather={"a_ptr": 0})


@triton.jit
def split_beside(x_ptr, part_ptr, M, K, BM: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    """The parts of a row block are neighbours: pid = block · SPLIT + part."""
    pid = tl.program_id(0)
    block, part = pid // SPLIT, pid % SPLIT
    r = block * BM + tl.arange(0, BM)
    per = tl.cdiv(tl.cdiv(K, BK), SPLIT) * BK
    acc = tl.zeros((BM,), tl.float32)
    for k in range(part * per, min(part * per + per, K), BK):
        c = k + tl.arange(0, BK)
        x = tl.load(x_ptr + r[:, None] * K + c[None, :], mask=(r[:, None] < M) & (c[None, :] < K), other=0.0)
        acc += tl.sum(x, 1)
    tl.store(part_ptr + part * M + r, acc, mask=r < M)


@case
def split_rows_into_a_workspace(seed):
    x = numbers((20, 45), seed)
    wanted = torch.stack([x[:, :24].sum(1), x[:, 24:].sum(1)])
    args = {"x_ptr": x, "part_ptr": unset((2, 20)), "M": 20, "K": 45, "BM": 8, "BK": 8, "SPLIT": 2}
    return Case(
        split_beside, (6,), args, {"part_ptr": wanted}, axes=(2, 3), reduction="k", gather={"x_ptr": 0}
    )


@triton.jit
def stream_k(a_ptr, b_ptr, c_ptr, N, K, ITERATIONS, PER: tl.constexpr, B: tl.constexpr):
    """Every program does the same number of steps of all tiles, wherever they begin and end."""
    pid = tl.program_id(0)
    columns, steps = tl.cdiv(N, B), tl.cdiv(K, B)
    at = pid * PER
    last = min(at + PER, ITERATIONS)
    while at < last:
        tile = at // steps
        until = min((tile + 1) * steps, last)
        rm = (tile // columns) * B + tl.arange(0, B)
        rn = (tile % columns) * B + tl.arange(0, B)
        acc = tl.zeros((B, B), tl.float32)
        for i in range(at, until):
            rk = (i - tile * steps) * B + tl.arange(0, B)
            a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
            acc += tl.dot(a, tl.load(b_ptr + rk[:, None] * N + rn[None, :]), input_precision="ieee")
        tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc)
        at = until


@case
def streamed_steps(seed):
    a, b = numbers((32, 80), seed), numbers((80, 32), seed + 50)
    args = {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": torch.zeros(32, 32),
        "N": 32,
        "K": 80,
        "ITERATIONS": 20,
        "PER": 7,
        "B": 16,
    }
    return Case(stream_k, (3,), args, {"c_ptr": a @ b}, axes=(3,), reduction="i", gather={"a_ptr": 0})


@triton.jit
def three_axes(x_ptr, y_ptr, H, T, D: tl.constexpr, B: tl.constexpr):
    """Blocks of rows, heads and batches on an axis each: [B, H, T, D] to [B, T, H, D]."""
    t, h, b = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1), tl.program_id(2)
    d = tl.arange(0, D)
    x = tl.load(x_ptr + ((b * H + h) * T + t[:, None]) * D + d[None, :], mask=t[:, None] < T)
    tl.store(y_ptr + ((b * T + t[:, None]) * H + h) * D + d[None, :], x, mask=t[:, None] < T)


@case
def heads_behind_rows(seed):
    x = numbers((2, 3, 10, 8), seed)
    args = {"x_ptr": x, "y_ptr": unset((2, 10, 3, 8)), "H": 3, "T": 10, "D": 8, "B": 4}
    return Case(
        three_axes, (3, 3, 2), args, {"y_ptr": x.transpose(1, 2).contiguous()}, axes=(2, 3, 3), gather={"x_ptr": 1},
        scatter={"y_ptr": 1},
    )  # fmt: skip


@triton.jit
def columns_per_program(x_ptr, y_ptr, M, N, B: tl.constexpr):
    """The grid counts columns; a program goes down all rows, upwards."""
    c = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(M):
        r = M - 1 - i
        total += tl.load(x_ptr + r * N + c, mask=c < N, other=0.0)
        tl.store(y_ptr + r * N + c, total, mask=c < N)


@case
def sums_from_the_bottom(seed):
    x = numbers((9, 20), seed)
    args = {"x_ptr": x, "y_ptr": unset((9, 20)), "M": 9, "N": 20, "B": 8}
    return Case(
        columns_per_program, (cdiv(20, 8),), args, {"y_ptr": x.flip(0).cumsum(0).flip(0)}, gather={"x_ptr": 0}
    )


@triton.jit
def whole_and_shared(x_ptr, y_ptr, N, WHOLE, SHARERS, B: tl.constexpr, K: tl.constexpr):
    """The first programs have a block each; the others share what is left, step by step, wherever blocks begin."""
    pid = tl.program_id(0)
    at = tl.arange(0, B)
    if pid < WHOLE:
        total = tl.zeros((B,), tl.float32)
        for k in range(0, K):
            total += tl.load(x_ptr + (pid * B + at) * K + k)
        tl.store(y_ptr + pid * B + at, total)
    else:
        steps = (tl.cdiv(N, B) - WHOLE) * K // SHARERS
        start = (pid - WHOLE) * steps
        end = start + steps - 1
        for block in tl.range(start // K + WHOLE, end // K + WHOLE + 1):
            low = tl.where(block == start // K + WHOLE, start % K, 0)
            high = tl.where(block == end // K + WHOLE, end % K, K - 1)
            total = tl.zeros((B,), tl.float32)
            for k in tl.range(low, high + 1):
                total += tl.load(x_ptr + (block * B + at) * K + k)
            tl.atomic_add(y_ptr + block * B + at, total)


@case
def blocks_of_which_some_are_shared(seed):
    x = numbers((48, 6), seed)
    args = {"x_ptr": x, "y_ptr": torch.zeros(48), "N": 48, "WHOLE": 2, "SHARERS": 3, "B": 8, "K": 6}
    return Case(whole_and_shared, (5,), args, {"y_ptr": x.sum(1)}, axes=(5,), gather={"x_ptr": 0})


@triton.jit
def kept_or_not(
    x_ptr, y_ptr, p_ptr, T, H: tl.constexpr, V: tl.constexpr, B: tl.constexpr, KEEP: tl.constexpr
):
    """Where nothing is kept, the loop stores nothing, and its step is no number of programs."""
    k, t, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    y_ptr += (k * T * H + h) * V
    rows, cols = t * B + tl.arange(0, B), tl.arange(0, V)
    total = tl.zeros((B, V), tl.float32)
    for s in range(t * B, min((t + 1) * B, T), B):
        at = (s + tl.arange(0, B))[:, None]
        total += tl.load(x_ptr + at * (H * V) + h * V + cols[None, :], mask=at < T, other=0.0)
        if KEEP:
            tl.store(p_ptr + at * V + cols[None, :], total, mask=at < T)
    tl.store(y_ptr + rows[:, None] * (H * V) + cols[None, :], total, mask=rows[:, None] < T)


@case
def sums_of_which_no_part_is_kept(seed):
    x = numbers((22, 2, 16), seed)
    args = {"x_ptr": x, "y_ptr": unset((1, 22, 2, 16)), "p_ptr": None, "T": 22, "H": 2, "V": 16, "B": 8, "KEEP": False}  # fmt: skip
    return Case(kept_or_not, (1, 3, 2), args, {"y_ptr": x[None]}, axes=(3, 2), gather={"x_ptr": 0})


@triton.jit
def heads_of_batches(x_ptr, y_ptr, L, H, D: tl.constexpr, B: tl.constexpr):
    """Behind the last head of a batch, and behind the last block of a head, lies the next one: nothing is masked."""
    block, h, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r = block * B + tl.arange(0, B)
    at = (z * H + h) * L * D + r[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(y_ptr + at, tl.load(x_ptr + at) + 1.0)


@case
def blocks_of_heads_of_batches(seed):
    x = numbers((2, 3, 8, 8), seed)
    args = {"x_ptr": x, "y_ptr": unset((2, 3, 8, 8)), "L": 8, "H": 3, "D": 8, "B": 4}
    return Case(
        heads_of_batches, (2, 3, 2), args, {"y_ptr": x + 1}, axes=(2, 3, 2), gather={"x_ptr": 1}, scatter={"y_ptr": 1},
    )  # fmt: skip
