"""Attention of models that call torch's scaled_dot_product_attention, over sequences that are sharded:

    with sy.context_parallel(mesh["cp"], sharding="zigzag"):
        loss = model(tokens)            # tokens and positions as sy.shard_rows gives them; o of all rows of the sequence

Calls go to torch.ops.syncopate.attention, with its gradients. Operands are this rank's rows [B, H, rows, D]; or DTensors that
are sharded so, Shard(2) over one axis of their mesh, and over the others by heads, by batch, or not at all. So it also takes
the calls inside torch's own `context_parallel`, which makes such DTensors: the outer one is torch's, and `sharding` says how
it has sharded ("zigzag" where it balances the load, as by default).

What the op cannot do (a mask that is given, dropout, fp32) is left to torch where torch knows that the sequence is sharded, and
sy.report() says why. Of plain tensors torch would take this rank's rows for the whole sequence: ValueError then.

The function is replaced, as torch's context_parallel does, and by all names that modules have for it (function_names.py): a mode
of torch functions is not there while a checkpointed block runs again in the backward, and slows all others.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from ..call.arguments import elements_of, require_whole
from ..face.rows import require_sharding
from ..group import the_process_group
from . import report
from .checkpoints import Checkpoints
from .function_names import Names
from .local_attention import Refusal

_FUNCTION = "scaled_dot_product_attention"
_OF_MODULES = tuple(signature(functional.multi_head_attention_forward).parameters)
_ROWS = 2  # the axis of rows
_PATTERNS = os.path.join("torch", "_inductor", "fx_passes", "fuse_attention.py")


@contextmanager
def context_parallel(
    group: DeviceMesh | Any | None = None,
    *,
    sharding: str = "contiguous",
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
    kind: str = "auto",
    window: int = 0,
    length: int | None = None,
) -> Iterator[None]:
    """Within it, torch.nn.functional.scaled_dot_product_attention is that of the whole sequence, by whatever name a module has for
    it, in all threads, also where an object holds it, or a program that was traced, scripted or exported calls it as torch.ops.aten's; and
    functions that attend to a rank's rows alone are a ValueError (local_attention.py). What is checkpointed in it attends so
    again, wherever the backward is. What was compiled before with such an object, and
    attention that is written out, are left: a context in which no attention was taken says so by a warning, and sy.report() how many
    were. `group`: a mesh of one axis, or a process group, whose ranks hold the rows; default: the world.
    DTensors say it themselves. `sharding`, `cu_seqlens`, `kind` and `length`: as of sy.ops.attention; `window` likewise, which
    torch's function has no word for."""
    members = group.get_group() if isinstance(group, DeviceMesh) else group
    if members is not None:
        members = the_process_group(members)
    from ..ops.attention_rules import KINDS  # and Triton, which looks then at whether it is to interpret

    if kind not in ("auto", *KINDS):
        raise ValueError(f"there is no kind {kind!r}: one of auto, {', '.join(KINDS)}")
    require_whole("window", window, least=0)
    if length is not None:
        require_whole("length", length, least=1)
    options = {
        "sharding": require_sharding(sharding),
        "cu_seqlens": None if cu_seqlens is None else elements_of(cu_seqlens, "cu_seqlens"),
        "kind": kind,
        "window": window,
        "length": length,
    }
    ours = _enter(members, options)
    ended = none = False
    try:
        yield
        ended = True
    finally:
        with _lock:  # threads leave in any order
            if _leave(ours):
                none = _count_taken() == 0 and ended
    if none:
        warnings.warn(_NONE_TAKEN, stacklevel=3)


def _enter(members: Any, options: dict[str, Any]) -> _Sharded:
    with _lock:
        ours = _Sharded(getattr(functional, _FUNCTION), members, options)
        if not _standing_in:
            _outside.attentions = _attentions()
            _outside.fast = torch.backends.mha.get_fastpath_enabled()
            _outside.by_modules = functional.multi_head_attention_forward
            functional.multi_head_attention_forward = _without_weights(_outside.by_modules)
        _standing_in.append(ours)
        try:
            _names.replace(ours)
            _refusal.begin()
            _checkpoints.begin()
            _outside.library = _outside.library or _in_dispatcher()
            # Modules in eval() attend by it, without that function.
            torch.backends.mha.set_fastpath_enabled(False)
        except BaseException:
            _leave(ours)
            raise
    return ours


