"""Matrix products, one tile a program: plain, grouped order, wrap-around, batched, with an epilogue, transposed operands,
block pointers, swizzle2d."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, numbers, unset
from .helpers import grouped_order

ACC = tl.constexpr(tl.float32)


@triton.jit
def plain(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A grid of two axes, everything row-major, masks on every side."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=ACC)
    for k in range(tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@case
def plain_ragged(seed):
    m, n, k = 50, 37, 41
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    sizes = {"M": m, "N": n, "K": k, "BM": 16, "BN": 16, "BK": 16}
    return Case(
        plain, (4, 3), {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), **sizes}, {"c_ptr": a @ b},
        axes={"M": 4, "N": 3}, reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def grouped(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Order by a helper of another file; rows and columns wrap around; pointers advance by strides."""
    pid = tl.program_id(axis=0)
    pid_m, pid_n = grouped_order(pid, tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    offs_m = (pid_m * BM + tl.arange(0, BM)) % M
    offs_n = (pid_n * BN + tl.arange(0, BN)) % N
    offs_m = tl.max_contiguous(tl.multiple_of(offs_m, BM), BM)
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, acc, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


def grouped_case(seed, b_transposed):
    m, n, k = 52, 44, 40
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    if b_transposed:
        b = b.t().contiguous().t()
    c = unset((m, n))
    strides = {
        "stride_am": a.stride(0), "stride_ak": a.stride(1), "stride_bk": b.stride(0), "stride_bn": b.stride(1),
        "stride_cm": c.stride(0), "stride_cn": c.stride(1),
    }  # fmt: skip
    sizes = {"M": m, "N": n, "K": k, "BM": 16, "BN": 16, "BK": 16, "GROUP": 3}
    return Case(
        grouped, (12,), {"a_ptr": a, "b_ptr": b, "c_ptr": c, **strides, **sizes}, {"c_ptr": a @ b},
        axes={"M": 4, "N": 3}, reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@case
def grouped_by_an_imported_helper(seed):
    return grouped_case(seed, b_transposed=False)


@case
def transposed_operand_and_columns_gathered(seed):
    made = grouped_case(seed, b_transposed=True)
    made.gather = {"a_ptr": 1}  # so the loop over K runs in phases
    return made


@triton.jit
def batched(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_bb, stride_bk, stride_cb, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One product for each index of the third grid axis."""
    batch = tl.program_id(2).to(tl.int64)
    pid_n, pid_m = tl.program_id(0), tl.program_id(1)
    a_ptr += batch * stride_ab
    b_ptr += batch * stride_bb
    c_ptr += batch * stride_cb
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        rk = start + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * stride_am + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0
        )
        b = tl.load(
            b_ptr + rk[:, None] * stride_bk + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * stride_cm + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def batched_on_three_axes(seed):
    z, m, n, k = 3, 20, 18, 24
    a, b = numbers((z, m, k), seed), numbers((z, k, n), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((z, m, n)), "M": m, "N": n, "K": k, "stride_ab": m * k, "stride_am": k,
        "stride_bb": k * n, "stride_bk": n, "stride_cb": m * n, "stride_cm": n, "BM": 16, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(
        batched, (2, 2, z), args, {"c_ptr": a @ b},
        axes={"B": 3, "M": 2, "N": 2}, reduction="start", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32}
    )  # fmt: skip


@triton.jit
def leaky(x, SLOPE: tl.constexpr = 0.5):
    return tl.where(x >= 0, x, SLOPE * x)


@triton.jit
def with_epilogue(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """Bias and activation, chosen by constexprs; K without a mask where it is even."""
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    pid_m, pid_n = pid // columns, pid % columns
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    safe_m = tl.where(rm < M, rm, 0)
    safe_n = tl.where(rn < N, rn, 0)
    a_ptrs = a_ptr + safe_m[:, None] * K + rk[None, :]
    b_ptrs = b_ptr + rk[:, None] * N + safe_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for left in range(K, 0, -BK):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BK
        b_ptrs += BK * N
    if HAS_BIAS:
        acc += tl.load(bias_ptr + rn, mask=rn < N, other=0.0)[None, :]
    if ACTIVATION == "relu":
        acc = tl.maximum(acc, 0.0)
    elif ACTIVATION == "leaky":
        acc = leaky(acc)
    else:
        tl.static_assert(ACTIVATION == "", f"no activation {ACTIVATION}")
    tl.store(
        c_ptr + rm[:, None] * N + rn[None, :],
        acc.to(c_ptr.dtype.element_ty),
        mask=(rm < M)[:, None] & (rn < N),
    )


@case
def bias_and_activation(seed):
    m, n, k = 35, 24, 32
    a, b, bias = numbers((m, k), seed), numbers((k, n), seed + 50), numbers((n,), seed + 90)
    y = a @ b + bias
    args = {
        "a_ptr": a, "b_ptr": b, "bias_ptr": bias, "c_ptr": unset((m, n)), "M": m, "N": n, "K": k,
        "BM": 16, "BN": 16, "BK": 16, "ACTIVATION": "leaky", "HAS_BIAS": True, "EVEN_K": True,
    }  # fmt: skip
    return Case(
        with_epilogue, (6,), args, {"c_ptr": torch.where(y >= 0, y, y / 2)},
        axes={"M": 3, "N": 2}, reduction="left", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def block_pointers(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Block pointers that advance; the grid's second axis is rows."""
    pid_m, pid_n = tl.program_id(1), tl.program_id(0)
    if pid_m * BM >= M:
        return
    a_block = tl.make_block_ptr(
        base=a_ptr, shape=(M, K), strides=(K, 1), offsets=(pid_m * BM, 0), block_shape=(BM, BK), order=(1, 0)
    )
    b_block = tl.make_block_ptr(
        base=b_ptr, shape=(K, N), strides=(N, 1), offsets=(0, pid_n * BN), block_shape=(BK, BN), order=(1, 0)
    )
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_block = tl.advance(a_block, [0, BK])
        b_block = tl.advance(b_block, [BK, 0])
    c_block = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    tl.store(c_block, acc, boundary_check=(0, 1))


@case
def block_pointers_with_early_return(seed):
    m, n, k = 33, 30, 20
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": unset((m, n)),
        "M": m,
        "N": n,
        "K": k,
        "BM": 16,
        "BN": 16,
        "BK": 16,
    }
    return Case(
        block_pointers, (2, 4), args, {"c_ptr": a @ b},
        reduction="_", gather={"a_ptr": 0}, scatter={"c_ptr": 0}, compile={"BM": 64, "BN": 64, "BK": 32}
    )  # fmt: skip


@triton.jit
def swizzled(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """tl.swizzle2d orders the tiles; operands are transposed in memory and turned by tl.trans and .T."""
    rows, columns = tl.num_programs(0), tl.num_programs(1)
    pid_m, pid_n = tl.swizzle2d(tl.program_id(0), tl.program_id(1), rows, columns, GROUP)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=2):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rk[:, None] * M + rm[None, :], mask=(rk < K)[:, None] & (rm < M)[None, :], other=0.0
        )
        b = tl.load(
            b_ptr + rn[:, None] * K + rk[None, :], mask=(rn < N)[:, None] & (rk < K)[None, :], other=0.0
        )
        acc = tl.dot(tl.trans(a), b.T, acc, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def swizzle2d_and_both_transposed(seed):
    m, n, k = 56, 40, 24
    a, b = numbers((k, m), seed), numbers((n, k), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), "M": m, "N": n, "K": k}
    return Case(
        swizzled, (4, 3), {**args, "BM": 16, "BN": 16, "BK": 16, "GROUP": 2}, {"c_ptr": a.t() @ b.t()},
        axes={"M": 4, "N": 3}, reduction="k", gather={"b_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32}
    )  # fmt: skip
