"""Syncopate: distributed kernels in which computing and communicating overlap tile by tile."""

from . import plans
from .fused import FusedKernel, fuse
from .group import Group
from .plans import Mesh, Plan, Tensor

__all__ = ["FusedKernel", "Group", "Mesh", "Plan", "Tensor", "fuse", "ops", "plans"]


def __getattr__(name: str):
    if name == "ops":  # imports Triton: only when asked for
        import importlib

        return importlib.import_module(".ops", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
