"""How kernels.gluon_matmul is launched: its tiles, its workspace and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .. import _syncopate
from .gluon_versions import VIEWS_HAVE_ANY_SIZE

#: Words at the head of the workspace of a split K: a count for each tile.
MAX_SPLIT_TILES = _syncopate.tune.MOST_GLUON_SPLIT_TILES


@gluon.constexpr_function
def slab_columns(block_n: int) -> int:
    """Columns that one load or store moves of tiles of 96 or 192; 0 where it moves all of a tile's."""
    return block_n // 3 if block_n % 3 == 0 else 0


@dataclass(frozen=True)
class GluonTiling:
    """How gluon_matmul cuts a product. block_m: 16, 32 or 64 (one consumer), 128 (two) or 192 (three); block_n: 32 to 256, also 96
    and 192; stages: blocks of K in the ring; split_k: programs that share a tile."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    split_k: int = 1
    group_m: int = 8

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n)

    def grid(self, m: int, n: int, programs: int) -> tuple[int]:
        """At most `programs` programs, split_k for each of the tiles that are made at once."""
        return (min(self.tiles(m, n), max(programs // self.split_k, 1)) * self.split_k,)

    def shared_bytes(self, itemsize: int, gated: bool = False) -> int:
        """The most that a block takes of its multiprocessor's shared memory, with 16-bit results."""
        ring = self.stages * self.block_k * (self.block_m + self.block_n * (1 + gated)) * itemsize
        behind = max(64 - self.block_m, 0) * 128  # the last rows' wgmma reads so far
        words = 2560 + 16 * self.stages + 640 * (self.split_k > 1)  # and mbarriers
        return ring + behind + max(self.block_m, 64) * self.block_n * 2 + words

    def boxes(self, m: int, itemsize: int) -> tuple[int, int, int]:
        """Rows of a, columns of b and c, and elements along K that one load or store moves."""
        cut = VIEWS_HAVE_ANY_SIZE  # few_rows loads one place otherwise
        return _syncopate.ops.gluon_box(self.block_m, self.block_n, self.block_k, m, itemsize, cut)

    def options(self) -> dict[str, int]:
        """Launch options. Two consumers of 64 x 256 have 216 and 224 registers a thread: 160 for each of 12 warps are shared out,
        which leaves each quarter of a multiprocessor registers for a warp of sy_reduce (runtime/cuda/streams/reduce.cu). Three of
        64 x 192 need 152: 128 for each of 16."""
        return {"num_warps": 4, "maxnreg": {128: 160, 192: 128}.get(self.block_m, 255)}


def make_workspace(
    tiling: GluonTiling, m: int, n: int, device: Any, gated: bool = False
) -> torch.Tensor | None:
    """What a split K needs: counts of 0, and partial sums. It serves one call after another."""
    if tiling.split_k == 1:
        return None
    tiles = tiling.tiles(m, n)
    if tiles > MAX_SPLIT_TILES:
        raise ValueError(f"K can be split for at most {MAX_SPLIT_TILES} tiles, this product has {tiles}")
    partials = tiles * tiling.split_k * tiling.block_m * tiling.block_n * (1 + gated)
    return torch.zeros(MAX_SPLIT_TILES + partials, dtype=torch.float32, device=device)


def gluon_arguments(
    a: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor,
    shape: tuple[int, int, int],
    tiling: GluonTiling,
    *,
    w_transposed: bool = False,
    bias: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: torch.Tensor | None = None,
    activation: str = "",
    gated: bool = False,
    copy: torch.Tensor | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """gluon_matmul's arguments for c [M, N] = act(a [M, K] @ w + bias), shape = (M, N, K). w [K, N], or [N, K] with
    `w_transposed`; bias [N] or [M, N]; gated: twice N columns, c = act(a @ w[:, :N]) * (a @ w[:, N:]). `scales` (fp8):
    fp32 [M] and [N], or [M, cdiv(K, 128)] and [cdiv(N, 128), cdiv(K, 128)]. `copy` [M, K]: takes what tiles load of a.
    `flags`: the kernel's further constexprs."""
    m, n, k = shape
    rows, columns, depth = tiling.boxes(m, a.dtype.itemsize)
    scale_a, scale_b = scales or (None, None)
    _require_scales(scale_a, tiling, gated)
    return {
        "a_desc": descriptor(a, [rows, depth]),
        "b_desc": descriptor(w, [columns, depth] if w_transposed else [depth, columns]),
        "c_desc": descriptor(c, [min(tiling.block_m, 64), columns]),
        "bias_ptr": bias,
        "scale_a_ptr": scale_a,
        "scale_b_ptr": scale_b,
        "M": m,
        "N": n,
        "K": k,
        "sy_schedule": 0,
        "sy_control": 0,
        "sy_own": None,
        "sy_sums": None,
        "sy_workspace": workspace,
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "BLOCK_K": tiling.block_k,
        "SPLIT_K": tiling.split_k,
        "STAGES": tiling.stages,
        "CONSUMERS": max(tiling.block_m // 64, 1),
        "GROUP_M": tiling.group_m,
        "B_TRANSPOSED": w_transposed,
        "GATED": gated,
        "ACTIVATION": activation,
        "WHOLE_BIAS": bias is not None and bias.dim() == 2,
        "SCALES": "" if scale_a is None else "row" if scale_a.dim() == 1 else "block",
        "a_copy_desc": None if copy is None else descriptor(copy, [rows, depth]),
        **flags,
    }


def _require_scales(scale_a: torch.Tensor | None, tiling: GluonTiling, gated: bool) -> None:
    if scale_a is None:
        return
    if gated:
        raise ValueError("scales: a gated product takes none")
    if scale_a.dim() == 2 and (128 % tiling.block_n or 128 % tiling.block_k):
        raise ValueError(
            f"scales of blocks of 128 take tiles of 64 or 128 columns and of K, not {tiling.block_n} and {tiling.block_k}"
        )


def descriptor(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = {"float8_e4m3fn": gl.float8e4nv}.get(name) or getattr(gl, name)
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
