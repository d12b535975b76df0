"""Syncopate: distributed kernels in which computing and communicating overlap tile by tile."""

from . import versions as _versions  # noqa: F401 - it warns, before anything of PyTorch's or Triton's fails

# isort: split
from . import plans, strategy, unseen
from .cache import close
from .cuda_source import cuda_kernel
from .fused import FusedKernel
from .fusing import fuse
from .group import Group
from .plans import Mesh, Plan, Tensor
from .stages import Call
from .stated import StatedKernel, kernel
from .statement_check import check_statement
from .strategy import Chunking, Strategy, Tiling
from .torch import custom_ops as _custom_ops  # noqa: F401 - torch.ops.syncopate
from .torch import gradients as _gradients  # noqa: F401
from .torch.buckets import deterministic
from .torch.report import current as report

__all__ = [
    "Call",
    "Chunking",
    "FusedKernel",
    "Group",
    "Mesh",
    "Plan",
    "StatedKernel",
    "Strategy",
    "Tensor",
    "Tiling",
    "check_statement",
    "close",
    "cuda_kernel",
    "deterministic",
    "fuse",
    "inductor",
    "kernel",
    "ops",
    "parallel",
    "plans",
    "report",
    "strategy",
    "symm_mem",
]

#: Imported when asked for: they import Triton, Inductor, or DTensor.
_LAZY = {
    "ops": ".ops",
    "inductor": ".torch.inductor",
    "symm_mem": ".torch.symm_mem",
    "parallel": ".torch.parallel",
}


def _search(problem, group) -> None:
    from .tune_search import tune_once

    tune_once(problem, group)


unseen.search = _search


def __getattr__(name: str):
    if name in _LAZY:
        import importlib

        return importlib.import_module(_LAZY[name], __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
