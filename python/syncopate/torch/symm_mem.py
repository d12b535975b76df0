"""The slot that torch's asynchronous tensor parallelism has for its fused products:

    with sy.symm_mem.override() as ours:          # or ours = sy.symm_mem.override(), and later ours.restore()
        …                                         # torch.ops.symm_mem.fused_* are Syncopate's
    print(ours)                                   # how many calls were taken, how many passed on, and why

Torch's own pass (torch._inductor.config._micro_pipeline_tp) and trainers that call the two ops use Syncopate so, unchanged.
What no operator here takes goes to torch's implementation, and is counted. While an override lasts, torch's pass finds
symmetric memory enabled for every group: ours needs no set-up, and torch's own sets itself up when it is called.

    fused_all_gather_matmul(A, Bs, gather_dim, group_name, *, return_A) → (A | None, [A @ B, …])
    fused_matmul_reduce_scatter(A, B, "sum" | "avg", scatter_dim, group_name)
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import _symmetric_memory as torchs

from . import fused, report
from .unfused import size_of

__all__ = ["Override", "override"]

GATHER = "symm_mem::fused_all_gather_matmul"
SCATTER = "symm_mem::fused_matmul_reduce_scatter"


class Override:
    """Lasts until `restore`; of several the latest takes the calls. `taken`, `passed_on`: by op, the number of calls.
    `reasons`: of those that were not fused, by operator and reason."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.passed_on: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        _lasting.append(self)
        _say_what_is_enabled()
        self._library = torch.library.Library("symm_mem", "IMPL")
        with _no_warning():
            for key, gather, scatter in (
                ("CUDA", torchs._fused_all_gather_matmul, torchs._fused_matmul_reduce_scatter),
                (
                    "CPU",
                    torchs._fused_all_gather_matmul_fallback,
                    torchs._fused_matmul_reduce_scatter_fallback,
                ),
            ):
                for name, ours in (
                    ("fused_all_gather_matmul", self._gather_or(gather)),
                    ("fused_matmul_reduce_scatter", self._scatter_or(scatter)),
                ):
                    # Some versions of torch refuse a second implementation unless told.
                    self._library.impl(name, ours, key, allow_override=True)

    def __enter__(self) -> Override:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """torch's own implementations are back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            _lasting.remove(self)
            _say_what_is_enabled()

    def __str__(self) -> str:
        rows = [
            f"{name}: {self.taken[name]} calls taken, {self.passed_on[name]} passed on"
            for name in (GATHER, SCATTER)
        ]
        reasons = [f"    {name}: {outcome}" for name, outcome in self.reasons]
        return "\n".join(rows + reasons)

    def _gather_or(self, original: Any) -> Any:
        def gather(A, Bs, gather_dim, group_name, *, return_A=True):
            made = self._counted(GATHER, all_gather_matmul, A, Bs, gather_dim, group_name, return_A)
            return original(A, Bs, gather_dim, group_name, return_A=return_A) if made is None else made

        return gather

    def _scatter_or(self, original: Any) -> Any:
        def scatter(A, B, reduce_op, scatter_dim, group_name):
            made = self._counted(SCATTER, matmul_reduce_scatter, A, B, reduce_op, scatter_dim, group_name)
            return original(A, B, reduce_op, scatter_dim, group_name) if made is None else made

        return scatter

    def _counted(self, name: str, take: Callable[..., Any], *given: Any) -> Any:
        with report.heard() as outcomes:
            made = take(*given)
        (self.passed_on if made is None else self.taken)[name] += 1
        self.reasons.update(one for one in outcomes if one[1] != report.FUSED)
        return made


_lasting: list[Override] = []
_enabled_by_torch = torchs.is_symm_mem_enabled_for_group


def _say_what_is_enabled() -> None:
    torchs.is_symm_mem_enabled_for_group = (lambda group_name: True) if _lasting else _enabled_by_torch


def override() -> Override:
    """Takes the two ops, for CUDA and, where ranks are processes of this host, for CPU tensors."""
    return Override()


@contextlib.contextmanager
def _no_warning() -> Any:
    """torch warns that a kernel is registered in another one's place: that is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*verrid.*")
        yield


