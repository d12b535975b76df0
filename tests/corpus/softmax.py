"""Softmax by rows: one row a program, several rows a program, online over a long row; and cross-entropy."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset


@triton.jit
def row(y_ptr, x_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    """A row fits into one block."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * x_stride + cols, mask=cols < n_cols, other=-float("inf"))
    z = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + pid * y_stride + cols, z / tl.sum(z, axis=0), mask=cols < n_cols)


@case
def one_row_a_program(seed):
    x = normal((7, 21), seed)
    args = {"y_ptr": unset((7, 21)), "x_ptr": x, "x_stride": 21, "y_stride": 21, "n_cols": 21, "BLOCK": 32}
    return Case(
        row, (7,), args, {"y_ptr": x.softmax(1)}, tolerance=1e-6, axes={"M": 7}, gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def rows_in_turn(
    y_ptr, x_ptr, x_stride, y_stride, n_rows, n_cols, BLOCK: tl.constexpr, num_stages: tl.constexpr
):
    """Persistent: each program takes every n-th row."""
    start = tl.program_id(0)
    step = tl.num_programs(0)
    for row_idx in tl.range(start, n_rows, step, num_stages=num_stages):
        cols = tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row_idx * x_stride + cols, mask=mask, other=-float("inf"))
        z = tl.exp(x - tl.max(x, axis=0))
        y_row = y_ptr + row_idx * y_stride
        tl.store(y_row + cols, z / tl.sum(z, axis=0), mask=mask)


@case
def persistent_rows(seed):
    x = normal((10, 19), seed)
    args = {
        "y_ptr": unset((10, 19)), "x_ptr": x, "x_stride": 19, "y_stride": 19, "n_rows": 10, "n_cols": 19, "BLOCK": 32,
        "num_stages": 2,
    }  # fmt: skip
    return Case(
        rows_in_turn, (3,), args, {"y_ptr": x.softmax(1)}, tolerance=1e-6, axes={"M": 10}, gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def online(y_ptr, x_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Two passes over a row in blocks; the maximum is corrected as it grows."""
    pid = tl.program_id(0)
    rows = pid * BM + tl.arange(0, BM)
    x_rows = x_ptr + rows[:, None] * N
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_rows + cols[None, :], mask=inside, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(x, 1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(x - safe[:, None]), 1)
        top = new_top
    safe = tl.where(top == float("-inf"), 0.0, top)
    scale = tl.where(total > 0, 1.0 / total, 0.0)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        inside = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_rows + cols[None, :], mask=inside, other=float("-inf"))
        tl.store(
            y_ptr + rows[:, None] * N + cols[None, :], tl.exp(x - safe[:, None]) * scale[:, None], mask=inside
        )


@case
def online_in_two_passes(seed):
    x = normal((13, 50), seed)
    args = {"y_ptr": unset((13, 50)), "x_ptr": x, "M": 13, "N": 50, "BM": 4, "BN": 16}
    return Case(
        online, (4,), args, {"y_ptr": x.softmax(1)}, tolerance=1e-6, axes={"M": 4}, gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def cross_entropy(loss_ptr, x_ptr, label_ptr, stride, N, BLOCK: tl.constexpr, IGNORE: tl.constexpr):
    """The logit of the label is gathered through the label itself."""
    pid = tl.program_id(0)
    label = tl.load(label_ptr + pid)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * stride + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    lse = top + tl.log(tl.sum(tl.exp(x - top), 0))
    if label != IGNORE:
        at_label = tl.load(x_ptr + pid * stride + label)
        tl.store(loss_ptr + pid, lse - at_label)
    else:
        tl.store(loss_ptr + pid, 0.0)


@triton.jit
def cross_entropy_stated(loss_ptr, x_ptr, label_ptr, stride, N, BLOCK: tl.constexpr, IGNORE: tl.constexpr):
    # @sy.reads x_ptr[pid:pid + 1, :]
    pid = tl.program_id(0)
    label = tl.load(label_ptr + pid)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + pid * stride + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
    top = tl.max(x, 0)
    lse = top + tl.log(tl.sum(tl.exp(x - top), 0))
    if label != IGNORE:
        at_label = tl.load(x_ptr + pid * stride + label)
        tl.store(loss_ptr + pid, lse - at_label)
    else:
        tl.store(loss_ptr + pid, 0.0)


def cross_entropy_case(kernel, seed, **more):
    x = normal((9, 27), seed)
    labels = torch.tensor([3, 26, 0, -100, 5, 5, 11, 19, -100], dtype=torch.int32)
    wanted = torch.nn.functional.cross_entropy(x, labels.long(), reduction="none", ignore_index=-100)
    args = {
        "loss_ptr": unset((9,)), "x_ptr": x, "label_ptr": labels, "stride": 27, "N": 27, "BLOCK": 32, "IGNORE": -100,
    }  # fmt: skip
    return Case(kernel, (9,), args, {"loss_ptr": wanted}, tolerance=1e-5, **more)


@case
def cross_entropy_by_label(seed):
    return cross_entropy_case(
        cross_entropy, seed,
        refused="the address `x_ptr + pid * stride + label` cannot be known before the kernel runs: it depends on data "
        "loaded by `tl.load(label_ptr + pid)`",
    )  # fmt: skip


@case
def cross_entropy_with_directives(seed):
    return cross_entropy_case(
        cross_entropy_stated,
        seed,
        axes={"M": 9},
        gather={"x_ptr": 0},
        scatter={"loss_ptr": 0},
    )
