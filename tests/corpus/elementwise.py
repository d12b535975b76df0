"""Elementwise kernels: flat ranges, strided tiles, dropout, stacks of decorators, while loops, runtime branches."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, unset
from .helpers import block_offsets, silu


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(
        out_ptr + offsets,
        tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask),
        mask=mask,
    )


@case
def add_of_vectors(seed):
    x, y = normal((70,), seed), normal((70,), seed + 50)
    args = {"x_ptr": x, "y_ptr": y, "out_ptr": unset((70,)), "n_elements": 70, "BLOCK_SIZE": 16}
    return Case(
        add, (5,), args, {"out_ptr": x + y}, axes={"M": 5}, gather={"x_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def swiglu(gate_up_ptr, out_ptr, M, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The two halves of each row: silu(gate) · up. Offsets and silu come from another file."""
    rows, row_mask = block_offsets(tl.program_id(0), BM, M)
    cols, col_mask = block_offsets(tl.program_id(1), BN, N)
    mask = row_mask[:, None] & col_mask[None, :]
    at = gate_up_ptr + rows[:, None] * (2 * N) + cols[None, :]
    gate = tl.load(at, mask=mask, other=0.0)
    up = tl.load(at + N, mask=mask, other=0.0)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], silu(gate) * up, mask=mask)


@case
def swiglu_with_imported_helpers(seed):
    m, n = 9, 24
    x = normal((m, 2 * n), seed)
    args = {"gate_up_ptr": x, "out_ptr": unset((m, n)), "M": m, "N": n, "BM": 4, "BN": 16}
    wanted = torch.nn.functional.silu(x[:, :n]) * x[:, n:]
    return Case(
        swiglu, (3, 2), args, {"out_ptr": wanted}, tolerance=1e-6, axes={"M": 3, "N": 2}, gather={"gate_up_ptr": 0},
        scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    keep = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(keep, x / (1 - p), 0.0), mask=at < n)


@case
def dropout_by_counter(seed):
    x = torch.ones(60)
    args = {"x_ptr": x, "out_ptr": unset((60,)), "n": 60, "p": 0.0, "seed": 7, "BLOCK": 16}
    return Case(
        dropout, (4,), args, {"out_ptr": x}, axes={"M": 4}, gather={"x_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.autotune(configs=[triton.Config({"BLOCK": 16}, num_warps=4), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scaled(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Under a stack of decorators."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + at, tl.load(x_ptr + at) * scale)
    else:
        mask = at < n
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) * scale, mask=mask)


@case
def under_autotune_and_heuristics(seed):
    x = normal((48,), seed)
    args = {"x_ptr": x, "out_ptr": unset((48,)), "n": 48, "scale": 2.0, "BLOCK": 16, "EVEN": True}
    return Case(
        scaled, (3,), args, {"out_ptr": 2 * x}, axes={"M": 3}, gather={"x_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def in_steps(x_ptr, out_ptr, n, per_program, BLOCK: tl.constexpr):
    """A while loop over the blocks of a program's stretch."""
    start = tl.program_id(0) * per_program
    end = tl.minimum(start + per_program, n)
    at = start
    while at < end:
        offsets = at + tl.arange(0, BLOCK)
        mask = offsets < end
        x = tl.load(x_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, x * x, mask=mask)
        at += BLOCK


@case
def while_over_blocks(seed):
    x = normal((75,), seed)
    args = {"x_ptr": x, "out_ptr": unset((75,)), "n": 75, "per_program": 24, "BLOCK": 16}
    return Case(
        in_steps, (cdiv(75, 24),), args, {"out_ptr": x * x}, axes={"M": 4}, gather={"x_ptr": 0},
        scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def by_mode(x_ptr, y_ptr, out_ptr, M, N, mode, BM: tl.constexpr, BN: tl.constexpr):
    """if, elif and else on a scalar that is known at run time only: each reads something else."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    at = rm[:, None] * N + rn[None, :]
    if mode == 0:
        v = tl.load(x_ptr + at, mask=mask)
    elif mode == 1:
        v = tl.load(y_ptr + at, mask=mask)
    else:
        v = tl.load(x_ptr + at, mask=mask) - tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, v, mask=mask)


@case
def branches_on_a_runtime_scalar(seed):
    x, y = normal((12, 20), seed), normal((12, 20), seed + 50)
    args = {
        "x_ptr": x,
        "y_ptr": y,
        "out_ptr": unset((12, 20)),
        "M": 12,
        "N": 20,
        "mode": 1,
        "BM": 4,
        "BN": 16,
    }
    return Case(
        by_mode, (3, 2), args, {"out_ptr": y}, axes={"M": 3, "N": 2}, gather={"y_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip
