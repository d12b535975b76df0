"""Under torch.autocast the custom ops and the functions take their operands as torch.mm does: cast to autocast's dtype."""

from __future__ import annotations

from typing import Any

import torch

#: Of any device: asked by each call of a function.
is_any_enabled = torch._C._is_any_autocast_enabled


def autocast(library: torch.library.Library, name: str, *left: int) -> None:
    """For the op of that name, on both devices. `left`: places of arguments that stay as they are where they
    are fp32."""
    for device in ("cpu", "cuda"):
        library.impl(name, _casting(name, device, left), f"Autocast{device.upper()}")


def _casting(name: str, device: str, left: tuple[int, ...]) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def run(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            kept = [at in left and one.dtype == torch.float32 for at, one in enumerate(args)]
            taken = [one if stays else _cast(one, dtype) for one, stays in zip(args, kept, strict=True)]
            return getattr(torch.ops.syncopate, name)(*taken, **options)

    return run


def _cast(given: Any, dtype: torch.dtype) -> Any:
    if isinstance(given, (list, tuple)):
        return [_cast(one, dtype) for one in given]
    tensor = isinstance(given, torch.Tensor) and given.is_floating_point()
    return given.to(dtype) if tensor and given.dtype != torch.float64 else given


def cast_operands(*operands: Any) -> tuple[Any, ...]:
    """Of a function's call, the first one a tensor: cast where autocast is enabled on its device. fp8 stays, as its scales are of what
    is given."""
    first = operands[0]
    kind = first.device.type if isinstance(first, torch.Tensor) else "cpu"
    if not torch.is_autocast_enabled(kind) or getattr(first, "dtype", None) == torch.float8_e4m3fn:
        return operands
    dtype = torch.get_autocast_dtype(kind)
    return tuple(_cast(one, dtype) for one in operands)
