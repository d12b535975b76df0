"""Matrices as kernels read them, by TMA: the custom ops and the functions of sy.ops copy those that lie otherwise."""

from __future__ import annotations

import torch


def rows(x: torch.Tensor) -> torch.Tensor:
    """x [rows, columns], or a copy of it: rows contiguous and apart, each beginning at a multiple of 16 bytes."""
    size = x.element_size()
    fits = are_apart(x) and x.stride(1) == 1 and x.stride(0) * size % 16 == 0 and x.data_ptr() % 16 == 0
    return x if fits or not x.numel() else x.clone(memory_format=torch.contiguous_format)


def are_apart(x: torch.Tensor) -> bool:
    """Whether no two rows share an element, as those of an expanded row do."""
    return x.stride(0) >= x.shape[1] or x.shape[0] <= 1


def weight(w: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """w [K, N] as the kernels take it, and whether that is its transpose [N, K]."""
    if w.stride(0) == 1 and w.stride(1) >= w.shape[0] and w.shape[0] > 1:
        return rows(w.t()), True
    return rows(w), False
