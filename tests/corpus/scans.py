"""Scans and recurrences: prefix sums, state-space steps, chunks of linear attention."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset


@triton.jit
def prefix_sum(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr, REVERSE: tl.constexpr):
    """Along rows, block by block, with a carry; backwards where REVERSE says so."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    carry = tl.zeros((BM,), tl.float32)
    blocks = tl.cdiv(N, BN)
    for i in range(blocks):
        block = (blocks - 1 - i) if REVERSE else i
        cols = block * BN + tl.arange(0, BN)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
        y = tl.cumsum(x, axis=1, reverse=REVERSE) + carry[:, None]
        carry += tl.sum(x, 1)
        tl.store(y_ptr + rows[:, None] * N + cols[None, :], y, mask=mask)


@case
def prefix_sums_backwards(seed):
    x = normal((9, 37), seed)
    args = {"x_ptr": x, "y_ptr": unset((9, 37)), "M": 9, "N": 37, "BM": 4, "BN": 16, "REVERSE": True}
    return Case(
        prefix_sum, (3,), args, {"y_ptr": x.flip(1).cumsum(1).flip(1)}, tolerance=1e-5, axes=(3,), reduction="i",
        gather={"x_ptr": 0}, scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def decay(a_left, b_left, a_right, b_right):
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def linear_recurrence(a_ptr, b_ptr, h_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """h[t] = a[t] · h[t − 1] + b[t] by an associative scan in each block of time."""
    i_b, i_d = tl.program_id(0), tl.program_id(1)
    d = i_d * BD + tl.arange(0, BD)
    h = tl.zeros((BD,), tl.float32)
    for start in range(0, T, BT):
        t = start + tl.arange(0, BT)
        mask = (t < T)[:, None] & (d < D)[None, :]
        at = (i_b * T + t[:, None]) * D + d[None, :]
        a = tl.load(a_ptr + at, mask=mask, other=1.0)
        b = tl.load(b_ptr + at, mask=mask, other=0.0)
        decayed, added = tl.associative_scan((a, b), 0, decay)
        y = decayed * h[None, :] + added
        tl.store(h_ptr + at, y, mask=mask)
        h = tl.sum(tl.where((tl.arange(0, BT) == BT - 1)[:, None], y, 0.0), 0)


@case
def recurrence_by_associative_scan(seed):
    b, t, d = 2, 7, 6
    a, x = normal((b, t, d), seed).sigmoid(), normal((b, t, d), seed + 50)
    h, wanted = torch.zeros(b, d), torch.empty(b, t, d)
    for i in range(t):
        h = a[:, i] * h + x[:, i]
        wanted[:, i] = h
    args = {"a_ptr": a, "b_ptr": x, "h_ptr": unset((b, t, d)), "T": t, "D": d, "BT": 4, "BD": 4}
    return Case(
        linear_recurrence, (b, 2), args, {"h_ptr": wanted}, tolerance=1e-5, axes=(2, 2), reduction="start",
        gather={"a_ptr": 1}, scatter={"h_ptr": 1},
    )  # fmt: skip


@triton.jit
def selective_step(
    state_ptr, x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, out_ptr, D, BLOCK: tl.constexpr, STATE: tl.constexpr,
    HAS_D: tl.constexpr, d_ptr,
):  # fmt: skip
    """One step of a state-space model: state [batch, D, STATE], updated in place."""
    pid_d = tl.program_id(0)
    batch = tl.program_id(1)
    d = pid_d * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, STATE)
    inside = d < D
    state_ptrs = state_ptr + batch * D * STATE + d[:, None] * STATE + n[None, :]
    state = tl.load(state_ptrs, mask=inside[:, None], other=0.0)
    x = tl.load(x_ptr + batch * D + d, mask=inside, other=0.0)
    dt = tl.load(dt_ptr + batch * D + d, mask=inside, other=0.0)
    dt = tl.where(dt <= 20.0, tl.log(1.0 + tl.exp(dt)), dt)
    decay_by = tl.exp(
        tl.load(A_ptr + d[:, None] * STATE + n[None, :], mask=inside[:, None], other=0.0) * dt[:, None]
    )
    b = tl.load(B_ptr + batch * STATE + n)
    c = tl.load(C_ptr + batch * STATE + n)
    state = state * decay_by + (dt * x)[:, None] * b[None, :]
    tl.store(state_ptrs, state, mask=inside[:, None])
    y = tl.sum(state * c[None, :], axis=1)
    if HAS_D:
        y += x * tl.load(d_ptr + d, mask=inside, other=0.0)
    tl.store(out_ptr + batch * D + d, y, mask=inside)


@case
def step_of_a_state_space_model(seed):
    b, d, n = 3, 10, 8
    state, x, dt = normal((b, d, n), seed), normal((b, d), seed + 50), normal((b, d), seed + 51)
    a, bb, c = -normal((d, n), seed + 52).exp(), normal((b, n), seed + 53), normal((b, n), seed + 54)
    skip = normal((d,), seed + 55)
    soft = torch.nn.functional.softplus(dt)
    after = state * (a * soft[..., None]).exp() + (soft * x)[..., None] * bb[:, None]
    args = {
        "state_ptr": state, "x_ptr": x, "dt_ptr": dt, "A_ptr": a, "B_ptr": bb, "C_ptr": c, "out_ptr": unset((b, d)),
        "D": d, "BLOCK": 4, "STATE": n, "HAS_D": True, "d_ptr": skip,
    }  # fmt: skip
    wanted = {"out_ptr": (after * c[:, None]).sum(-1) + x * skip, "state_ptr": after}
    return Case(
        selective_step, (3, b), args, wanted, tolerance=1e-5, gather={"x_ptr": 0}, scatter={"out_ptr": 0}
    )


@triton.jit
def chunked(
    q_ptr, k_ptr, v_ptr, o_ptr, T, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr
):
    """Linear attention: within a chunk by a masked product, between chunks by a state. [heads, T, K or V]."""
    i_v, i_h = tl.program_id(0), tl.program_id(1)
    state = tl.zeros((K, BV), dtype=tl.float32)
    o_t = tl.arange(0, BT)
    causal = o_t[:, None] >= o_t[None, :]
    for i_t in range(0, tl.cdiv(T, BT)):
        p_q = tl.make_block_ptr(q_ptr + i_h * T * K, (T, K), (K, 1), (i_t * BT, 0), (BT, K), (1, 0))
        p_k = tl.make_block_ptr(k_ptr + i_h * T * K, (K, T), (1, K), (0, i_t * BT), (K, BT), (0, 1))
        p_v = tl.make_block_ptr(v_ptr + i_h * T * V, (T, V), (V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        p_o = tl.make_block_ptr(o_ptr + i_h * T * V, (T, V), (V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        q = tl.load(p_q, boundary_check=(0, 1), padding_option="zero")
        k = tl.load(p_k, boundary_check=(0, 1), padding_option="zero")
        v = tl.load(p_v, boundary_check=(0, 1), padding_option="zero")
        s = tl.where(causal, tl.dot(q, k, input_precision="ieee"), 0.0)
        o = tl.dot(s, v, input_precision="ieee") + tl.dot(q, state, input_precision="ieee")
        state += tl.dot(k, v, input_precision="ieee")
        tl.store(p_o, o, boundary_check=(0, 1))


@case
def chunks_of_linear_attention(seed):
    h, t, kd, vd = 3, 40, 16, 32
    q, k, v = normal((h, t, kd), seed), normal((h, t, kd), seed + 50), normal((h, t, vd), seed + 60)
    s = (q @ k.transpose(1, 2)).tril()
    args = {
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": unset((h, t, vd)), "T": t, "K": kd, "V": vd, "BT": 16, "BV": 16,
    }  # fmt: skip
    return Case(
        chunked, (2, h), args, {"o_ptr": s @ v}, tolerance=1e-4, axes=(3, 2), reduction="i_t", gather={"v_ptr": 0},
        scatter={"o_ptr": 1}, compile={"BT": 64, "BV": 64},
    )  # fmt: skip
