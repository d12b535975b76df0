"""Layer and RMS norm, forward and backward."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, unset


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr):
    """A row a program, in three passes over blocks of it."""
    row = tl.program_id(0)
    x_ptr += row * stride
    y_ptr += row * stride
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(acc, axis=0) / N
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        acc += x * x
    rstd = 1 / tl.sqrt(tl.sum(acc, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < N
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@case
def layer_norm_forward(seed):
    m, n = 6, 37
    x, w, b = normal((m, n), seed), normal((n,), seed + 50), normal((n,), seed + 60)
    args = {
        "x_ptr": x, "y_ptr": unset((m, n)), "w_ptr": w, "b_ptr": b, "mean_ptr": unset((m,)), "rstd_ptr": unset((m,)),
        "stride": n, "N": n, "eps": 1e-5, "BLOCK": 16,
    }  # fmt: skip
    wanted = {
        "y_ptr": torch.nn.functional.layer_norm(x, (n,), w, b),
        "mean_ptr": x.mean(1),
        "rstd_ptr": (x.var(1, unbiased=False) + 1e-5).rsqrt(),
    }
    return Case(
        layer_norm,
        (m,),
        args,
        wanted,
        tolerance=1e-5,
        axes={"M": 6},
        gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )


@triton.jit
def rms_norm(
    x_ptr, w_ptr, y_ptr, N: tl.constexpr, eps: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, M
):
    """Several rows a program, unrolled."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + cols, mask=cols < N, other=0.0)
    for i in tl.static_range(ROWS):
        row = pid * ROWS + i
        if row < M:
            x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
            scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
            tl.store(y_ptr + row * N + cols, x * scale * w, mask=cols < N)


@case
def rms_norm_of_several_rows(seed):
    m, n = 11, 24
    x, w = normal((m, n), seed), normal((n,), seed + 50)
    args = {
        "x_ptr": x,
        "w_ptr": w,
        "y_ptr": unset((m, n)),
        "N": n,
        "eps": 1e-6,
        "BLOCK": 32,
        "ROWS": 4,
        "M": m,
    }
    wanted = x * (x.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt() * w
    return Case(
        rms_norm, (3,), args, {"y_ptr": wanted}, tolerance=1e-5, axes={"M": 3}, reduction="i", gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def layer_norm_backward(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, M, N, ROWS, BLOCK: tl.constexpr
):
    """dx of a band of rows, and the band's part of dw and db in a row of its own."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    first = pid * ROWS
    last = min(first + ROWS, M)
    for row in range(first, last):
        x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * N + cols, mask=mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        x_hat = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
        wdy = w * dy
        c1 = tl.sum(x_hat * wdy, 0) / N
        c2 = tl.sum(wdy, 0) / N
        tl.store(dx_ptr + row * N + cols, (wdy - (x_hat * c1 + c2)) * rstd, mask=mask)
        dw += dy * x_hat
        db += dy
    tl.store(dw_ptr + pid * N + cols, dw, mask=mask)
    tl.store(db_ptr + pid * N + cols, db, mask=mask)


@case
def layer_norm_backward_in_bands(seed):
    m, n, rows = 10, 20, 4
    x, w, dy = normal((m, n), seed), normal((n,), seed + 50), normal((m, n), seed + 70)
    mean, rstd = x.mean(1), (x.var(1, unbiased=False) + 1e-5).rsqrt()
    bands = cdiv(m, rows)
    leaf = x.clone().requires_grad_()
    torch.nn.functional.layer_norm(leaf, (n,), w).backward(dy)
    x_hat = (x - mean[:, None]) * rstd[:, None]
    args = {
        "dx_ptr": unset((m, n)), "dy_ptr": dy, "dw_ptr": unset((bands, n)), "db_ptr": unset((bands, n)), "x_ptr": x,
        "w_ptr": w, "mean_ptr": mean, "rstd_ptr": rstd, "M": m, "N": n, "ROWS": rows, "BLOCK": 32,
    }  # fmt: skip
    wanted = {
        "dx_ptr": leaf.grad,
        "dw_ptr": torch.stack([part.sum(0) for part in (dy * x_hat).split(rows)]),
        "db_ptr": torch.stack([part.sum(0) for part in dy.split(rows)]),
    }
    return Case(
        layer_norm_backward, (bands,), args, wanted, tolerance=1e-5, axes={"M": 3}, gather={"dy_ptr": 0},
        scatter={"dx_ptr": 0},
    )  # fmt: skip