def _as_now(block: Any) -> Any:
    """A block that is checkpointed: where it runs again behind the context, or within another one, it does so in one like this."""
    within = _standing_in[-1:]  # in other threads none may be there any more

    def run(*args: Any, **kwargs: Any) -> Any:
        if not within or _standing_in[-1:] == within:
            return block(*args, **kwargs)
        again = _enter(*within[0].how)
        try:
            return block(*args, **kwargs)
        finally:
            with _lock:
                _leave(again)

    return run


def _leave(ours: _Sharded) -> bool:
    """Whether it was the last one, and all is as it was before."""
    _standing_in.remove(ours)
    if _standing_in:
        _names.replace(_standing_in[-1])
        return False
    _names.restore()
    _refusal.end()
    _checkpoints.end()
    if _outside.library is not None:
        _outside.library._destroy()
        _outside.library = None
    torch.backends.mha.set_fastpath_enabled(_outside.fast)
    functional.multi_head_attention_forward = _outside.by_modules
    return True


def _in_dispatcher() -> torch.library.Library:
    """Kernels of what that function is to the dispatcher: whoever holds torch's own function, or calls it in C++, comes here."""
    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCPU", "AutogradCUDA", "CPU", "CUDA"):
        library.impl(_FUNCTION, _dispatched, key)
    return library


def _dispatched(*args: Any, **kwargs: Any) -> torch.Tensor:
    standing = _standing_in[-1:]  # in other threads none may be there any more
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    # Of DTensors torch knows that they are sharded.
    theirs = not standing or any(isinstance(one, DTensor) for one in tensors)
    traced = not theirs and (torch.compiler.is_compiling() or detect_fake_mode(tensors) is not None)
    if theirs or (traced and _is_inductors()):
        return getattr(torch.ops.aten, _FUNCTION).default.decompose(*args, **kwargs)
    if traced:
        raise ValueError(
            f"context_parallel: {_FUNCTION} (torch.ops.aten) is traced where an object holds it: the graph would attend so outside of the "
            "context, too: call it by its name in torch.nn.functional"
        )
    return standing[0](*args, **kwargs)


