"""Matrix products whose sum over K is shared by programs: split-K with atomics, with a workspace, stream-K."""

import triton
import triton.language as tl

from .cases import Case, case, cdiv, numbers, unset


@triton.jit
def split_k(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Every SPLIT_K-th block of K; atomics unless there is one part only."""
    pid = tl.program_id(0)
    pid_k = tl.program_id(1)
    grid_n = tl.cdiv(N, BN)
    pid_m, pid_n = pid // grid_n, pid % grid_n
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = pid_k * BK + tl.arange(0, BK)
    a_ptrs = a_ptr + (rm % M)[:, None] * stride_am + rk[None, :] * stride_ak
    b_ptrs = b_ptr + rk[:, None] * stride_bk + (rn % N)[None, :] * stride_bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK * SPLIT_K)):
        left = K - k * (BK * SPLIT_K)
        a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BK * SPLIT_K * stride_ak
        b_ptrs += BK * SPLIT_K * stride_bk
    c_ptrs = c_ptr + rm[:, None] * stride_cm + rn[None, :] * stride_cn
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    if SPLIT_K == 1:
        tl.store(c_ptrs, acc, mask=mask)
    else:
        tl.atomic_add(c_ptrs, acc, mask=mask)


@case
def split_k_by_atomics(seed):
    m, n, k = 36, 28, 72
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)).zero_(), "M": m, "N": n, "K": k, "stride_am": k, "stride_ak": 1,
        "stride_bk": n, "stride_bn": 1, "stride_cm": n, "stride_cn": 1, "BM": 16, "BN": 16, "BK": 16, "SPLIT_K": 2,
    }  # fmt: skip
    return Case(
        split_k, (6, 2), args, {"c_ptr": a @ b}, reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def into_workspace(
    a_ptr, b_ptr, part_ptr, M, N, K, K_PER_SPLIT, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Each split writes its own product: part [SPLITS, M, N]."""
    pid_m, pid_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    lo = split * K_PER_SPLIT
    hi = tl.minimum(lo + K_PER_SPLIT, K)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(lo, hi, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < hi)[None, :], other=0.0
        )
        b = tl.load(
            b_ptr + rk[:, None] * N + rn[None, :], mask=(rk < hi)[:, None] & (rn < N)[None, :], other=0.0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    at = part_ptr + split * M * N + rm[:, None] * N + rn[None, :]
    tl.store(at, acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def split_k_into_a_workspace(seed):
    m, n, k, per = 36, 20, 70, 32
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    splits = cdiv(k, per)
    parts = [a[:, s * per : (s + 1) * per] @ b[s * per : (s + 1) * per] for s in range(splits)]
    part = unset((splits, m, n))
    args = {
        "a_ptr": a, "b_ptr": b, "part_ptr": part, "M": m, "N": n, "K": k, "K_PER_SPLIT": per, "BM": 16, "BN": 16,
        "BK": 16,
    }  # fmt: skip
    wanted = unset((splits, m, n))
    for s in range(splits):
        wanted[s] = parts[s]
    return Case(
        into_workspace, (3, 2, splits), args, {"part_ptr": wanted}, axes={"B": 3, "M": 3, "N": 2}, reduction="k",
        gather={"a_ptr": 0}, scatter={"part_ptr": 1}, compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def stream_k(
    a_ptr, b_ptr, c_ptr, M, N, K, PER_PROGRAM,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All steps of all tiles in one line, cut into equal stretches: a program may end one tile and begin the next."""
    columns = tl.cdiv(N, BN)
    steps = tl.cdiv(K, BK)
    total = tl.cdiv(M, BM) * columns * steps
    at = tl.program_id(0) * PER_PROGRAM
    end = tl.minimum(at + PER_PROGRAM, total)
    while at < end:
        tile = at // steps
        stop = tl.minimum(end, (tile + 1) * steps)
        rm = (tile // columns) * BM + tl.arange(0, BM)
        rn = (tile % columns) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(at % steps, at % steps + stop - at):
            rk = step * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0
            )
            b = tl.load(
                b_ptr + rk[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0
            )
            acc += tl.dot(a, b, input_precision="ieee")
        tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])
        at = stop


@case
def stream_k_by_atomics(seed):
    m, n, k = 36, 28, 72  # 3 × 2 tiles of 5 steps
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)).zero_(), "M": m, "N": n, "K": k, "PER_PROGRAM": 7, "BM": 16,
        "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(
        stream_k, (cdiv(30, 7),), args, {"c_ptr": a @ b}, gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip
