"""How kernels.gluon_attention_backward is launched: what it needs of the forward's results, its tables and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .. import _syncopate
from .attention_backward import add_parts, finish_rows, prepare_rows, rows_of_program
from .attention_backward_tables import backward_tables as _tables
from .gluon_attention_backward import gluon_attention_backward
from .gluon_attention_backward_q import gluon_attention_backward_q

BLOCK_M = {64: 128, 128: 64, 256: 64}  # by D
BLOCK_N = {64: 128, 128: 128, 256: 64}
STAGES = 2
HEAD_SIZES = tuple(BLOCK_M)
SUMMED = 2048  # numbers of dK or dV that a program of add_parts sums


def block_of(d: int) -> int:
    """Rows of Q in a block. Raises ValueError for heads that the kernel cannot do."""
    if d not in HEAD_SIZES:
        raise ValueError(f"D: expected one of {', '.join(map(str, HEAD_SIZES))}, got {d}")
    return BLOCK_M[d]


def backward_tables(seen: torch.Tensor, sk: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """attention_backward_tables.backward_tables of this kernel's blocks, for heads of d."""
    return _tables(seen, sk, block_of(d), BLOCK_N[d])


def _rows_descriptor(rows: torch.Tensor, block: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(rows.view(-1), [block], gl.NVMMASharedLayout(0, 32, 1))


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
    parts: int = 1,
    **flags: Any,
) -> dict[str, Any]:
    """gluon_attention_backward's arguments, lse and delta as prepare_rows makes them. `flags`: the kernel's further constexprs. Raises
    ValueError for a D that it cannot do."""
    sq, d = q.shape[2:]
    sk = k.shape[2]
    block_m = block_of(d)
    bounds, seen = tables or (lse, lse)  # a stand-in that is not read
    return {
        "q_desc": _descriptor(q, block_m),
        "do_desc": _descriptor(grad, block_m),
        "k_desc": _descriptor(k, BLOCK_N[d]),
        "v_desc": _descriptor(v, BLOCK_N[d]),
        "lse_desc": _rows_descriptor(lse, block_m),
        "delta_desc": _rows_descriptor(delta, block_m),
        "dq_ptr": sums,
        "dk_ptr": dk,
        "dv_ptr": dv,
        "bounds_ptr": bounds,
        "seen_ptr": seen,
        "scale": float(d**-0.5 if scale is None else scale),
        "B": q.shape[0],
        "H": q.shape[1],
        "HKV": k.shape[1],
        "SQ": sq,
        "SK": sk,
        "PARTS": parts,
        "OFFSET": sk - sq if offset is None else offset,
        "WINDOW": window,
        "sy_schedule": 0,
        "sy_control": 0,
        "CAUSAL": causal,
        "WINDOWED": window > 0,
        "TABLES": tables is not None,
        "D": d,
        "BM": block_m,
        "BN": BLOCK_N[d],
        "STAGES": STAGES,
        **flags,
    }


def walked_arguments(given: Mapping[str, Any], add_dq: bool) -> dict[str, Any]:
    """The same of the plain kernel's arguments (attention_backward), with tensors instead of descriptors, for a program."""
    made = backward_arguments(
        given["do_desc"], given["q_desc"], given["k_desc"], given["v_desc"], given["lse_ptr"], given["delta_ptr"],
        given["dq_ptr"], given["dk_ptr"], given["dv_ptr"], causal=False, offset=0, scale=given["scale"],
        tables=(given["bounds_ptr"], given["seen_ptr"]), ADD_DQ=add_dq,
    )  # fmt: skip
    return made | {"SQ": given["SQ"]}  # ranks with fewer rows walk as many


#: Launch options. Consumers get 240 registers a thread: 168 for each of 12 warps are shared out.
OPTIONS = {"num_warps": 4, "maxnreg": 168}


