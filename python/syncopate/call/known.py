"""Calls of functions that C++ makes alone, once one of their kind has been made here (python/bindings/functions.cpp): neither the
operator is looked up, nor the tensors are looked at, by Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _syncopate
from . import cache


def call(called: tuple[Any, ...], tensors: tuple[Any, ...], out: Any) -> torch.Tensor | None:
    """The function, its group and its options; what it is given, None for what it is not. None: the call is to be made as if it
    were the first one, and nothing of it has begun."""
    try:
        made = _syncopate.call_known(called, tensors, out)
    except BaseException as error:
        entry = cache.of_token(_syncopate.failed_call())
        if cache.is_final(error) and entry is not None:
            cache.forget(entry.operator)
        elif isinstance(error, ValueError) and entry is not None and entry.operator.drops_what_it_was_told():
            return None
        raise
    return _by_libraries(made, tensors, out) if type(made) is cache.Entry else made


def _by_libraries(entry: cache.Entry, tensors: tuple[Any, ...], out: Any) -> torch.Tensor:
    operator = entry.operator
    x, w, *others = tensors
    given = (w.t() if operator.w_transposed else w, *[one for one in others if one is not None])
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        entry.captured = True
    return cache.run(operator.run_libraries, x, given, out)


def learn(
    called: tuple[Any, ...],
    tensors: tuple[Any, ...],
    taken: Sequence[torch.Tensor],
    entry: cache.Entry,
    w_transposed: bool = False,
) -> None:
    """A call of the entry's operator, that has been made. `taken`: the operands that it was made of."""
    operator = entry.operator
    given = [(number, one) for number, one in enumerate(tensors) if one is not None]
    as_given = all(
        one is other or (one.shape == other.shape and one.stride() == other.stride())
        for (_, one), other in zip(given, taken, strict=True)
    )
    by_libraries = operator.runs_libraries
    executable = operator._executable and operator._executable.native
    if not as_given or operator._on_trial or not (by_libraries or executable) or capturing(tensors[0]):
        return
    numbers = [-1 - number if w_transposed and number == 1 else number for number, _ in given]
    dtype = operator.problem.out_dtype
    _syncopate.learn_call(
        called,
        tensors,
        entry.token,
        entry,
        None if by_libraries else executable,
        numbers,
        operator.out_rows,
        operator.n,
        None if dtype == tensors[0].dtype else dtype,
    )


def capturing(tensor: torch.Tensor) -> bool:
    """Whether into a graph: a call of it takes the operator of another stream."""
    return tensor.is_cuda and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
