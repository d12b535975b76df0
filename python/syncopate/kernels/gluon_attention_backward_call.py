"""How kernels.gluon_attention_backward is launched: what it needs of the forward's results, its tables and its arguments."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .gluon_attention_backward import gluon_attention_backward

BLOCK_M, BLOCK_N, STAGES = 64, 128, 2
HEAD_SIZES = (64, 128)


@triton.jit
def _prepare(
    o_ptr, do_ptr, lse_ptr, dlse_ptr, lse2_ptr, delta_ptr, H, S, padded, sb, sh, ss, gb, gh, gs,
    DLSE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Of each row the sum of dO * O, less the gradient of its log-sum-exp (DLSE), and the forward's log-sum-exp in base 2: +inf where a row sees nothing, so that its
    weights are 0. Rows from S on are made up: zeros, and weights of 0."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    b = (head // H).to(tl.int64)
    h = (head % H).to(tl.int64)
    column = tl.arange(0, D)
    there = row < S
    o = tl.load(o_ptr + b * sb + h * sh + row[:, None] * ss + column[None, :], mask=there[:, None], other=0.0)
    do = tl.load(
        do_ptr + b * gb + h * gh + row[:, None] * gs + column[None, :], mask=there[:, None], other=0.0
    )
    lse = tl.load(lse_ptr + head.to(tl.int64) * S + row, mask=there, other=float("-inf"))
    to = head.to(tl.int64) * padded + row
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    if DLSE:
        delta -= tl.load(dlse_ptr + head.to(tl.int64) * S + row, mask=there, other=0.0)
    tl.store(delta_ptr + to, delta)
    tl.store(lse2_ptr + to, tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634))


@triton.jit
def _finish(sum_ptr, dq_ptr, S, padded, scale, D: tl.constexpr, ROWS: tl.constexpr):
    """dQ of its sum in fp32, both contiguous."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, D)
    total = tl.load(sum_ptr + (head * padded + row[:, None]) * D + column[None, :])
    made = (total * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + (head * S + row[:, None]) * D + column[None, :], made, mask=(row < S)[:, None])


