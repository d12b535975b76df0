"""Products of quantised operands: scales by row, column and group; packed int4."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, unset


def integers(shape, seed, low=-7, high=8):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


@triton.jit
def int8_by_row_and_column(
    a_ptr, b_ptr, c_ptr, sa_ptr, sb_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(axis=0)
    pid_n = tl.program_id(axis=1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.int32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * stride_am + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0
        )
        b = tl.load(
            b_ptr + rk[:, None] * stride_bk + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0
        )
        acc += tl.dot(a, b)
    sa = tl.load(sa_ptr + rm, mask=rm < M, other=0.0)
    sb = tl.load(sb_ptr + rn, mask=rn < N, other=0.0)
    c = acc.to(tl.float32) * sa[:, None] * sb[None, :]
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], c, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def int8_with_scales_of_rows_and_columns(seed):
    m, n, k = 40, 36, 48
    a, b = integers((m, k), seed), integers((k, n), seed + 50)
    sa, sb = normal((m,), seed + 60), normal((n,), seed + 70)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), "sa_ptr": sa, "sb_ptr": sb, "M": m, "N": n, "K": k,
        "stride_am": k, "stride_bk": n, "stride_cm": n, "BM": 16, "BN": 16, "BK": 32,
    }  # fmt: skip
    return Case(
        int8_by_row_and_column, (3, 3), args, {"c_ptr": (a.float() @ b.float()) * sa[:, None] * sb}, tolerance=1e-6,
        axes={"M": 3, "N": 3}, reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 64},
    )  # fmt: skip


@triton.jit
def scales_by_group(
    a_ptr, b_ptr, c_ptr, as_ptr, bs_ptr, M, N, K, group_n, group_k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """A scale for each row and group of K of A; for each block of B."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    num_in_group = GROUP_M * num_pid_n
    first = pid // num_in_group * GROUP_M
    size = min(num_pid_m - first, GROUP_M)
    pid_m = first + (pid % size)
    pid_n = (pid % num_in_group) // size
    offs_am = (pid_m * BM + tl.arange(0, BM)) % M
    offs_bn = (pid_n * BN + tl.arange(0, BN)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_am[:, None] * K + offs_k[None, :])
    b_ptrs = b_ptr + (offs_bn[None, :] * K + offs_k[:, None])
    groups = tl.cdiv(K, group_k)
    as_ptrs = as_ptr + offs_am * groups
    bs_ptrs = bs_ptr + (offs_bn // group_n) * groups
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        at = k * BK // group_k
        a_s = tl.load(as_ptrs + at)
        b_s = tl.load(bs_ptrs + at)
        acc += (
            tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee") * a_s[:, None] * b_s[None, :]
        )
        a_ptrs += BK
        b_ptrs += BK
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptr + N * offs_cm[:, None] + offs_cn[None, :], acc, mask=mask)


@case
def scales_of_blocks(seed):
    m, n, k, group = 36, 40, 64, 32
    a, b = integers((m, k), seed), integers((n, k), seed + 50)
    a_s, b_s = normal((m, k // group), seed + 60), normal((cdiv(n, group), k // group), seed + 70)
    full_a = a.float() * a_s.repeat_interleave(group, 1)
    full_b = b.float() * b_s.repeat_interleave(group, 0)[:n].repeat_interleave(group, 1)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), "as_ptr": a_s, "bs_ptr": b_s, "M": m, "N": n, "K": k,
        "group_n": group, "group_k": group, "BM": 16, "BN": 16, "BK": 32, "GROUP_M": 2,
    }  # fmt: skip
    return Case(
        scales_by_group, (9,), args, {"c_ptr": full_a @ full_b.t()}, tolerance=1e-5, axes={"M": 3, "N": 3},
        reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0}, compile={"BM": 64, "BN": 64},
    )  # fmt: skip


@triton.jit
def packed_int4(
    a_ptr, b_ptr, c_ptr, scale_ptr, M, N: tl.constexpr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """B holds two columns in a byte: [K, N / 2]. tl.join and tl.reshape put them side by side again."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rp = pid_n * (BN // 2) + tl.arange(0, BN // 2)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0
        )
        packed = tl.load(b_ptr + rk[:, None] * (N // 2) + rp[None, :], mask=(rk < K)[:, None] & (rp < N // 2)[None, :],
                         other=0)  # fmt: skip
        low = (packed << 4).to(tl.int8) >> 4
        high = packed >> 4
        b = tl.reshape(tl.join(low, high), (BK, BN)).to(tl.float32)
        s = tl.load(scale_ptr + (rk // GROUP)[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :],
                    other=0.0)  # fmt: skip
        acc += tl.dot(a, b * s, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def int4_packed_in_bytes(seed):
    m, n, k, group = 20, 40, 48, 16
    a, b = normal((m, k), seed), integers((k, n), seed + 50)
    packed = ((b[:, ::2] & 15) | (b[:, 1::2] << 4)).to(torch.int8)
    scale = normal((k // group, n), seed + 70)
    args = {
        "a_ptr": a, "b_ptr": packed, "c_ptr": unset((m, n)), "scale_ptr": scale, "M": m, "N": n, "K": k, "BM": 16,
        "BN": 16, "BK": 16, "GROUP": group,
    }  # fmt: skip
    wanted = a @ (b.float() * scale.repeat_interleave(group, 0))
    return Case(
        packed_int4, (2, 3), args, {"c_ptr": wanted}, tolerance=1e-5, axes={"M": 2, "N": 3}, reduction="k",
        gather={"a_ptr": 0}, scatter={"c_ptr": 0}, compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def quantise_rows(x_ptr, q_ptr, s_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-8) / 127.0
    tl.store(q_ptr + row * N + cols, tl.floor(x / scale + 0.5).to(tl.int8), mask=cols < N)
    tl.store(s_ptr + row, scale)


@case
def quantisation_of_rows(seed):
    x = normal((7, 30), seed)
    scale = x.abs().amax(1) / 127
    args = {"x_ptr": x, "q_ptr": unset((7, 30), torch.int8), "s_ptr": unset((7,)), "N": 30, "BLOCK": 32}
    wanted = {"q_ptr": (x / scale[:, None] + 0.5).floor().to(torch.int8), "s_ptr": scale}
    return Case(quantise_rows, (7,), args, wanted, axes=(7,), gather={"x_ptr": 0}, scatter={"s_ptr": 0})
