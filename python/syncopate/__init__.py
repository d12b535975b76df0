"""Syncopate: distributed kernels in which computing and communicating overlap tile by tile."""

from typing import TYPE_CHECKING, Any

from .device import versions as _versions  # noqa: F401 - it warns, before anything of PyTorch's or Triton's fails

# isort: split
from . import _syncopate, plans, strategy
from ._syncopate import InputError, MachineError, SyncopateError, UsageError
from .call import cache as cache  # syncopate.cache.limit_bytes
from .call.cache import close
from .call.stage_call import Call
from .call.stated import StatedKernel, kernel
from .device.cuda_source import cuda_kernel
from .face.deadlines import set_deadline
from .face.fuse import fuse
from .face.fused import FusedKernel
from .face.recover import recover
from .face.rows import shard_rows, unshard_rows
from .face.statement_check import check_statement
from .group import Group
from .plans import Mesh, Plan, Tensor
from .strategy import Chunking, Strategy, Tiling, search_hook
from .torch import custom_ops as _custom_ops  # noqa: F401 - torch.ops.syncopate
from .torch import gradients as _gradients  # noqa: F401
from .torch import moe as _moe  # noqa: F401
from .torch.buckets import deterministic
from .torch.report import current as report

if TYPE_CHECKING:
    from . import gluon, ops, trace
    from .torch import inductor, parallel, symm_mem
    from .torch.context_parallel import context_parallel

__all__ = [
    "Call",
    "Chunking",
    "FusedKernel",
    "Group",
    "InputError",
    "MachineError",
    "Mesh",
    "Plan",
    "StatedKernel",
    "Strategy",
    "SyncopateError",
    "Tensor",
    "Tiling",
    "UsageError",
    "check_statement",
    "close",
    "context_parallel",
    "cuda_kernel",
    "deterministic",
    "fuse",
    "gluon",
    "inductor",
    "kernel",
    "ops",
    "parallel",
    "plans",
    "recover",
    "report",
    "set_deadline",
    "shard_rows",
    "strategy",
    "symm_mem",
    "trace",
    "unshard_rows",
]

__version__: str = _syncopate.VERSION

#: Imported when asked for: they import Triton, Inductor, or DTensor.
_LAZY = {
    "gluon": ".gluon",
    "ops": ".ops",
    "inductor": ".torch.inductor",
    "symm_mem": ".torch.symm_mem",
    "parallel": ".torch.parallel",
    "trace": ".trace",
}


def _search(problem: strategy.Problem, group: Group) -> None:
    from .measure.search import tune_once

    tune_once(problem, group)


def _search_spec(spec: str, group: Group) -> None:
    from .measure.search import tune_spec_once

    tune_spec_once(spec, group)


search_hook.search, search_hook.search_spec = _search, _search_spec


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


if not TYPE_CHECKING:  # for a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name == "context_parallel":
            from .torch.context_parallel import context_parallel

            return context_parallel
        if name in _LAZY:
            import importlib

            return importlib.import_module(_LAZY[name], __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
