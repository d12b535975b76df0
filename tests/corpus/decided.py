"""What loaded data decides: stores that one way makes and another one leaves out, and early returns."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal

ROWS, N = 16, 12
BLOCK = 4


@triton.jit
def _put(y, rows, value):
    tl.store(y + rows, value)
    return 0


@triton.jit
def one_of_three(x, y, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.load(x + tl.program_id(0) * B * 12)
    if c > 0.8:
        tl.store(y + rows, 1.0)
    elif c > -0.8:
        pass
    else:
        tl.store(y + rows, 2.0)


@triton.jit
def nested_return(x, y, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.load(x + tl.program_id(0) * B * 12)
    if c > 0.0:
        if c > 0.1:
            return
    tl.store(y + rows, tl.load(x + rows * 12))


@triton.jit
def nested_store(x, y, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.load(x + tl.program_id(0) * B * 12)
    if c > 0.0:
        if c > 0.1:
            tl.store(y + rows, tl.load(x + rows * 12))
    else:
        tl.store(y + rows, tl.load(x + rows * 12))


@triton.jit
def in_an_expression(x, y, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.load(x + tl.program_id(0) * B * 12)
    k = _put(y, rows, c) if c > 0.3 else 1
    if k > 1:
        tl.store(y + rows, 7.0)


@triton.jit
def steps_by_name(x, y, n, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), dtype=tl.float32)
    for i in tl.range(0, n, step=4):
        v = tl.load(x + rows[:, None] * n + (i + tl.arange(0, 4))[None, :])
        acc = acc * 0.5 + tl.sum(v, 1)
    tl.store(y + rows, acc)


def drawn(seed: int) -> torch.Tensor:
    x = normal((ROWS, N), seed)
    x[::BLOCK, 0] = torch.tensor([1.0, -1.0, 0.2, 0.05])  # of each tile what decides
    return x


def decided(kernel, x: torch.Tensor, wanted) -> Case:
    """`wanted`: of y from what decides and what y held before."""
    first = x[::BLOCK, :1].expand(-1, BLOCK).reshape(ROWS)
    before = torch.full((ROWS,), 5.0)
    args = {"x": x, "y": before, "B": BLOCK}
    expected = {"y": wanted(first, before)}
    return Case(
        kernel, (ROWS // BLOCK,), args, expected, scatter={"y": 0}, inexact="a tile's first element decides"
    )


@case
def stored_one_of_three_ways(seed):
    return decided(
        one_of_three,
        drawn(seed),
        lambda c, y: torch.where(c > 0.8, 1.0, torch.where(c > -0.8, y, torch.full_like(y, 2.0))),
    )


@case
def stored_unless_a_branch_in_a_branch_returns(seed):
    x = drawn(seed)
    return decided(nested_return, x, lambda c, y: torch.where(c > 0.1, y, x[:, 0]))


@case
def stored_by_a_branch_in_a_branch(seed):
    x = drawn(seed)
    return decided(nested_store, x, lambda c, y: torch.where((c > 0.0) & (c <= 0.1), y, x[:, 0]))


@case
def stored_by_one_side_of_an_expression(seed):
    return decided(in_an_expression, drawn(seed), lambda c, y: torch.where(c > 0.3, c, y))


@case
def steps_given_by_name(seed):
    x = drawn(seed)
    wanted = torch.zeros(ROWS)
    for part in x.split(4, 1):
        wanted = wanted * 0.5 + part.sum(1)
    args = {"x": x, "y": torch.zeros(ROWS), "n": N, "B": BLOCK}
    return Case(
        steps_by_name,
        (ROWS // BLOCK,),
        args,
        {"y": wanted},
        tolerance=1e-6,
        scatter={"y": 0},
        gather={"x": 1},
    )
