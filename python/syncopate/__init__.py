"""Syncopate: distributed kernels in which computing and communicating overlap tile by tile."""

from . import plans, strategy
from .fused import Call, FusedKernel, fuse
from .group import Group
from .plans import Mesh, Plan, Tensor
from .strategy import Chunking, Strategy, Tiling

__all__ = [
    "Call",
    "Chunking",
    "FusedKernel",
    "Group",
    "Mesh",
    "Plan",
    "Strategy",
    "Tensor",
    "Tiling",
    "fuse",
    "ops",
    "plans",
    "strategy",
]


def __getattr__(name: str):
    if name == "ops":  # imports Triton: only when asked for
        import importlib

        return importlib.import_module(".ops", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
