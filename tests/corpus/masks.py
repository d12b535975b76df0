"""Masks that are made as constants and then changed: torch.compile and serving kernels write them."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset


def masked(kernel, n: int, wanted, seed: int, rows: int = 4, **more) -> Case:
    """A kernel of one row a program that stores 2 · x where `wanted(column)` holds."""
    x = normal((rows, n), seed)
    kept = torch.tensor([wanted(column) for column in range(n)])
    expected = torch.where(kept, 2 * x, torch.full_like(x, float("nan")))
    args = {"x_ptr": x, "y_ptr": unset((rows, n)), "N": n, "B": 8, **more}
    return Case(kernel, (rows,), args, {"y_ptr": expected})


@triton.jit
def narrowed(x_ptr, y_ptr, N, ROWS, B: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    mask = tl.full((B,), 1, tl.int1)
    mask &= at < N
    mask &= row < ROWS
    mask &= ~(at == N)
    tl.store(y_ptr + row * N + at, 2 * tl.load(x_ptr + row * N + at, mask=mask), mask=mask)


@case
def true_narrowed_by_and(seed):
    return masked(narrowed, 7, lambda _: True, seed, ROWS=4)


@triton.jit
def widened(x_ptr, y_ptr, N, B: tl.constexpr, ROUNDS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    mask = tl.zeros((B,), dtype=tl.int1)
    for i in range(ROUNDS):
        mask |= (at == 2 * i) & (at < N)
    mask |= at == 5
    tl.store(y_ptr + row * N + at, 2 * tl.load(x_ptr + row * N + at, mask=mask), mask=mask)


@case
def false_widened_by_or_in_a_loop(seed):
    return masked(widened, 7, lambda column: column in (0, 2, 4, 5), seed, ROUNDS=3)


@triton.jit
def turned(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    outside = at >= N
    mask = tl.full([B], True, tl.int1) ^ outside ^ (at < 2)
    loaded = (outside == False) & (outside != True) & ((at < N) == (at < N + 9))  # noqa: E712
    x = tl.load(x_ptr + row * N + at, mask=loaded & ~(~mask))
    tl.store(y_ptr + row * N + at, 2 * x, mask=mask)


@case
def masks_compared_inverted_and_xored(seed):
    return masked(turned, 7, lambda column: column >= 2, seed)


@triton.jit
def chosen(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    yes, no = tl.full([B], True, tl.int1), tl.full([1], False, tl.int1)
    mask = tl.where(at % 2 == 0, at < N, tl.where(at < 4, yes, no))
    mask = mask.to(tl.int32).to(tl.int1)
    tl.store(y_ptr + row * N + at, 2 * tl.load(x_ptr + row * N + at, mask=mask), mask=mask)


@case
def masks_chosen_by_where(seed):
    return masked(chosen, 7, lambda column: column % 2 == 0 or column < 4, seed)


@triton.jit
def multiplied(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    mask = (rows < M)[:, None] * (cols < N)[None, :]
    mask = mask & tl.full((1, 1), True, tl.int1) & tl.broadcast_to(tl.full((BM, 1), True, tl.int1), (BM, BN))
    at = rows[:, None] * N + cols[None, :]
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=mask, other=0.0), mask=mask)


@case
def products_of_masks(seed):
    x = normal((9, 7), seed)
    args = {"x_ptr": x, "y_ptr": unset((9, 7)), "M": 9, "N": 7, "BM": 4, "BN": 8}
    return Case(
        multiplied, (3,), args, {"y_ptr": x}, axes={"M": 3}, gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def keep_best(x_ptr, y_ptr, N, B: tl.constexpr, ROUNDS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    inside = at < N
    x = tl.load(x_ptr + row * N + at, mask=inside, other=0.0)
    rest = tl.where(inside, x, -float("inf"))
    kept = tl.zeros_like(inside)
    for _ in range(ROUNDS):
        best = tl.argmax(rest, axis=0)
        kept |= (at == best) & inside
        rest = tl.where(at == best, -float("inf"), rest)
    tl.store(y_ptr + row * N + at, tl.where(kept, x, 0.0), mask=inside)


@case
def of_data_where_only_values_follow(seed):
    x = normal((4, 7), seed)
    least = x.sort(dim=1, descending=True).values[:, 1:2]
    args = {"x_ptr": x, "y_ptr": unset((4, 7)), "N": 7, "B": 8, "ROUNDS": 2}
    return Case(
        keep_best, (4,), args, {"y_ptr": torch.where(x >= least, x, 0.0)}, axes={"M": 4},
        gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def all_of_data(x_ptr, y_ptr, N, B: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, B)
    x = tl.load(x_ptr + row * N + at, mask=at < N, other=0.0)
    every = (x > 0) | tl.full([B], True, tl.int1)
    none = (x > 0) & tl.zeros([B], tl.int1)
    tl.store(y_ptr + row * N + at, 2 * x, mask=every & (at < N) & ~none)


@case
def of_data_that_a_constant_hides(seed):
    return masked(all_of_data, 7, lambda _: True, seed)
