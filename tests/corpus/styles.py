"""What public kernels do besides: optional pointers, module access, early exits, break and continue, blocks that are
skipped, assertions, prints, decorators with arguments."""

import functools

import torch
import triton
import triton.language as tl

from . import helpers
from .cases import Case, case, cdiv, normal, numbers, unset
from .helpers import block_offsets as offsets_of

BLOCK_ROWS: tl.constexpr = tl.constexpr(4)
PRECISION = tl.constexpr("ieee")


def logged(function):
    """A decorator of one's own, outside of jit."""
    functools.update_wrapper(logged, function)
    return function


@triton.jit
def optional(
    x_ptr, scale_ptr, shift_ptr, y_ptr, M, N, BN: tl.constexpr, residual_ptr=None,
    ACTIVATION: tl.constexpr = None,
):  # fmt: skip
    """Pointers that may be None decide what is read."""
    rows, in_m = offsets_of(tl.program_id(0), BLOCK_ROWS, M)
    cols, in_n = offsets_of(tl.program_id(1), BN, N)
    mask = in_m[:, None] & in_n[None, :]
    at = rows[:, None] * N + cols[None, :]
    y = tl.load(x_ptr + at, mask=mask, other=0.0)
    if scale_ptr is not None:
        y *= tl.load(scale_ptr + cols, mask=in_n, other=1.0)[None, :]
    if shift_ptr is not None:
        y += tl.load(shift_ptr + cols, mask=in_n, other=0.0)[None, :]
    if residual_ptr is not None:
        y += tl.load(residual_ptr + at, mask=mask, other=0.0)
    if ACTIVATION is not None and ACTIVATION == "silu":
        y = helpers.silu(y)
    tl.store(y_ptr + at, y, mask=mask)