def backward_tables(seen: torch.Tensor, sk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows of Q that see rows [seen[0], seen[1]) of sk rows of K, int [2, SQ]: bounds, int32 [blocks of K, 4], and seen as
    the kernel reads it, int32 [2, blocks of SQ * BLOCK_M]."""
    sq = seen.shape[1]
    blocks = -(-sq // BLOCK_M)
    padded = torch.zeros(2, blocks * BLOCK_M, dtype=torch.int32, device=seen.device)
    padded[:, :sq] = seen
    first = torch.arange(0, sk, BLOCK_N, device=seen.device)[:, None]
    end = torch.clamp(first + BLOCK_N, max=sk)
    some = ((seen[0] < end) & (seen[1] > first) & (seen[0] < seen[1])).int()
    all_of_it = ((seen[0] <= first) & (seen[1] >= end)).int()
    beyond = (0, blocks * BLOCK_M - sq)  # rows that nobody looks at
    some = torch.nn.functional.pad(some, beyond).view(-1, blocks, BLOCK_M).amax(2)
    all_of_it = torch.nn.functional.pad(all_of_it, beyond, value=1).view(-1, blocks, BLOCK_M).amin(2)
    bounds = [_extent(*row) for row in zip(some.tolist(), all_of_it.tolist(), strict=True)]
    return torch.tensor(bounds, dtype=torch.int32, device=seen.device), padded


def _extent(some: list[int], all_of_it: list[int]) -> tuple[int, int, int, int]:
    """low, whole, part and high, of the blocks of Q of which some row, or each, sees a block of K: whole to part is the longest
    run of the latter."""
    seeing = [m for m, sees in enumerate(some) if sees]
    if not seeing:
        return 0, 0, 0, 0
    low, high = seeing[0], seeing[-1] + 1
    best = (low, low)
    begin = low
    for m in range(low, high + 1):
        if m == high or not all_of_it[m]:
            best = max(best, (begin, m), key=lambda run: run[1] - run[0])
            begin = m + 1
    return low, *best, high


def _rows_descriptor(rows: torch.Tensor) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(rows.view(-1), [BLOCK_M], gl.NVMMASharedLayout(0, 32, 1))


def _descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    block = [1, 1, rows, tensor.shape[3]]
    dtype = getattr(gl, str(tensor.dtype).removeprefix("torch."))
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def backward_arguments(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    sums: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    *,
    causal: bool = False,
    window: int = 0,
    offset: int | None = None,
    scale: float | None = None,
    tables: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """gluon_attention_backward's arguments, lse and delta as _prepare makes them. Raises ValueError for a D that it cannot do."""
    sq, d = q.shape[2:]
    sk = k.shape[2]
    if d not in HEAD_SIZES:
        raise ValueError(f"D: expected one of {', '.join(map(str, HEAD_SIZES))}, got {d}")
    bounds, seen = tables or (lse, lse)  # a stand-in that is not read
    return {
        "q_desc": _descriptor(q, BLOCK_M),
        "do_desc": _descriptor(grad, BLOCK_M),
        "k_desc": _descriptor(k, BLOCK_N),
        "v_desc": _descriptor(v, BLOCK_N),
        "lse_desc": _rows_descriptor(lse),
        "delta_desc": _rows_descriptor(delta),
        "dq_ptr": sums,
        "dk_ptr": dk,
        "dv_ptr": dv,
        "bounds_ptr": bounds,
        "seen_ptr": seen,
        "scale": float(d**-0.5 if scale is None else scale),
        "H": q.shape[1],
        "HKV": k.shape[1],
        "SQ": sq,
        "SK": sk,
        "OFFSET": sk - sq if offset is None else offset,
        "WINDOW": window,
        "CAUSAL": causal,
        "WINDOWED": window > 0,
        "TABLES": tables is not None,
        "D": d,
        "BM": BLOCK_M,
        "BN": BLOCK_N,
        "STAGES": STAGES,
    }


#: Launch options. Consumers get 240 registers a thread: 168 for each of 12 warps are shared out.
OPTIONS = {"num_warps": 4, "maxnreg": 168}


def attend_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v for `grad`, the one of o, on one GPU: q, o, grad [B, H, SQ, D], k, v [B, HKV, SK, D] of bf16 or
    fp16, lse [B, H, SQ], fp32, contiguous, and so `grad_lse`, the one of lse (None: 0). `options`: as of backward_arguments; `causal`, `window`, `offset` and `scale` are
    those of gluon_attention_arguments, `tables` are backward_tables, which say instead what rows see. dK and dV are of
    `kv_dtype` (default: of k). dQ is summed in fp32 in no fixed order: its last bits differ from call to call."""
    b, h, sq, d = q.shape
    hkv, sk = k.shape[1], k.shape[2]
    padded = -(-sq // BLOCK_M) * BLOCK_M
    grid = (padded // BLOCK_M, b * h)
    lse2, delta = (torch.empty(b * h, padded, dtype=torch.float32, device=q.device) for _ in range(2))
    sums = torch.zeros(b * h, padded, d, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty(b, hkv, sk, d, dtype=kv_dtype or k.dtype, device=q.device) for _ in range(2))
    arguments = backward_arguments(grad, q, k, v, lse2, delta, sums, dk, dv, **options)
    strides = (*o.stride()[:3], *grad.stride()[:3])
    dlse = lse if grad_lse is None else grad_lse.contiguous()  # a stand-in that is not read
    _prepare[grid](
        o, grad, lse, dlse, lse2, delta, h, sq, padded, *strides, DLSE=grad_lse is not None, D=d, ROWS=BLOCK_M
    )
    gluon_attention_backward[(-(-sk // BLOCK_N) * hkv * b,)](**arguments, **OPTIONS)
    dq = torch.empty(b, h, sq, d, dtype=q.dtype, device=q.device)
    _finish[grid](sums, dq, sq, padded, arguments["scale"], D=d, ROWS=BLOCK_M)
    return dq, dk, dv
