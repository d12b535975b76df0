"""Calls of torch's scaled_dot_product_attention that do not go by its public name, while something stands in for it: by a name that a
module has imported, by torch._C._nn, by torch.ops.aten.

Eager ones, in all threads, are taken where torch's dispatcher looks for the op's kernel: its own is composite, so that one for a
device comes before it, and goes again without a trace. Compiled functions hold what torch has made of the op. So where anything is
compiled, a mode of torch functions lasts as long: Dynamo looks at which modes there are, compiles anew, and traces the mode.
Without one, what is compiled is an error: it would be used again when nothing stands in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Attend = Callable[..., torch.Tensor]

_OP = torch.ops.aten.scaled_dot_product_attention.default
_BUILTIN = torch._C._nn.scaled_dot_product_attention

#: The innermost is the last; by contexts that have not ended.
_standing_in: list[Attend] = []
_library: list[torch.library.Library] = []
_lock = threading.Lock()


class _Left(threading.local):
    calls = 0  # to torch, which this thread is in the middle of


_left = _Left()


@contextmanager
def stands_in(attend: Attend) -> Iterator[None]:
    """`attend` takes all calls, but those within left_to_torch."""
    with _lock:
        _standing_in.append(attend)
        if not _library:
            _library.append(torch.library.Library("aten", "IMPL"))
            for key in ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA"):
                _library[0].impl("scaled_dot_product_attention", _kernel, key)
    try:
        with _Mode(attend) if _anything_is_compiled() else nullcontext():
            yield
    finally:
        with _lock:
            _standing_in.remove(attend)
            if not _standing_in:
                _library.pop()._destroy()


@contextmanager
def left_to_torch() -> Iterator[None]:
    _left.calls += 1
    try:
        yield
    finally:
        _left.calls -= 1


def _kernel(*given: Any, **options: Any) -> torch.Tensor:
    tracing = torch._guards.TracingContext.try_get() is not None
    if tracing and not _left.calls and not _in_mode():
        raise ValueError(
            "context_parallel: a function that is compiled within calls scaled_dot_product_attention by a name of its own: call "
            "torch.compile before, or torch.nn.functional.scaled_dot_product_attention"
        )
    if tracing or _left.calls or not _standing_in:
        return _OP.decompose(*given, **options)
    return _standing_in[-1](*given, **options)


class _Mode(TorchFunctionMode):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _BUILTIN:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _in_mode() -> bool:
    modes = torch.overrides._get_current_function_mode_stack()
    return any(isinstance(one, _Mode) for one in modes)


def _anything_is_compiled() -> bool:
    """Whether torch.compile has been called."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and bool(getattr(dynamo, "cached_backends", True))