@case
def pointers_that_may_be_none(seed):
    m, n = 10, 20
    x, scale = normal((m, n), seed), normal((n,), seed + 50)
    args = {
        "x_ptr": x, "scale_ptr": scale, "shift_ptr": None, "y_ptr": unset((m, n)), "M": m, "N": n, "BN": 16,
        "ACTIVATION": "silu",
    }  # fmt: skip
    return Case(
        optional, (3, 2), args, {"y_ptr": torch.nn.functional.silu(x * scale)}, tolerance=1e-6, axes=(3, 2),
        gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@logged
@triton.autotune(
    configs=[
        triton.Config({"BM": bm, "BN": 16}, num_warps=4, num_stages=s) for bm in (16, 32) for s in (2, 3)
    ],
    key=["M", "N", "K"],
    prune_configs_by={"early_config_prune": lambda configs, named, **_: configs},
    reset_to_zero=[],
)
@triton.heuristics(
    values={
        "EVEN_K": lambda args: args["K"] % args["BK"] == 0,
        "BK": lambda args: 16 if args["K"] < 512 else 64,
    }
)
@triton.jit(do_not_specialize=["M"], debug=False)
def decorated(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN_K: tl.constexpr
):
    tl.static_assert(BK >= 16, f"BK is {BK}")
    tl.assume(M > 0)
    pid = tl.program_id(0)
    num_n = tl.cdiv(N, BN)
    rm = (pid // num_n) * BM + tl.arange(0, BM)
    rn = (pid % num_n) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(tl.cdiv(K, BK), num_stages=2, warp_specialize=False):
        rk = k * BK + tl.arange(0, BK)
        if EVEN_K:
            a = tl.load(a_ptr + rm[:, None] * K + rk, mask=(rm < M)[:, None], other=0.0)
            b = tl.load(b_ptr + rk[:, None] * N + rn, mask=(rn < N)[None, :], other=0.0)
        else:
            a = tl.load(a_ptr + rm[:, None] * K + rk, mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
            b = tl.load(b_ptr + rk[:, None] * N + rn, mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc=acc, input_precision=PRECISION)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def under_a_stack_of_decorators(seed):
    m, n, k = 33, 20, 48
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), "M": m, "N": n, "K": k, "BM": 16, "BN": 16, "BK": 16,
        "EVEN_K": True,
    }  # fmt: skip
    return Case(
        decorated, (6,), args, {"c_ptr": a @ b}, axes={"M": 3, "N": 2}, reduction="k", gather={"a_ptr": 1},
        scatter={"c_ptr": 0}, compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def lower_triangle(a_ptr, b_ptr, c_ptr, N, K, B: tl.constexpr, BK: tl.constexpr):
    """C = tril(A Bᵀ): tiles above the diagonal return at once, and leave C as it was."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    if pid_n > pid_m:
        return
    rm = pid_m * B + tl.arange(0, B)
    rn = pid_n * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < N)[:, None] & (rk < K)[None, :], other=0.0
        )
        b = tl.load(
            b_ptr + rn[:, None] * K + rk[None, :], mask=(rn < N)[:, None] & (rk < K)[None, :], other=0.0
        )
        acc += tl.dot(a, tl.trans(b), input_precision="ieee")
    mask = (rm < N)[:, None] & (rn < N)[None, :] & (rm[:, None] >= rn[None, :])
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=mask)


@case
def tiles_below_the_diagonal(seed):
    n, k = 40, 24
    a, b = numbers((n, k), seed), numbers((n, k), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": torch.zeros(n, n), "N": n, "K": k, "B": 16, "BK": 16}
    return Case(
        lower_triangle, (3, 3), args, {"c_ptr": (a @ b.t()).tril()}, reduction="k", gather={"a_ptr": 0},
        compile={"B": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def banded(x_ptr, w_ptr, y_ptr, N, WIDTH: tl.constexpr, B: tl.constexpr):
    """y[i] = Σ x[j] w[i − j] over a band; blocks outside are skipped by continue, the rest by break."""
    pid = tl.program_id(0)
    rows = pid * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for block in range(tl.cdiv(N, B)):
        if block * B + B <= pid * B - WIDTH + 1:
            continue
        if block > pid:
            break
        cols = block * B + tl.arange(0, B)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0)
        lag = rows[:, None] - cols[None, :]
        near = (lag >= 0) & (lag < WIDTH)
        w = tl.load(w_ptr + tl.where(near, lag, 0))
        acc += tl.sum(tl.where(near, w * x[None, :], 0.0), 1)
    tl.store(y_ptr + rows, acc, mask=rows < N)


@case
def break_and_continue(seed):
    n, width = 45, 5
    x, w = numbers((n,), seed), numbers((width,), seed + 50)
    wanted = torch.stack([sum(x[i - j] * w[j] for j in range(width) if i >= j) for i in range(n)])
    args = {"x_ptr": x, "w_ptr": w, "y_ptr": unset((n,)), "N": n, "WIDTH": width, "B": 8}
    return Case(
        banded, (6,), args, {"y_ptr": wanted}, axes=(6,), reduction="block", gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def gated(x_ptr, w1_ptr, w2_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two products side by side in one loop, silu of the one gates the other."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rm, in_m = offsets_of(pid_m, BM, M)
    rn, in_n = offsets_of(pid_n, BN, N)
    gate = tl.zeros((BM, BN), tl.float32)
    up = gate
    for k in range(0, tl.cdiv(K, BK)):
        rk, in_k = offsets_of(k, BK, K)
        x = tl.load(x_ptr + rm[:, None] * K + rk[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
        w = rk[:, None] * N + rn[None, :]
        in_w = in_k[:, None] & in_n[None, :]
        gate += tl.dot(x, tl.load(w1_ptr + w, mask=in_w, other=0.0), input_precision="ieee")
        up += tl.dot(x, tl.load(w2_ptr + w, mask=in_w, other=0.0), input_precision="ieee")
    tl.store(
        y_ptr + rm[:, None] * N + rn[None, :], helpers.silu(gate) * up, mask=in_m[:, None] & in_n[None, :]
    )


@triton.jit
def grid_in_a_helper(BM: tl.constexpr, M):
    """A helper that takes the program's id itself."""
    pid = tl.program_id(0)
    return offsets_of(pid, BM, M)


@triton.jit
def doubled(x_ptr, y_ptr, M, BM: tl.constexpr):
    at, inside = grid_in_a_helper(BM, M)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=inside), mask=inside)


@case
def an_id_taken_in_a_helper(seed):
    x = normal((20,), seed)
    args = {"x_ptr": x, "y_ptr": unset((20,)), "M": 20, "BM": 8}
    return Case(
        doubled, (3,), args, {"y_ptr": 2 * x}, axes=(3,), gather={"x_ptr": 0},
        unfusable="styles.py:201:11: a helper takes the program's id itself, so it cannot be given another tile",
    )  # fmt: skip


