"""How kernels.gluon_attention is called: tilings, its arguments, tables of documents, and a call without a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .. import _syncopate
from .gluon_attention import gluon_attention

ROWS = 64  # of a consumer
SHARED_BYTES = 227 * 1024  # that a block may take of a Hopper multiprocessor's shared memory


@dataclass(frozen=True)
class GluonAttentionTiling:
    """block_n: rows of K and V a block; stages: blocks of each in the ring; o_in_q: o leaves from the place of q; block_m: rows
    of Q a tile, 64 for each of two consumers."""

    block_n: int
    stages: int
    o_in_q: bool = False
    block_m: int = 128

    def tiles(self, b: int, h: int, sq: int) -> int:
        return -(-sq // self.block_m) * h * b

    def grid(self, b: int, h: int, sq: int, programs: int) -> tuple[int]:
        """At most `programs` programs, which then run several tiles each."""
        return (min(self.tiles(b, h, sq), programs),)

    def shared_bytes(self, d: int) -> int:
        """About what a block takes of its multiprocessor's shared memory."""
        rows = self.block_m * (1 if self.o_in_q else 2) + 2 * self.stages * self.block_n
        return rows * d * 2 + 1024

    def options(self) -> dict[str, int]:
        """Launch options. Consumers get 232 registers a thread: 168 for each of 12 warps are shared out."""
        return {"num_warps": 4, "maxnreg": 168}


HEAD_DIMS = (64, 128, 256)


def tiling_of(d: int) -> GluonAttentionTiling:
    """For heads of size D (C++: tune/play/attention.hpp). Raises ValueError for a D that the kernel has no tiling for."""
    tile = _syncopate.attention_tiles("gluon", d)
    if tile is None:
        raise ValueError(f"D: expected one of {', '.join(map(str, HEAD_DIMS))}, got {d}")
    made = GluonAttentionTiling(tile["block_n"], tile["stages"], block_m=tile["block_m"])
    return made if made.shared_bytes(d) <= SHARED_BYTES else replace(made, o_in_q=True)


#: By D.
TILINGS = {d: tiling_of(d) for d in HEAD_DIMS}


