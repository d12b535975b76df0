"""Tensors that nobody reads or writes, in the places of those that a call brings or its heap holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..call.arguments import DTYPES


class StandIns(dict):
    """The tensors of a plan on a device by name, made when asked for: what a kernel is compiled for before its heap is there."""

    def __init__(self, plan: Any, device: torch.device) -> None:
        super().__init__()
        self._plan, self._device = plan, device

    def __missing__(self, name: str) -> torch.Tensor:
        shape, dtype = next((s, d) for tensor, s, d in self._plan.tensors if tensor == name)
        made = self[name] = _without_memory(shape, DTYPES[dtype], self._device)
        return made


def _without_memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor that nobody reads or writes. On a GPU it takes no memory but for its first bytes: a whole tensor of the plan may
    not fit beside the heap."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.empty(*shape, dtype=dtype, device=device)
    return (
        torch.as_tensor(_Address(math.prod(shape) * dtype.itemsize, device), device=device)
        .view(dtype)
        .view(*shape)
    )


class _Address:
    """`size` bytes from an address of the GPU on, of which few are allocated."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._there = torch.empty(512, dtype=torch.uint8, device=device)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._there.data_ptr(), False),
            "version": 3,
        }
