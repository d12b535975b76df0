"""Convolutions: two-dimensional as an implicit product, and the causal one-dimensional ones of state-space models."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, numbers, unset


@triton.jit
def implicit_gemm(
    x_ptr, w_ptr, y_ptr, H, W, C, OH, OW, F, stride: tl.constexpr, pad: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """x [N, H, W, C], w [KH, KW, C, F], y [N, OH, OW, F]: rows are output pixels of one image."""
    pid_m, pid_n, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pixel = pid_m * BM + tl.arange(0, BM)
    oh, ow = pixel // OW, pixel % OW
    f = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for kh in tl.static_range(KH):
        for kw in tl.static_range(KW):
            h = oh * stride + kh - pad
            w = ow * stride + kw - pad
            inside = (pixel < OH * OW) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            for c in range(0, C, BC):
                rc = c + tl.arange(0, BC)
                x = tl.load(
                    x_ptr + ((image * H + h[:, None]) * W + w[:, None]) * C + rc[None, :],
                    mask=inside[:, None] & (rc < C)[None, :],
                    other=0.0,
                )
                wt = tl.load(
                    w_ptr + ((kh * KW + kw) * C + rc[:, None]) * F + f[None, :],
                    mask=(rc < C)[:, None] & (f < F)[None, :],
                    other=0.0,
                )
                acc += tl.dot(x, wt, input_precision="ieee")
    at = y_ptr + (image * OH * OW + pixel[:, None]) * F + f[None, :]
    tl.store(at, acc, mask=(pixel < OH * OW)[:, None] & (f < F)[None, :])


@case
def implicit_gemm_of_an_image(seed):
    n, h, w, c, f, kernel, pad = 2, 6, 5, 20, 18, 3, 1
    x, wt = numbers((n, h, w, c), seed), numbers((kernel, kernel, c, f), seed + 50)
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), wt.permute(3, 2, 0, 1), padding=pad).permute(
        0, 2, 3, 1
    )
    args = {
        "x_ptr": x, "w_ptr": wt, "y_ptr": unset((n, h, w, f)), "H": h, "W": w, "C": c, "OH": h, "OW": w, "F": f,
        "stride": 1, "pad": pad, "KH": kernel, "KW": kernel, "BM": 16, "BN": 16, "BC": 16,
    }  # fmt: skip
    return Case(
        implicit_gemm, (cdiv(h * w, 16), 2, n), args, {"y_ptr": y.contiguous()}, gather={"x_ptr": 1},
        scatter={"y_ptr": 1}, compile={"BM": 64, "BN": 64, "BC": 32},
    )  # fmt: skip


@triton.jit
def rows_of_pixels(
    x_ptr, w_ptr, y_ptr, H, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr, K: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """A program has a stretch of one output row, so that its input is K stretches of rows. No padding."""
    oh = tl.program_id(0)
    ow = tl.program_id(1) * BW + tl.arange(0, BW)
    f = tl.arange(0, BF)
    acc = tl.zeros((BW, BF), dtype=tl.float32)
    for tap in range(K * K):
        h = oh + tap // K
        w = ow + tap % K
        rc = tl.arange(0, BC)
        x = tl.load(
            x_ptr + (h * W + w[:, None]) * C + rc[None, :],
            mask=(w < W)[:, None] & (rc < C)[None, :],
            other=0.0,
        )
        wt = tl.load(w_ptr + (tap * C + rc[:, None]) * F + f[None, :], mask=(rc < C)[:, None] & (f < F)[None, :],
                     other=0.0)  # fmt: skip
        acc = tl.dot(x, wt, acc, input_precision="ieee")
    OW: tl.constexpr = W - K + 1
    tl.store(
        y_ptr + (oh * OW + ow[:, None]) * F + f[None, :], acc, mask=(ow < OW)[:, None] & (f < F)[None, :]
    )


@case
def stretches_of_output_rows(seed):
    h, w, c, f, k = 7, 22, 12, 10, 3
    x, wt = numbers((h, w, c), seed), numbers((k, k, c, f), seed + 50)
    y = torch.nn.functional.conv2d(x.permute(2, 0, 1)[None], wt.permute(3, 2, 0, 1))[0].permute(1, 2, 0)
    args = {
        "x_ptr": x, "w_ptr": wt, "y_ptr": unset((h - 2, w - 2, f)), "H": h, "W": w, "C": c, "F": f, "K": k, "BW": 16,
        "BC": 16, "BF": 16,
    }  # fmt: skip
    return Case(
        rows_of_pixels, (h - 2, 2), args, {"y_ptr": y.contiguous()}, axes=(5, 2), reduction="tap",
        gather={"x_ptr": 0}, scatter={"y_ptr": 0}, compile={},
    )  # fmt: skip


@triton.jit
def causal(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    L,
    D,
    BL: tl.constexpr,
    BD: tl.constexpr,
    WIDTH: tl.constexpr,
    SILU: tl.constexpr,
):
    """y[t] = Σ w[i] · x[t − WIDTH + 1 + i], each channel for itself; x [batch, L, D]."""
    i_d, i_l, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d = i_d * BD + tl.arange(0, BD)
    t = i_l * BL + tl.arange(0, BL)
    acc = tl.zeros((BL, BD), dtype=tl.float32)
    for i in tl.static_range(WIDTH):
        at = t + (i - WIDTH + 1)
        x = tl.load(
            x_ptr + (i_b * L + at[:, None]) * D + d[None, :],
            mask=((at >= 0) & (at < L))[:, None] & (d < D)[None, :],
            other=0.0,
        )
        w = tl.load(w_ptr + d * WIDTH + i, mask=d < D, other=0.0)
        acc += x * w[None, :]
    acc += tl.load(b_ptr + d, mask=d < D, other=0.0)[None, :]
    if SILU:
        acc = acc * tl.sigmoid(acc)
    tl.store(y_ptr + (i_b * L + t[:, None]) * D + d[None, :], acc, mask=(t < L)[:, None] & (d < D)[None, :])


@case
def causal_by_channel(seed):
    b, length, d, width = 2, 21, 10, 4
    x, w, bias = normal((b, length, d), seed), normal((d, width), seed + 50), normal((d,), seed + 60)
    y = torch.nn.functional.conv1d(
        x.transpose(1, 2), w[:, None], bias, padding=width - 1, groups=d
    )[..., :length]  # fmt: skip
    args = {
        "x_ptr": x, "w_ptr": w, "b_ptr": bias, "y_ptr": unset((b, length, d)), "L": length, "D": d, "BL": 8, "BD": 8,
        "WIDTH": width, "SILU": True,
    }  # fmt: skip
    return Case(
        causal, (2, 3, b), args, {"y_ptr": torch.nn.functional.silu(y).transpose(1, 2)}, tolerance=1e-5,
        axes=(2, 3, 2), gather={"x_ptr": 1}, scatter={"y_ptr": 1}, reduction="i",
    )  # fmt: skip


@triton.jit
def update_state(x_ptr, state_ptr, w_ptr, y_ptr, D, WIDTH: tl.constexpr, BD: tl.constexpr):
    """One step: the state [batch, D, WIDTH] moves by one, in place."""
    i_b = tl.program_id(0)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = d < D
    x = tl.load(x_ptr + i_b * D + d, mask=inside, other=0.0)
    acc = x * tl.load(w_ptr + d * WIDTH + WIDTH - 1, mask=inside, other=0.0)
    state = state_ptr + (i_b * D + d) * WIDTH
    for i in tl.static_range(WIDTH - 1):
        old = tl.load(state + i + 1, mask=inside, other=0.0)
        tl.store(state + i, old, mask=inside)
        acc += old * tl.load(w_ptr + d * WIDTH + i, mask=inside, other=0.0)
    tl.store(state + (WIDTH - 1), x, mask=inside)
    tl.store(y_ptr + i_b * D + d, acc, mask=inside)


@case
def one_step_in_place(seed):
    b, d, width = 3, 13, 4
    x, state, w = normal((b, d), seed), normal((b, d, width), seed + 50), normal((d, width), seed + 60)
    after = torch.cat([state[..., 1:], x[..., None]], -1)
    args = {
        "x_ptr": x,
        "state_ptr": state,
        "w_ptr": w,
        "y_ptr": unset((b, d)),
        "D": d,
        "WIDTH": width,
        "BD": 8,
    }
    return Case(
        update_state, (b, 2), args, {"y_ptr": (after * w).sum(-1), "state_ptr": after}, tolerance=1e-5,
        gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip
