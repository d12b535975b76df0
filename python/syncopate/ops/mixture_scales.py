"""The scales of a mixture of experts of fp8, by kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .scales import SCALES, blocks

Scales = Sequence[torch.Tensor]


def shapes_of(scales: str, tokens: int, own: int, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Of the scales of x, w1 and w2."""
    if scales == "row":
        return {"scale_x": (tokens,), "scale_w1": (own, 2 * inner), "scale_w2": (own, hidden)}
    return {
        "scale_x": (tokens, blocks(hidden)),
        "scale_w1": (own, blocks(2 * inner), blocks(hidden)),
        "scale_w2": (own, blocks(hidden), blocks(inner)),
    }


def kind_of_scales(given: Scales | None, tokens: int, own: int, hidden: int, inner: int) -> str:
    """ "row" or "block". Raises ValueError for others."""
    if (
        not isinstance(given, Sequence)
        or len(given) != 3
        or not all(isinstance(s, torch.Tensor) for s in given)
    ):
        raise ValueError("scales: x of fp8 takes three tensors, the scales of x, of w1 and of w2")
    got = [tuple(one.shape) for one in given]
    every = {kind: list(shapes_of(kind, tokens, own, hidden, inner).values()) for kind in SCALES if kind}
    for kind, shapes in every.items():
        if got == shapes:
            return kind
    told = " or ".join(
        f"{', '.join(str(list(s)) for s in shapes)} ({kind})" for kind, shapes in every.items()
    )
    raise ValueError(f"scales: expected shapes {told}, got {', '.join(str(list(s)) for s in got)}")