@triton.jit
def variable_lengths(
    q_ptr, k_ptr, v_ptr, o_ptr, starts_ptr, scale, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Attention in packed sequences: [tokens, head dim], starts[i] … starts[i + 1] are one."""
    # @sy.reads q_ptr[:, :]
    # @sy.reads k_ptr[:, :]
    # @sy.reads v_ptr[:, :]
    # @sy.writes o_ptr[:, :]
    seq = tl.program_id(1)
    first = tl.load(starts_ptr + seq)
    length = tl.load(starts_ptr + seq + 1) - first
    start_m = tl.program_id(0) * BM
    if start_m >= length:
        return
    rm = start_m + tl.arange(0, BM)
    d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + (first + rm)[:, None] * HEAD + d[None, :], mask=(rm < length)[:, None], other=0.0)
    m_i = tl.full((BM,), -1.0e30, tl.float32)
    l_i = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, HEAD), tl.float32)
    for start_n in range(0, length, BN):
        rn = start_n + tl.arange(0, BN)
        inside = (rn < length)[:, None]
        k = tl.load(k_ptr + (first + rn)[:, None] * HEAD + d[None, :], mask=inside, other=0.0)
        v = tl.load(v_ptr + (first + rn)[:, None] * HEAD + d[None, :], mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((rn < length)[None, :], s, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        acc = tl.dot(p, v, acc * alpha[:, None], input_precision="ieee")
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    tl.store(
        o_ptr + (first + rm)[:, None] * HEAD + d[None, :], acc / l_i[:, None], mask=(rm < length)[:, None]
    )


@case
def attention_of_packed_sequences(seed):
    starts, d = [0, 20, 25, 30], 16
    q, k, v = (normal((30, d), seed + s) for s in (0, 40, 80))
    wanted = torch.cat(
        [
            (q[lo:hi] @ k[lo:hi].t() * 0.25).softmax(1) @ v[lo:hi]
            for lo, hi in zip(starts[:-1], starts[1:], strict=True)
        ]
    )
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": unset((30, d)),
        "starts_ptr": torch.tensor(starts, dtype=torch.int32), "scale": 0.25, "HEAD": d, "BM": 16, "BN": 16,
    }  # fmt: skip
    return Case(
        variable_lengths, (2, 3), args, {"o_ptr": wanted}, tolerance=1e-5, inexact="sequences begin anywhere",
        gather={"k_ptr": 0}, compile={"BM": 64, "BN": 32, "HEAD": 64},
    )  # fmt: skip


@triton.jit
def grouped_queries(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, N, HEADS: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Several heads of queries share one of keys; a query sees the last WINDOW keys. [heads, N, head dim]."""
    start_m = tl.program_id(0) * BM
    head = tl.program_id(1)
    kv = head // GROUP
    rm = start_m + tl.arange(0, BM)
    d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + (head * N + rm)[:, None] * HEAD + d[None, :], mask=(rm < N)[:, None], other=0.0)
    m_i = tl.full((BM,), -1.0e30, tl.float32)
    l_i = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, HEAD), tl.float32)
    lo = tl.maximum(start_m - WINDOW + 1, 0) // BN * BN
    hi = tl.minimum(start_m + BM, N)
    for start_n in tl.range(lo, hi, BN):
        rn = start_n + tl.arange(0, BN)
        k = tl.load(k_ptr + (kv * N + rn)[:, None] * HEAD + d[None, :], mask=(rn < N)[:, None], other=0.0)
        v = tl.load(v_ptr + (kv * N + rn)[:, None] * HEAD + d[None, :], mask=(rn < N)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        lag = rm[:, None] - rn[None, :]
        s = tl.where((lag >= 0) & (lag < WINDOW), s, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.where((lag >= 0) & (lag < WINDOW), tl.exp(s - m_new[:, None]), 0.0)
        alpha = tl.exp(m_i - m_new)
        acc = tl.dot(p, v, acc * alpha[:, None], input_precision="ieee")
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    tl.store(o_ptr + (head * N + rm)[:, None] * HEAD + d[None, :], acc / l_i[:, None], mask=(rm < N)[:, None])


@case
def attention_of_grouped_queries_in_a_window(seed):
    heads, group, n, d, window = 4, 2, 44, 16, 20
    q, k, v = normal((heads, n, d), seed), normal((2, n, d), seed + 40), normal((2, n, d), seed + 80)
    lag = torch.arange(n)[:, None] - torch.arange(n)
    s = (q @ k.repeat_interleave(group, 0).transpose(1, 2) * 0.25).masked_fill(
        (lag < 0) | (lag >= window), -1e30
    )
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": unset((heads, n, d)), "scale": 0.25, "N": n, "HEADS": heads,
        "GROUP": group, "WINDOW": window, "HEAD": d, "BM": 16, "BN": 16,
    }  # fmt: skip
    return Case(
        grouped_queries, (cdiv(n, 16), heads), args, {"o_ptr": s.softmax(-1) @ v.repeat_interleave(group, 0)},
        tolerance=1e-5, axes=(4, 3), reduction="start_n", gather={"k_ptr": 1}, scatter={"o_ptr": 1},
        compile={"BM": 64, "BN": 32, "HEAD": 64},
    )  # fmt: skip


@case
def gated_product(seed):
    m, n, k = 20, 24, 40
    x, w1, w2 = normal((m, k), seed), normal((k, n), seed + 50), normal((k, n), seed + 60)
    args = {
        "x_ptr": x, "w1_ptr": w1, "w2_ptr": w2, "y_ptr": unset((m, n)), "M": m, "N": n, "K": k, "BM": 16, "BN": 16,
        "BK": 16,
    }  # fmt: skip
    return Case(
        gated, (2, 2), args, {"y_ptr": torch.nn.functional.silu(x @ w1) * (x @ w2)}, tolerance=1e-5,
        axes={"M": 2, "N": 2}, reduction="k", gather={"x_ptr": 1}, scatter={"y_ptr": 0},
        compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip
