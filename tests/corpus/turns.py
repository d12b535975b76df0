"""Tiles that wait for other tiles of their kernel, returns above the ids, and loops that data ends early."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, numbers

N, BLOCK = 30, 8
TILES = -(-N // BLOCK)


@triton.jit
def look_back(x, y, prefix, flag, n, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    before = 0.0
    if pid > 0:
        while tl.atomic_add(flag + pid - 1, 0) == 0:
            pass
        before = tl.load(prefix + pid - 1)
    tl.store(prefix + pid, before + tl.sum(v, 0))
    tl.debug_barrier()
    tl.atomic_xchg(flag + pid, 1)
    tl.store(y + i, tl.cumsum(v, 0) + before, mask=i < n)


@triton.jit
def in_turn(x, y, turn, S: tl.constexpr, B: tl.constexpr):
    pid, part = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, B)
    v = tl.load(x + (pid * S + part) * B + i)
    while tl.atomic_cas(turn + pid, part, part) != part:
        pass
    if part == 0:
        tl.store(y + pid * B + i, v)
    else:
        tl.store(y + pid * B + i, tl.load(y + pid * B + i) * 0.5 + v)
    tl.debug_barrier()
    tl.atomic_add(turn + pid, 1)


@triton.jit
def returns_above(x, y, n, EMPTY: tl.constexpr, B: tl.constexpr):
    if EMPTY:
        return
    if n == 0:
        return
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    if pid * B >= n:
        return
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0) * 2, mask=i < n)


@triton.jit
def until_done(x, done, y, n, B: tl.constexpr):
    pid = tl.program_id(0)
    r = tl.arange(0, B)
    i = 0
    ended = 0
    total = tl.zeros((B,), dtype=tl.float32)
    while (i < n) & (ended == 0):
        total += tl.load(x + (pid * n + i) * B + r)
        ended = tl.load(done + pid * n + i)
        i += 1
    tl.store(y + pid * B + r, total)


@triton.jit
def on_one_line(x, y, K: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    r = tl.arange(0, B)
    total = tl.zeros((B,), dtype=tl.float32)
    for k in range(0, K, B): total += tl.load(x + pid * K + k + r)  # fmt: skip  # noqa: E701
    tl.store(y + pid * B + r, total)


@case
def sums_that_look_back(seed):
    x = numbers((N,), seed)
    args = {"x": x, "y": torch.zeros(N), "prefix": torch.zeros(TILES), "flag": torch.zeros(TILES, dtype=torch.int32), "n": N, "B": BLOCK}  # fmt: skip
    return Case(look_back, (TILES,), args, {"y": x.cumsum(0)}, gather={"x": 0}, scatter={"y": 0})


@case
def parts_added_in_turn(seed):
    x = normal((3, 2, BLOCK), seed)
    args = {"x": x, "y": torch.zeros(3, BLOCK), "turn": torch.zeros(3, dtype=torch.int32), "S": 2, "B": BLOCK}
    return Case(in_turn, (3, 2), args, {"y": x[:, 0] * 0.5 + x[:, 1]}, scatter={"y": 0})


@case
def returns_above_the_ids(seed):
    x = normal((N,), seed)
    args = {"x": x, "y": torch.zeros(N), "n": N, "EMPTY": False, "B": BLOCK}
    return Case(returns_above, (TILES + 1,), args, {"y": x * 2}, gather={"x": 0}, scatter={"y": 0})


@case
def rounds_until_data_says_so(seed):
    x, done = numbers((4, 3, BLOCK), seed), torch.zeros(4, 3, dtype=torch.int32)
    done[1, 0] = done[3, 1] = 1
    ended = torch.stack([x[0].sum(0), x[1, 0], x[2].sum(0), x[3, :2].sum(0)])
    args = {"x": x, "done": done, "y": torch.zeros(4, BLOCK), "n": 3, "B": BLOCK}
    return Case(until_done, (4,), args, {"y": ended}, scatter={"y": 0}, gather={"x": 0}, inexact="data ends the rounds")  # fmt: skip


@case
def a_loop_on_one_line(seed):
    x = numbers((4, 4 * BLOCK), seed)
    args = {"x": x, "y": torch.zeros(4, BLOCK), "K": 4 * BLOCK, "B": BLOCK}
    return Case(on_one_line, (4,), args, {"y": x.view(4, 4, BLOCK).sum(1)}, gather={"x": 1}, scatter={"y": 0})
