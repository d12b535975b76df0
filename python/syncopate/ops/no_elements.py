"""Calls of the functions in which an extent is 0, as torch has them: results without elements, or sums of nothing. No kernel runs and
nothing is sent; the first call of its kind asks whether all ranks make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..call import cache
from ..call.places import check_operand, require_apart, written
from ..call.same_call import require_same_call
from ..group import Group


def of_nothing(
    name: str,
    group: Group,
    extents: Sequence[int],
    operands: Mapping[str, torch.Tensor],
    shape: Sequence[int],
    *,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    dtypes: Mapping[str, Sequence[torch.dtype]] | None = None,
    options: str = "",
) -> torch.Tensor:
    """Zeros of that shape, and of that dtype (default: the first operand's), also of the gradients of those operands that ask for one.
    `dtypes`: of operands that may have others than the first one.
    Raises ValueError as an operator does, for operands that do not fit together, and where the ranks' calls differ."""
    first, *others = operands.items()
    for other, one in others:
        taken = (dtypes or {}).get(other, (first[1].dtype,))
        if one.dtype not in taken or one.device != first[1].device:
            expected = f"{' or '.join(map(str, taken))} on {first[1].device}"
            as_first = f", as {first[0]} is" if taken == (first[1].dtype,) else ""
            raise ValueError(f"{other}: expected {expected}{as_first}, got {one.dtype} on {one.device}")
    dtype = dtype or first[1].dtype
    call = (name, "of no elements", *extents, dtype, id(group), options)

    def made() -> cache.Entry:
        require_same_call(name, group, tuple(extents), f"{dtype} {options}".strip())
        return cache.Entry(group, reason="no elements")

    cache.find(f"ops.{name}", first[1].is_cuda, call, made)
    if out is not None:
        check_operand("out", out, tuple(shape), dtype, group.device)
        require_apart("out", out)
        written(out)
        return out.zero_()
    zeros = torch.zeros(*shape, dtype=dtype, device=first[1].device)
    for one in operands.values():
        if torch.is_grad_enabled() and one.requires_grad:
            zeros = zeros + one.reshape(-1)[:0].sum().to(dtype)
    return zeros