def _is_inductors() -> bool:
    """Whether Inductor traces what it puts in the place of attention that a program writes out, which is left as it is."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PATTERNS):
            return True
        frame = frame.f_back
    return False


def _without_weights(before: Any) -> Any:
    """What torch.nn.MultiheadAttention calls, which attends by that function unless it is to return the weights, too."""

    @wraps(before)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_OF_MODULES, args, strict=False)) | kwargs
        if given.get("need_weights", True):
            raise ValueError(
                "context_parallel: weights are asked for, which would be those of this rank's rows alone: call the module with "
                "need_weights=False"
            )
        return before(*args, **kwargs)

    return forward


class _Sharded:
    """scaled_dot_product_attention of a sharded sequence, and what it was `before`."""

    def __init__(self, before: Any, group: Any, options: dict[str, Any]) -> None:
        self.__name__, self.__module__ = _FUNCTION, functional.__name__
        self.before, self.how = before, (group, options)
        self._group, self._options = group, options

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        given: dict[str, Any] = {
            "attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa,
        }  # fmt: skip
        operands = [query, key, value]
        for name, one in zip(("query", "key", "value"), operands, strict=True):
            if not isinstance(one, torch.Tensor):
                raise TypeError(f"{_FUNCTION}: {name} must be a torch.Tensor, not {type(one).__name__}")
        for name in ("is_causal", "enable_gqa"):
            if not isinstance(given[name], bool):  # as torch has it
                raise TypeError(f"{_FUNCTION}: {name} must be bool, not {type(given[name]).__name__}")
        sharded = [isinstance(one, DTensor) for one in operands]
        why = _objection(given, operands)
        axis = _sharded_axis(operands) if all(sharded) else None
        if any(sharded) and axis is None:
            why = "the operands are no DTensors that are sharded alike, by rows over one axis of their mesh"
        if axis is not None:
            ranks, s = operands[0].device_mesh.size(axis), operands[0].shape[_ROWS]
            if self._options["length"] not in (None, s):
                raise ValueError(
                    f"context_parallel: length={self._options['length']}, and the DTensors have {s} rows"
                )
            if s % ranks:
                why = why or f"{s} rows over {ranks} ranks, which DTensors cut otherwise than sy.shard_rows"
        if why and not any(sharded):
            raise ValueError(
                f"context_parallel: {why}: a rank's rows by themselves would be another sequence"
            )
        if why:
            report.count(_FUNCTION, why)
            said = {name: value for name, value in given.items() if value is not _DEFAULTS[name]}
            return self.before(*operands, **said)
        if axis is None:
            return self._attend(operands, the_process_group(self._group).group_name, given)
        mesh, placements = operands[0].device_mesh, operands[0].placements
        own = [one.to_local() for one in operands]
        made = self._attend(own, mesh.get_group(axis).group_name, given)
        return DTensor.from_local(made, mesh, placements, run_check=False)

    def _attend(
        self, operands: Sequence[torch.Tensor], group_name: str, given: dict[str, Any]
    ) -> torch.Tensor:
        attended = torch.ops.syncopate.attention(
            *operands,
            group_name,
            causal=given["is_causal"],
            scale=given["scale"],
            **self._options,
        )
        return attended[0]


_Sharded.__call__.__qualname__ = _FUNCTION  # of which Python's own errors tell
_DEFAULTS = _Sharded.__call__.__kwdefaults__ | {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}


def _attentions() -> tuple[int, int]:
    """How many this process has carried out, forward or backward, and how many were left to torch."""
    made = left = 0
    for (name, outcome), count in report.current().calls.items():
        made += count * (name in ("attention", "attention_backward"))
        left += count * (name == _FUNCTION and outcome != _TAKEN)
    return made, left


def _count_taken() -> int:
    """Of the contexts that have ended: how many attentions were taken in them, or left to torch, for the report. 1 where none was, but
    a CUDA graph may have been replayed, which counts none."""
    taken, left = (
        now - before if now >= before else now  # the report may have been cleared
        for now, before in zip(_attentions(), _outside.attentions, strict=True)
    )
    if taken:
        report.count(_FUNCTION, _TAKEN, taken)
    elif not left:
        report.count("context_parallel", "no attention was taken in it")
    replayed = _outside.were_taken and torch.cuda.is_initialized()
    _outside.were_taken = _outside.were_taken or taken > 0
    return taken + left or int(replayed)


_TAKEN = "taken by context_parallel"
_NONE_TAKEN = (
    "context_parallel: no attention was taken in it. It takes calls of scaled_dot_product_attention by a module's name (of "
    'transformers: attn_implementation="sdpa"). Attention that is written out, or was compiled with a function that an object holds, is of '
    "this rank's rows alone"
)


class _Outside:
    """What there was before the first context."""

    attentions = (0, 0)
    were_taken = False  # in one that has ended
    fast = True  # its fast path
    by_modules: Any = None  # what its modules attend by
    library: torch.library.Library | None = None  # while contexts last


_names = Names(functional, _FUNCTION, torch._C._nn.scaled_dot_product_attention, _Sharded)
_refusal = Refusal()
_checkpoints = Checkpoints(_as_now)
_standing_in: list[_Sharded] = []  # contexts that have not ended; the innermost is the last
_outside = _Outside()
_lock = threading.Lock()


def _objection(given: dict[str, Any], operands: Sequence[torch.Tensor]) -> str:
    """Why torch.ops.syncopate.attention does not do the call; "" where it does."""
    q, k, v = operands
    kind = q.device.type
    cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if cast else q.dtype
    if given["attn_mask"] is not None:
        return (
            "a mask is given, of which the ranks see a part each: say is_causal, window or cu_seqlens (transformers makes one where "
            "positions do not follow each other; not with attention_mask=torch.ones_like(input_ids))"
        )
    if given["dropout_p"]:
        return "dropout of weights"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"operands of {dtype}, not bf16 or fp16"
    shapes = f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        return f"it takes [B, heads, rows, D], not {shapes}"
    if k.shape != v.shape or q.shape[:1] + q.shape[2:] != k.shape[:1] + k.shape[2:]:
        return f"{shapes} are not rows of one sequence"
    if q.shape[1] != k.shape[1] and not given["enable_gqa"]:
        return f"{q.shape[1]} heads of q and {k.shape[1]} of k, without enable_gqa"
    return ""


def _sharded_axis(operands: Sequence[DTensor]) -> int | None:
    """The axis of the operands' mesh over which all of them have their rows."""
    mesh, placements = operands[0].device_mesh, operands[0].placements
    if any(one.device_mesh != mesh or one.placements != placements for one in operands[1:]):
        return None
    axes = [axis for axis, one in enumerate(placements) if one == Shard(_ROWS)]
    others = [one for axis, one in enumerate(placements) if axis not in axes]
    fits = all(one.is_replicate() or one in (Shard(0), Shard(1)) for one in others)
    return axes[0] if len(axes) == 1 and fits else None
