"""Gathers of CUDA tensors over gloo, which is what ranks that share a GPU have: NCCL takes no two ranks on one.

torch's functional all-gather calls allgather_into_tensor_coalesced, and gloo's hands the device's pointer to the host
there: the process dies by SIGSEGV (torch 2.11 and 2.13; the only functional collective that does).
all_gather_into_tensor_out calls _allgather_base, which goes through pinned memory. Other groups are served by it just
as well.
"""

from __future__ import annotations

import torch
from torch.distributed import distributed_c10d as c10d

functional = torch.ops._c10d_functional

_library: torch.library.Library | None = None


def gather_through_host(key: str = "CUDA") -> None:
    """From now on, in this process, _c10d_functional.all_gather_into_tensor works for CUDA tensors over gloo."""
    global _library
    if _library is None:
        _library = torch.library.Library("_c10d_functional", "IMPL")
        _library.impl("all_gather_into_tensor", _gathered, key)


def _gathered(x: torch.Tensor, group_size: int, group_name: str) -> torch.Tensor:
    if x.is_complex():
        return torch.view_as_complex(_gathered(torch.view_as_real(x), group_size, group_name))
    rows, *others = x.shape
    out = x.new_empty(rows * group_size, *others)
    return functional.all_gather_into_tensor_out(x, group_size, group_name, out=out)


def over_gloo(group_name: str) -> bool:
    """Whether a process group sends CUDA tensors by gloo."""
    try:
        return c10d._resolve_process_group(group_name)._get_backend(torch.device("cuda")).name() == "gloo"
    except RuntimeError:  # it has no backend for CUDA
        return False
