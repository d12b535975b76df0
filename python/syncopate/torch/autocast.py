"""The custom ops under torch.autocast (call/autocast.py)."""

from __future__ import annotations

from typing import Any

import torch

from ..call.autocast import cast


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
            taken = [one if stays else cast(one, dtype) for one, stays in zip(args, kept, strict=True)]
            return getattr(torch.ops.syncopate, name)(*taken, **options)

    return run
