"""Derivatives in forward mode (torch.func.jvp, dual tensors), which no op has: torch would leave them out without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd import forward_ad


def in_forward_mode() -> bool:
    """Whether a level of torch's forward-mode derivatives is open."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def refuse_tangents(operands: Mapping[str, Any]) -> None:
    """RuntimeError for operands that bring derivatives in forward mode, which a call would leave out without a word."""
    if not in_forward_mode():
        return
    tensors = {name: one for name, one in operands.items() if isinstance(one, torch.Tensor)}
    asking = [name for name, one in tensors.items() if forward_ad.unpack_dual(one).tangent is not None]
    if asking:
        raise RuntimeError(
            f"{', '.join(asking)}: a derivative in forward mode is asked for, and there are none: differentiate backwards"
        )
