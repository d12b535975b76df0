"""Under torch.autocast the custom ops and the functions take their operands as torch.mm does: cast to autocast's dtype."""

from __future__ import annotations

from typing import Any

import torch

#: Whether it is enabled on any device: asked by each call of a function.
is_any_enabled = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)

FP8 = torch.float8_e4m3fn, torch.float8_e5m2


def cast(given: Any, dtype: torch.dtype) -> Any:
    """A tensor, or a list of them; fp64 stays, and what is no floating-point tensor."""
    if isinstance(given, (list, tuple)):
        return [cast(one, dtype) for one in given]
    tensor = isinstance(given, torch.Tensor) and given.is_floating_point()
    return given.to(dtype) if tensor and given.dtype != torch.float64 else given


def cast_operands(*operands: Any) -> tuple[Any, ...]:
    """Of a function's call, the first one a tensor: cast where autocast is enabled on its device. With one of fp8 all stay, as scales
    are of what is given."""
    first = operands[0]
    kind = first.device.type if isinstance(first, torch.Tensor) else "cpu"
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return operands
    if any(getattr(one, "dtype", None) in FP8 for one in operands):
        return operands
    dtype = torch.get_autocast_dtype(kind)
    return tuple(cast(one, dtype) for one in operands)