def all_gather_matmul(
    A: torch.Tensor, Bs: list[torch.Tensor], gather_dim: int, group_name: str, return_A: bool
) -> tuple[torch.Tensor | None, list[torch.Tensor]] | None:
    """With the strides that torch's own gives; None: it is not taken."""
    last = gather_dim % max(A.dim(), 1) == A.dim() - 1
    reason = _not_products(A, Bs, gather_dim, size_of(group_name) if last else 1)
    if reason:
        report.count(GATHER, reason)
        return None
    if last:
        return _gathered_columns(A, Bs, group_name, return_A)
    axis = gather_dim % A.dim()
    moved = A.movedim(axis, 0)
    leading = [moved.shape[0] * size_of(group_name), *moved.shape[1:-1]]
    made = fused.several("all_gather_matmul", moved.flatten(0, -2), Bs, group_name, return_A)
    if made is None:
        return None
    back = [one.view(*leading, one.shape[1]).movedim(0, axis) for one in made]
    return (back.pop() if return_A else None), back


def _gathered_columns(
    A: torch.Tensor, Bs: list[torch.Tensor], group_name: str, return_A: bool
) -> tuple[torch.Tensor | None, list[torch.Tensor]] | None:
    x, leading = A.flatten(0, -2), A.shape[:-1]
    if len(Bs) == 1 and not return_A:
        y = fused.pair("all_gather_matmul", x, Bs[0], group_name, activation="", axis=1)
        made = None if y is None else [y]
    else:
        made = fused.several("all_gather_matmul", x, Bs, group_name, return_A, axis=1)
    if made is None:
        return None
    back = [one.view(*leading, one.shape[1]) for one in made]
    return (back.pop() if return_A else None), back


def matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor | None:
    """Contiguous, as torch's own gives it; None: it is not taken."""
    reason = _not_products(A, [B], scatter_dim)
    if not reason and reduce_op not in ("sum", "avg"):
        reason = f"reduce_op {reduce_op} is neither sum nor avg"
    if not reason and [*A.shape[:-1], B.shape[1]][scatter_dim] % size_of(group_name):
        reason = "the ranks cannot share the axis that is scattered"
    if reason:
        report.count(SCATTER, reason)
        return None
    axis = scatter_dim % A.dim()
    if axis == A.dim() - 1:  # columns of A @ B are rows of its transpose, Bᵀ @ Aᵀ
        y = fused.pair("matmul_reduce_scatter", B.t(), A.flatten(0, -2).t(), group_name)
        y = None if y is None else y.t().contiguous().view(*A.shape[:-1], -1)
    else:
        moved = A.movedim(axis, 0)
        y = fused.pair("matmul_reduce_scatter", moved.flatten(0, -2), B, group_name)
        if y is not None:
            leading = [moved.shape[0] // size_of(group_name), *moved.shape[1:-1]]
            y = y.view(*leading, y.shape[1]).movedim(0, axis).contiguous()
    if y is not None and reduce_op == "avg":
        y = y.div_(size_of(group_name))
    return y


def _not_products(A: torch.Tensor, Bs: list[torch.Tensor], axis: int, columns: int = 1) -> str:
    """Why these are no products of one A with matrices; torch's own implementation then says what is wrong. `columns`: of how
    many ranks the columns of A are gathered."""
    if not Bs:
        return "no product"
    if A.dim() < 2 or any(B.dim() != 2 for B in Bs) or not -A.dim() <= axis < A.dim():
        return "A is no matrix of rows, a B is none, or the axis is not A's"
    if any(B.dtype != A.dtype for B in Bs):
        return "A and B differ in dtype"
    if any(B.shape[0] != A.shape[-1] * columns for B in Bs):
        return "B has not as many rows as A has columns"
    return ""
