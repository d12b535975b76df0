"""How kernels.gluon_moe and gluon_moe_scaled are launched: their operands."""

from __future__ import annotations

from typing import Any

import torch

from .gluon_launch import descriptor

ROWS = 128  # of a tile, and its columns, and a block of K
#: 168 registers for each of 12 warps are shared out: two consumers' 232, and 40.
OPTIONS = {"num_warps": 4, "maxnreg": 168}


def takes(block_m: int, block_n: int, block_k: int) -> bool:
    """Whether a tile is one of those kernels'."""
    return block_m == block_n == block_k == ROWS


def stages_of(name: str, stages: int) -> int:
    """Of a tile of so many: where there is one product, there is room for two more."""
    return stages + 2 * (name == "moe_down")


def aligned(w: torch.Tensor) -> torch.Tensor:
    """It, or a copy that lies as it does where TMA cannot load it: the other ranks' may, and call on. A call's own: arguments
    that are kept for later calls are of what the caller gave."""
    return w.clone(memory_format=torch.preserve_format) if w.data_ptr() % 16 else w


def up_operands(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> dict[str, Any]:
    """x [., H], w [experts, 2 F, H], a [., F], all fp8."""
    return {
        "x_ptr": descriptor(x, [64, ROWS]),
        "w_ptr": _of_weights(w),
        "a_ptr": descriptor(a, [64, ROWS]),
    }


def down_operands(a: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
    """a [., F], w [experts, H, F]."""
    return {"a_ptr": descriptor(a, [64, ROWS]), "w_ptr": _of_weights(w)}


def wide_up_operands(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> dict[str, Any]:
    """x [., H], w [experts, H, 2 F], a [., F], of 16 bits."""
    of_w = descriptor(w.reshape(-1, w.shape[-1]), [64, ROWS])
    return {"x_ptr": descriptor(x, [64, 64]), "w_ptr": of_w, "a_ptr": descriptor(a, [64, ROWS])}


def _of_weights(w: torch.Tensor) -> Any:
    return descriptor(w.reshape(-1, w.shape[-1]), [ROWS, ROWS])