#: Rows of a block of Q and of K, and stages, of dQ's own kernel by D. With 128 rows of K, heads of 128 leave no registers.
DQ_TILES = {64: (128, 128, 2), 128: (128, 64, 3)}


def make_dq(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    dq: torch.Tensor,
    bounds: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    tile: tuple[int, int, int] | None = None,
) -> None:
    """dQ [B, H, SQ, D] in a fixed order, by a kernel of its own, of lse and delta [B, H, padded] as prepare_rows makes them. `bounds`:
    seen_extents of blocks of DQ_TILES; `seen`, int32 [2, padded]: which rows of K each row of Q sees."""
    b, h, sq, d = dq.shape
    block_m, block_n, stages = tile or DQ_TILES[d]
    gluon_attention_backward_q[(-(-sq // block_m) * h * b,)](
        _descriptor(q, block_m), _descriptor(grad, block_m), _descriptor(k, block_n), _descriptor(v, block_n), lse, delta, dq,
        bounds, seen, seen.shape[1], float(scale), h, k.shape[1], sq, D=d, BM=block_m, BN=block_n, STAGES=stages, **OPTIONS,
    )  # fmt: skip


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
    parts: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v for `grad`, the one of o, on one GPU: q, o, grad [B, H, SQ, D], k, v [B, HKV, SK, D] of bf16 or
    fp16, lse [B, H, SQ], fp32, contiguous, and so `grad_lse`, the one of lse (None: 0). `options`: as of backward_arguments;
    `causal`, `window`, `offset` and `scale` are those of gluon_attention_arguments, `tables` are backward_tables, which say
    instead what rows see. dK and dV are of `kv_dtype` (default: of k), each the sum of `parts` (default: as C++ chooses). dQ is
    summed in fp32 in no fixed order: its last bits differ from call to call."""
    b, h, sq, d = q.shape
    hkv, sk = k.shape[1], k.shape[2]
    block_m = block_of(d)
    padded = -(-sq // block_m) * block_m
    lse2, delta = (torch.empty(b * h, padded, dtype=torch.float32, device=q.device) for _ in range(2))
    sums = torch.empty(b * h, padded, d, dtype=torch.float32, device=q.device)
    tiles = -(-sk // BLOCK_N[d]) * b * hkv
    if parts is None:
        unequal = bool(options.get("causal")) or options.get("tables") is not None
        count = torch.cuda.get_device_properties(q.device).multi_processor_count
        parts = _syncopate.ops.attention_backward_parts(tiles, h // hkv, sq, unequal, count)
    dk, dv = (torch.empty(b, hkv, sk, d, dtype=kv_dtype or k.dtype, device=q.device) for _ in range(2))
    made = (dk, dv)
    if parts > 1:
        made = torch.empty(2, b, hkv * parts, sk, d, dtype=torch.float32, device=q.device)
    arguments = backward_arguments(grad, q, k, v, lse2, delta, sums, *made, parts=parts, **options)
    strides = (*o.stride()[:3], *grad.stride()[:3])
    dlse = lse if grad_lse is None else grad_lse.contiguous()  # a stand-in that is not read
    rows = rows_of_program(block_m, d)
    prepare_rows[(padded // rows * b * h,)](
        o, grad, lse, dlse, lse2, delta, sums, h, sq, padded, *strides,
        DLSE=grad_lse is not None, ZERO=True, D=d, ROWS=rows,
    )  # fmt: skip
    gluon_attention_backward[(tiles * parts,)](**arguments, **OPTIONS)
    if parts > 1:
        add_parts[(-(-sk * d // SUMMED) * b * hkv, 2)](made, dk, dv, sk * d, PARTS=parts, BLOCK=SUMMED)
    dq = torch.empty(b, h, sq, d, dtype=q.dtype, device=q.device)
    finish_rows[(padded // block_m * b * h,)](
        sums, dq, sq, padded, arguments["scale"], D=d, ROWS=block_m, PIECES=True
    )
    return dq, dk, dv
