"""The fp32 factors of products of fp8: none (""), "row", one for each row of x and each column of w, or "block", one for each
128 elements of a row of x and each 128 x 128 of w."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _syncopate

#: Elements along K, and along N, that share a scale of a block.
SCALED = _syncopate.ops.SCALED

SCALES = ("", "row", "block")

Scales = tuple[torch.Tensor, torch.Tensor]


def blocks(extent: int) -> int:
    return -(-extent // SCALED)


def shapes_of(scales: str, rows: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
    """Of the scales of x [rows, K] and of w [K, N], as the kernels take them."""
    if scales == "row":
        return {"scale_x": (rows,), "scale_w": (n,)}
    if scales == "block":
        return {"scale_x": (rows, blocks(k)), "scale_w": (blocks(n), blocks(k))}
    return {}


def taken(given: Sequence[torch.Tensor] | None, rows: int, n: int, k: int) -> tuple[str, Scales | tuple[()]]:
    """Scales as a user gives them: which ones they are, and as the kernels take them. One number for all of x or of w
    (a scalar, or a tensor of one element) stands for a row's or a column's; [rows, 1] and [1, N] are taken as well.
    Raises ValueError for others."""
    if given is None:
        return "", ()
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or not all(isinstance(s, torch.Tensor) for s in given)
    ):
        raise ValueError("scales: expected two tensors, the scales of x and those of w")
    scale_x, scale_w = given
    for name, scale in (("scale of x", scale_x), ("scale of w", scale_w)):
        if scale.dtype != torch.float32:
            raise ValueError(f"{name}: expected dtype {torch.float32}, got {scale.dtype}")
    one_each = (scale_x.numel() in (1, rows), scale_w.numel() in (1, n))
    if all(one_each) and scale_x.dim() <= 2 and max(scale_x.shape, default=1) == scale_x.numel():
        return "row", (
            scale_x.reshape(-1).expand(rows).contiguous(),
            scale_w.reshape(-1).expand(n).contiguous(),
        )
    expected = shapes_of("block", rows, n, k)
    if (scale_x.shape, scale_w.shape) == (expected["scale_x"], expected["scale_w"]):
        return "block", (scale_x.contiguous(), scale_w.contiguous())
    raise ValueError(
        f"scales: expected [{rows}] and [{n}], one for each row of x and column of w, one number each, or "
        f"{list(expected['scale_x'])} and {list(expected['scale_w'])} for blocks of {SCALED}, got "
        f"{list(scale_x.shape)} and {list(scale_w.shape)}"
    )
