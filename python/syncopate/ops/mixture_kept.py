"""What a mixture of experts does outside its program, on rows that lie as dispatch left them: it keeps them for a backward pass,
and makes that one's products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ..host import interpreter
from ..kernels import moe_backward as kernels

if TYPE_CHECKING:
    from .mixture import Moe

cdiv = triton.cdiv


def products(
    of: Moe,
    rows: torch.Tensor,
    h: torch.Tensor,
    dy: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    own: torch.Tensor,
    activation: str,
) -> tuple[torch.Tensor, ...]:
    """Gradients of the rows, of w1 and of w2; h: what w1 made of the rows."""
    experts, hidden, inner = len(w1), w1.shape[1], w2.shape[1]
    a, dh, dx = (rows.new_empty(len(rows), n) for n in (inner, 2 * inner, hidden))
    dw1, dw2 = torch.empty_like(w1), torch.empty_like(w2)
    # Of the operands: a part that only moves rows knows no F.
    whole = rows.dtype.itemsize == 2 and hidden % 8 == 0 and inner % 8 == 0
    streamed = of._has_tma() and whole and all(one.data_ptr() % 16 == 0 for one in (rows, dy, w1, w2))
    known = {
        "EXPERTS": experts, "PRECISION": "ieee" if rows.dtype == torch.float32 else "tf32", "STREAMED": streamed,
    }  # fmt: skip
    wide = {"H": hidden, "F": inner, "BE": triton.next_power_of_2(experts)}

    def operand(tensor: torch.Tensor, *block: int) -> torch.Tensor | TensorDescriptor:
        return TensorDescriptor.from_tensor(tensor, list(block)) if streamed else tensor

    def launch(kernel: Any, columns: int, left: tuple, right: tuple, **arguments: Any) -> None:
        m, n, k, options, beside = tile_of_rows(of, streamed, columns)
        tiles = (cdiv(len(rows), m) + experts) * cdiv(columns, n)
        grid = (min(tiles, of.programs * beside), 1, 1)
        operands = {left[0]: operand(left[1], m, k), right[0]: operand(right[1], 1, n, k)}
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
        _launch(kernel, grid, options, own_ptr=own, **operands, **arguments, **known, **wide, **blocks)

    launch(
        kernels.moe_backward_inner, inner, ("dy_ptr", dy), ("w2_ptr", w2), h_ptr=h, a_ptr=a, dh_ptr=dh,
        ACTIVATION=activation,
    )  # fmt: skip
    launch(kernels.moe_backward_rows, hidden, ("dh_ptr", dh), ("w1_ptr", w1), dx_ptr=dx)
    m, n, k, options = tile_of_weights(of, streamed)
    for left, right, dw in ((rows, dh, dw1), (a, dy, dw2)):
        down, across = left.shape[1], right.shape[1]
        _launch(
            kernels.moe_backward_weights, (experts * cdiv(down, m) * cdiv(across, n), 1, 1), options, left_ptr=left,
            right_ptr=right, left_desc=operand(left, k, m), right_desc=operand(right, k, n), own_ptr=own, dw_ptr=dw,
            K=down, N=across, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, **known,
        )  # fmt: skip
    return dx, dw1, dw2


def tile_of_rows(of: Moe, streamed: bool, columns: int) -> tuple[int, int, int, dict[str, int], int]:
    """Of the products that have rows, and so many columns: rows, columns and K of a tile, its warps and stages, and programs a
    multiprocessor. Measured on an H200 (bench/results/moe_backward_tiles_1xH200.csv)."""
    tiles = of.tiling
    if not streamed:
        return tiles.block_m, tiles.block_n, tiles.block_k, {"num_warps": 8, "num_stages": 2}, 4
    if tiles.block_m < 128:
        return tiles.block_m, 128, 64, {"num_warps": 4, "num_stages": 4}, 3 if tiles.block_m < 64 else 2
    if columns >= 2048:
        return 128, 256, 64, {"num_warps": 8, "num_stages": 3}, 1
    return 128, 128, 64, {"num_warps": 8, "num_stages": 3, "maxnreg": 128}, 2


def tile_of_weights(of: Moe, streamed: bool) -> tuple[int, int, int, dict[str, int]]:
    """Of the products that make weights: few rows make none of their tiles narrow."""
    tiles = of.tiling
    if streamed:
        return 128, 128, 64, {"num_warps": 8, "num_stages": 3}
    down = max(tiles.block_m, tiles.block_n)
    return down, tiles.block_n, tiles.block_k, {"num_warps": 8, "num_stages": 2}


def dots(
    grad: torch.Tensor, back: torch.Tensor, taken: torch.Tensor | None, made: torch.Tensor
) -> torch.Tensor:
    """made [., topk]: of each token's grad [., H] with what came back of each of its routes [., topk, H], where that was taken."""
    topk, hidden = made.shape[-1], grad.shape[-1]
    choices = triton.next_power_of_2(topk)
    columns = min(triton.next_power_of_2(hidden), max(128, 4096 // choices))
    _launch(
        kernels.moe_backward_dots, (made.numel() // topk, 1, 1), {"num_warps": 4}, grad_ptr=grad, back_ptr=back,
        taken_ptr=grad if taken is None else taken.view(torch.uint8), dot_ptr=made, TOPK=topk, H=hidden, CHOICES=choices,
        COLUMNS=columns, ALL=taken is None,
    )  # fmt: skip
    return made


def keep_rows(of: Moe, own: torch.Tensor) -> torch.Tensor:
    """The rows that have come, where they lie in the heap: it is the next call's."""
    rows, experts = of.heap["X"], own.shape[1]
    kept = torch.empty_like(rows)
    m = min(of.tiling.block_m, 16)
    columns = min(triton.next_power_of_2(of.hidden), 512)
    tiles = (cdiv(len(rows), m) + experts) * cdiv(of.hidden, columns)
    _launch(
        kernels.moe_keep, (min(tiles, 8 * of.programs), 1, 1), {"num_warps": 4}, rows_ptr=rows, own_ptr=own, kept_ptr=kept,
        H=of.hidden, EXPERTS=experts, BE=triton.next_power_of_2(experts), BLOCK_M=m, COLUMNS=columns,
    )  # fmt: skip
    return kept


def _launch(kernel: Any, grid: tuple[int, ...], options: dict[str, int], **arguments: Any) -> None:
    arguments = {name: arguments[name] for name in kernel.arg_names}
    first = next(one for one in arguments.values() if isinstance(one, torch.Tensor))
    if first.is_cuda:
        kernel[grid](**arguments, **options)
    else:
        interpreter.launch(kernel, grid, arguments)