def document_tables(
    cu_seqlens: Sequence[int],
    tiling: GluonAttentionTiling,
    *,
    causal: bool = False,
    window: int = 0,
    cu_seqlens_k: Sequence[int] | None = None,
    device: Any = "cpu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel's bounds [tiles, 4], seen [2, SQ] and order [tiles], int32, where documents lie one behind another:
    document i is rows [cu_seqlens[i], cu_seqlens[i + 1]) of q, and the same of `cu_seqlens_k` (default: the same
    numbers) of k and v. A row sees rows of its own document only; `causal` and `window` count from its last row back,
    where it has more rows of k than of q. Raises ValueError for numbers that do not rise from 0."""
    cuts_q = _cuts("cu_seqlens", cu_seqlens)
    cuts_k = _cuts("cu_seqlens_k", cu_seqlens if cu_seqlens_k is None else cu_seqlens_k)
    if len(cuts_q) != len(cuts_k):
        raise ValueError(
            f"cu_seqlens and cu_seqlens_k: expected as many, got {len(cuts_q)} and {len(cuts_k)}"
        )
    row = torch.arange(int(cuts_q[-1]))
    document = torch.bucketize(row, cuts_q[1:], right=True)
    first, last = cuts_k[document], cuts_k[document + 1]
    at = row - cuts_q[document + 1] + last
    begin, end = first, last
    if window:
        begin = torch.maximum(begin, at - window + 1)
        end = torch.minimum(end, at + window)
    if causal:
        end = torch.minimum(end, at + 1)
    end = torch.maximum(end, first)
    begin = torch.minimum(begin, end)
    m, n = tiling.block_m, tiling.block_n
    bounds = []
    for begins, ends in zip(begin.split(m), end.split(m), strict=True):
        some = ends > begins
        if not bool(some.any()):
            bounds.append([0, 0, 0, 0])
            continue
        low, high = int(begins[some].min()) // n * n, int(ends[some].max())
        # A row that sees nothing leaves no block whole.
        whole = -(-int(begins.max()) // n) * n if bool(some.all()) else 1 << 30
        bounds.append([low, whole, int(ends.min()) // n * n, high])
    seen = torch.stack([begin, end]).to(torch.int32)
    order = sorted(range(len(bounds)), key=lambda tile: bounds[tile][0] - bounds[tile][3])
    tables = torch.tensor(bounds, dtype=torch.int32), seen, torch.tensor(order, dtype=torch.int32)
    return tables[0].to(device), tables[1].to(device), tables[2].to(device)


def _cuts(name: str, numbers: Sequence[int]) -> torch.Tensor:
    cuts = torch.as_tensor([int(number) for number in numbers], dtype=torch.int64)
    if len(cuts) < 2 or cuts[0] != 0 or bool((cuts[1:] < cuts[:-1]).any()):
        raise ValueError(f"{name}: expected rising numbers from 0, got {cuts.tolist()}")
    return cuts


@dataclass(frozen=True)
class Pass:
    """One call of several, each with other rows of K. `positions`: int32 [SK], where these stand in the sequence, -1: unseen;
    `carry`: fp32 [B, H, SQ, D], the weighted sums of V so far; `tops`: fp32 [2, B, H, SQ], each row's maximum and sum;
    `first`: nothing came before; `last`: nothing comes after, and neither is written."""

    positions: torch.Tensor
    carry: torch.Tensor
    tops: torch.Tensor
    first: bool
    last: bool


@dataclass(frozen=True)
class Placed:
    """Where a rank that holds some rows of the sequence has them: `k` and `v` [B, HKV, rows, D] are its own, as q and o
    are, and `table`, int32 [blocks of K], says at which row of them each block begins (-1: it is not its own)."""

    table: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def pass_tables(
    seen: torch.Tensor, positions: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """bounds, seen and order, as of document_tables, for rows that see [seen[0], seen[1]) of the sequence, int [2, SQ],
    and rows of K that stand at `positions`, int [SK], rising but for those that are -1, which nobody sees."""
    there = positions >= 0
    filled = positions.clone()
    filled[~there] = 0
    filled = torch.cummax(filled, 0).values  # rising, so that it can be searched
    begin, end = (
        torch.searchsorted(filled, seen[0].contiguous()),
        torch.searchsorted(filled, seen[1].contiguous()),
    )
    hidden = torch.cumsum(~there, 0)
    bounds = []
    for begins, ends in zip(begin.split(block_m), end.split(block_m), strict=True):
        some = ends > begins
        if not bool(some.any()):
            bounds.append([0, 0, 0, 0])
            continue
        low, high = int(begins[some].min()) // block_n * block_n, int(ends[some].max())
        whole, part = int(begins.max()), int(ends.min())
        if part > whole and int(hidden[part - 1]) != (int(hidden[whole - 1]) if whole else 0):
            part = 0  # some place between is hidden: all blocks are masked
        bounds.append(
            [
                low,
                -(-whole // block_n) * block_n if bool(some.all()) else 1 << 30,
                part // block_n * block_n,
                high,
            ]
        )
    order = sorted(range(len(bounds)), key=lambda tile: bounds[tile][0] - bounds[tile][3])
    return (
        torch.tensor(bounds, dtype=torch.int32),
        seen.to(torch.int32),
        torch.tensor(order, dtype=torch.int32),
    )


def gluon_attention_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    tiling: GluonAttentionTiling,
    *,
    causal: bool = False,
    window: int = 0,
    offset: int | None = None,
    scale: float | None = None,
    documents: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    later: Pass | None = None,
    placed: Placed | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """gluon_attention's arguments for q, o [B, H, SQ, D], k, v [B, HKV, SK, D] of bf16 or fp16, and lse [B, H, SQ], fp32,
    contiguous. `offset`: row r of q stands at row r + offset of k (default SK - SQ: the last rows are the same); `window`:
    how many rows up to itself a row sees, or without `causal` to either side, 0: all; `scale` of the scores, default
    D ** -0.5. `documents`: document_tables of the same causal and window. `later`: this is one pass of several, by
    pass_tables as `documents`. `placed`: q and o [B, H, rows, D] are a rank's own rows of SQ, which are those of lse.
    `flags`: the kernel's further constexprs. Raises ValueError for what the kernel cannot do."""
    b, h, sq, d = q.shape
    hkv, sk = k.shape[1], k.shape[2]
    if placed is not None:
        sq = lse.shape[2]
    scale = d**-0.5 if scale is None else scale
    _require(q, k, v, o, lse, sq, scale, window, tiling)
    bounds, seen, order = documents or (lse, lse, lse)  # a stand-in that is not read
    positions, carry, tops = (lse, lse, lse) if later is None else (later.positions, later.carry, later.tops)
    return {
        "q_desc": _descriptor(q, [1, 1, ROWS, d]),
        "k_desc": _descriptor(k, [1, 1, tiling.block_n, d]),
        "v_desc": _descriptor(v, [1, 1, tiling.block_n, d]),
        "o_desc": _descriptor(o, [1, 1, ROWS, d]),
        "own_k_desc": _descriptor(k if placed is None else placed.k, [1, 1, tiling.block_n, d]),
        "own_v_desc": _descriptor(v if placed is None else placed.v, [1, 1, tiling.block_n, d]),
        "place_ptr": lse if placed is None else placed.table,
        "l_ptr": lse,
        "bounds_ptr": bounds,
        "seen_ptr": seen,
        "order_ptr": order,
        "position_ptr": positions,
        "carry_ptr": carry,
        "tops_ptr": tops,
        "scale": float(scale),
        "B": b,
        "H": h,
        "HKV": hkv,
        "SQ": sq,
        "SK": sk,
        "OFFSET": sk - sq if offset is None else offset,
        "WINDOW": window,
        "FIRST": int(later is None or later.first),
        "LAST": int(later is None or later.last),
        "sy_schedule": 0,
        "sy_control": 0,
        "CAUSAL": causal,
        "WINDOWED": window > 0,
        "DOCUMENTS": documents is not None,
        "D": d,
        "BM": tiling.block_m,
        "BN": tiling.block_n,
        "STAGES": tiling.stages,
        "O_IN_Q": tiling.o_in_q,
        "LONGEST_FIRST": causal and window == 0,
        "PASS": later is not None,
        "PLACED": placed is not None,
        **flags,
    }


def _require(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    sq: int,
    scale: float,
    window: int,
    tiling: GluonAttentionTiling,
) -> None:
    b, h, _, d = q.shape
    if k.dim() != 4 or k.shape != v.shape or k.shape[0] != b or k.shape[3] != d or h % k.shape[1]:
        raise ValueError(
            f"expected k and v [{b}, a divisor of {h}, rows, {d}], got {list(k.shape)} and {list(v.shape)}"
        )
    if o.shape != q.shape or lse.shape != (b, h, sq) or lse.dtype != torch.float32:
        raise ValueError(f"expected o {list(q.shape)} and lse {[b, h, sq]} of fp32")
    if q.dtype not in (torch.bfloat16, torch.float16) or any(t.dtype != q.dtype for t in (k, v, o)):
        raise ValueError(f"expected q, k, v and o of bf16 or fp16, all alike, got {q.dtype} for q")
    if not lse.is_contiguous():
        raise ValueError("lse: expected a contiguous tensor")
    if scale <= 0:
        raise ValueError(f"scale: expected a number above 0, got {scale}")
    if window < 0:
        raise ValueError(f"window: expected 0 or more rows, got {window}")
    if tiling.block_m != 2 * ROWS:
        raise ValueError(f"block_m: expected {2 * ROWS}, got {tiling.block_m}")


def _descriptor(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    dtype = getattr(gl, str(tensor.dtype).removeprefix("torch."))
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    tiling: GluonAttentionTiling | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o like q, and lse [B, H, SQ], fp32, on one GPU. `options`: as of gluon_attention_arguments."""
    b, h, sq, d = q.shape
    tiling = tiling or tiling_of(d)
    o, lse = out or (torch.empty_like(q), torch.empty(b, h, sq, dtype=torch.float32, device=q.device))
    arguments = gluon_attention_arguments(q, k, v, o, lse, tiling, **options)
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    gluon_attention[tiling.grid(b, h, sq, programs)](**arguments, **tiling.options())
    return o, lse
