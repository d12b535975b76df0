"""Attention of one rank's rows alone, which is refused while a sequence is sharded: functions that know nothing of other ranks.

A function's code is what is replaced, and not its names: so it does whoever holds the function, an object, a closure, or
torch.compile, which compiles anew where the code of what it has compiled is another (and back again): once for each code, so that
a function has one that refuses, and no more. Functions are found by these names, in modules that are loaded when a context begins. Attention that is written out, of products and a softmax, is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

_OTHERS = "call scaled_dot_product_attention, and say is_causal, window or cu_seqlens"
_OF_TRANSFORMERS = 'load the model with attn_implementation="sdpa"'
_FLASH = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func",
          "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func", "flash_attn_with_kvcache")  # fmt: skip

#: By module: its functions, and what to do instead.
_KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "torch.nn.attention.flex_attention": (("flex_attention",), _OTHERS),
    "torch.nn.attention.varlen": (("varlen_attn", "varlen_attn_out"), _OTHERS),
    "flash_attn.flash_attn_interface": (_FLASH, _OTHERS),
    "flash_attn.cute.interface": (_FLASH, _OTHERS),
    "flash_attn_interface": (_FLASH, _OTHERS),
    "xformers.ops.fmha": (("memory_efficient_attention",), _OTHERS),
    "transformers.integrations.flash_attention": (("flash_attention_forward",), _OF_TRANSFORMERS),
}
#: What each model of transformers calls by attn_implementation="eager", in a module of its own, also of models from elsewhere.
_EAGER = "eager_attention_forward"


class Refusal:
    """Of these functions, from begin() to end(). Both by one thread at a time."""

    def __init__(self) -> None:
        self._codes: dict[FunctionType, CodeType] = {}

    def begin(self) -> None:
        """Also while it lasts: for modules that are new."""
        for function, instead in _found():
            if function not in self._codes:
                kept = _kept.get(function)
                if kept is None or kept.original.__code__ is not function.__code__:
                    code = _refusing(function, instead) if kept is None else kept.refusing
                    kept = _kept[function] = _Kept(_copy_of(function), code)
                _originals[function.__module__, function.__qualname__] = kept.original
                self._codes[function], function.__code__ = function.__code__, kept.refusing

    def end(self) -> None:
        for function, code in self._codes.items():
            function.__code__ = code
        self._codes.clear()


@dataclass
class _Kept:
    """Of a function, as long as there is one: what it was, and the code that refuses."""

    original: FunctionType
    refusing: CodeType


_kept: WeakKeyDictionary[FunctionType, _Kept] = WeakKeyDictionary()
_originals: dict[tuple[str, str], FunctionType] = {}


def _found() -> Iterator[tuple[FunctionType, str]]:
    for name, (functions, instead) in _KNOWN.items():
        for function in functions:
            made = getattr(sys.modules.get(name), function, None)
            if isinstance(made, FunctionType):
                yield made, instead
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        made = names.get(_EAGER) if isinstance(names, dict) else None
        if isinstance(made, FunctionType):
            yield made, _OF_TRANSFORMERS


def _copy_of(function: FunctionType) -> FunctionType:
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _refusing(function: FunctionType, instead: str) -> CodeType:
    """Code in the place of the function's own, of whose globals it knows nothing."""
    key = function.__module__, function.__qualname__
    names: dict[str, Any] = {}
    exec(
        "def refusing(*args, **kwargs):\n"
        f"    from {__name__} import called\n"
        f"    return called({key!r}, {instead!r}, args, kwargs)\n",
        names,
    )
    code = function.__code__  # of a lambda, too, whose name is none that a definition may have
    return names["refusing"].__code__.replace(co_name=code.co_name, co_freevars=code.co_freevars)


def called(key: tuple[str, str], instead: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call while it is refused. Of DTensors torch knows that they are sharded."""
    from torch.distributed.tensor import DTensor

    if any(isinstance(one, DTensor) for one in (*args, *kwargs.values())):
        return _originals[key](*args, **kwargs)
    module, name = key
    raise ValueError(f"context_parallel: {name} ({module}) would attend to this rank's rows alone: {instead}")
