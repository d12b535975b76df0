"""torch.ops.syncopate.moe(x, topk_ids, topk_weights, w1, w2, group_name, activation="silu", bound=0, over="error", parallel="expert") → y: a mixture of
experts as a custom op, with fakes, gradients of x, topk_weights, w1 and w2, and torch.compile. `bound` 0: all rows that could come.

It is one of two others: moe_forward makes y alone; where a gradient is asked for, moe_kept leaves what moe_backward needs.

torch.ops.syncopate.moe_scaled(x, topk_ids, topk_weights, w1, w2, [scale_x, scale_w1, scale_w2], group_name, …, out_dtype=None) → y: of fp8,
as sy.ops.moe with scales. It makes no gradients, and refuses to be asked for one.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import _syncopate
from ..call import cache
from ..call.forward_mode import refuse_tangents
from ..group import Group, known, of_process_group
from . import report
from .autocast import autocast
from .custom_ops import TAGS, _implement, library
from .gradients import Telling, once

_GIVEN = "Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor w1, Tensor w2, str group_name"
_OPTIONS = "str activation='silu', int bound=0, str over='error', str parallel='expert'"
_USUAL = ("silu", 0, "error", "expert")
#: Of moe_kept: y, and the rows that came, what w1 made of them, what came back, where experts' rows lie, which routes were taken, and
#: over nodes all ranks' ids of the node's experts, and their weights. Its `nodes`: as known where it was traced; 0: it was not.
_KEPT = 8
library.define(f"moe({_GIVEN}, {_OPTIONS}) -> Tensor")
library.define(f"moe_forward({_GIVEN}, {_OPTIONS}) -> Tensor", tags=TAGS)
library.define(f"moe_kept({_GIVEN}, {_OPTIONS}, int nodes=0) -> ({', '.join(['Tensor'] * _KEPT)})", tags=TAGS)
library.define(
    "moe_backward(Tensor grad, Tensor topk_ids, Tensor topk_weights, Tensor w1, Tensor w2, Tensor rows, Tensor h, Tensor back, "
    "Tensor own, Tensor taken, Tensor all_ids, Tensor all_weights, str group_name, str activation, int bound, str parallel) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=TAGS,
)
_SCALED = (
    "Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor w1, Tensor w2, Tensor[] scales, str group_name"
)
for _name, _tags in (("moe_scaled", ()), ("moe_scaled_forward", TAGS)):
    library.define(f"{_name}({_SCALED}, {_OPTIONS}, *, ScalarType? out_dtype=None) -> Tensor", tags=_tags)


def _all(options: tuple[Any, ...], *usual: Any) -> tuple[Any, ...]:
    """With those that the dispatcher leaves out at the end, as they are as usual. `usual`: of more options than _OPTIONS."""
    return *options, *(*_USUAL, *usual)[len(options) :]


def _require_tensors(given: dict[str, torch.Tensor | None]) -> None:
    """torch takes None for a tensor, too."""
    for name, one in given.items():
        if one is None:
            raise TypeError(f"moe: {name}: expected a torch.Tensor, got None")


def _moe(x, topk_ids, topk_weights, w1, w2, group_name, *options) -> torch.Tensor:
    given = (x, topk_ids, topk_weights, w1, w2, group_name, *_all(options))
    differentiable = (x, topk_weights, w1, w2)
    named = dict(zip(("x", "topk_weights", "w1", "w2"), differentiable, strict=True))
    _require_tensors(named | {"topk_ids": topk_ids})
    refuse_tangents(named)
    asking = [one for one in differentiable if torch.is_grad_enabled() and one.requires_grad]
    if asking and not statically_known_true(x.shape[0] == 0):
        is_traced = torch._guards.detect_fake_mode([x]) is not None
        nodes = _known(_traced_group(group_name, x), "nodes", 1) if is_traced else 0
        return torch.ops.syncopate.moe_kept(*given, nodes)[0]
    with torch.no_grad() if asking else nullcontext():
        y = torch.ops.syncopate.moe_forward(*given)
    for one in asking:  # of no tokens a gradient is all zeros
        y = y + one.reshape(-1)[:0].sum().to(y.dtype)
    return y


def _moe_scaled(x, topk_ids, topk_weights, w1, w2, scales, *rest, out_dtype=None) -> torch.Tensor:
    from ..ops.mixture_function import refuse_gradients_of_fp8

    given = {"x": x, "topk_weights": topk_weights, "w1": w1, "w2": w2}
    _require_tensors(given | {"topk_ids": topk_ids})
    refuse_gradients_of_fp8("syncopate.moe_scaled", given, scales)
    return torch.ops.syncopate.moe_scaled_forward(
        x, topk_ids, topk_weights, w1, w2, scales, *rest, out_dtype=out_dtype
    )


library.impl("moe", _moe, "CompositeImplicitAutograd")
library.impl("moe_scaled", _moe_scaled, "CompositeImplicitAutograd")
autocast(library, "moe", 2)  # fp32 weights of routes are taken beside any dtype


@dataclass
class _Unmade:
    """A group of which no op has been called: what is traced makes none, as a rank may trace alone, and without a GPU."""

    size: int
    device: str


def _known(group: Group | _Unmade, what: str, otherwise: Any) -> Any:
    """A property of the group of which its ranks tell each other at its first call, as far as they have: a rank may trace alone."""
    return vars(group).get(what, otherwise)


def _traced_group(group_name: str, x: torch.Tensor) -> Group | _Unmade:
    process_group = dist.distributed_c10d._resolve_process_group(group_name)
    device = "cuda" if x.is_cuda else "host"
    made = (one for one in known(process_group) if one.device == device)
    return next(made, None) or _Unmade(process_group.size(), device)


def _group(group_name: str, x: torch.Tensor) -> Group:
    process_group = dist.distributed_c10d._resolve_process_group(group_name)
    return of_process_group(process_group, "cuda" if x.is_cuda else "host")


def _run(part: str, x, ids, weights, w1, w2, group_name, *options) -> tuple[Any, ...]:
    from ..ops import mixture_function, mixture_nodes

    activation, bound, over, parallel = _all(options)
    if x.dtype == torch.float8_e4m3fn:
        raise ValueError("x: the op takes no fp8: call sy.ops.moe with scales")
    given = [one.contiguous() for one in (x, ids, weights, w1, w2)]
    group = _group(group_name, x)
    if part == "whole" and not x.shape[0]:
        report.count("moe", report.FUSED)
        return (mixture_function.of_no_tokens(*given, group, parallel),)
    options = {"activation": activation, "bound": bound or None, "over": over, "part": part}

    def of_node(x, ids, weights, w1, w2, node, _=None) -> tuple[Any, ...]:
        extents = mixture_function.extents_of(x, ids, w1, w2, node.size, parallel)
        operator = mixture_function.kept(extents, x.dtype, node, parallel, **options)
        report.count("moe", "unfused: as tuning found" if operator.strategy.unfused else report.FUSED)
        return cache.run(operator.run, x, ids, weights, w1, w2)

    if group.nodes > 1:
        return mixture_nodes.moe(of_node, mixture_function.extents_of, given, group, parallel, **options)
    return of_node(*given, group)


@torch._disable_dynamo
def _forward(*given) -> torch.Tensor:
    return _run("whole", *given)[0]


@torch._disable_dynamo
def _scaled(x, topk_ids, topk_weights, w1, w2, scales, group_name, *options, out_dtype=None) -> torch.Tensor:
    from ..ops.mixture_function import moe, of_fp8, of_no_tokens

    activation, bound, over, parallel = _all(options)
    if x.dtype != torch.float8_e4m3fn:
        raise ValueError(
            f"x: syncopate.moe_scaled takes {torch.float8_e4m3fn}, got {x.dtype}, which syncopate.moe takes"
        )
    report.count("moe", report.FUSED)
    group = _group(group_name, x)
    if not x.shape[0]:
        return of_no_tokens(x, topk_ids, topk_weights, w1, w2, group, parallel, out_dtype)
    if group.nodes > 1:
        options = {"over": over, "parallel": parallel, "scales": scales, "out_dtype": out_dtype}
        return moe(x, topk_ids, topk_weights, w1, w2, group, activation, bound or None, **options)
    options = (activation, bound or None, over, parallel, out_dtype)
    return of_fp8(x, topk_ids, topk_weights, w1, w2, scales, group, *options)


def _none_kept(x, ids, weights, w1, w2, group: Group | _Unmade, parallel: str) -> tuple[torch.Tensor, ...]:
    """What moe_kept leaves of no tokens, behind y."""
    hidden, topk = x.shape[1], ids.shape[1]
    return (
        x.new_empty((0, hidden)),
        x.new_empty((0, 2 * w2.shape[1])),
        x.new_empty((0, hidden) if parallel == "expert" else (group.size, 0, hidden)),
        x.new_zeros((2, w1.shape[0]), dtype=torch.int32),
        x.new_empty((0, topk), dtype=torch.bool),
        ids.new_empty(0),
        weights.new_empty(0),
    )


@torch._disable_dynamo
def _kept(x, topk_ids, topk_weights, w1, w2, group_name, *options) -> tuple:
    *options, nodes = _all(options, 0)
    given = (x, topk_ids, topk_weights, w1, w2, group_name, *options)
    group = _group(group_name, x)
    if nodes and nodes != group.nodes:
        raise RuntimeError(
            f"moe: compiled for ranks of {nodes} node{'s' * (nodes > 1)}, and they are on {group.nodes}, which no rank knew: call sy.ops.moe in "
            "this group once before torch.compile, or torch.compiler.disable the call"
        )
    if not x.shape[0]:
        return *_run("whole", *given), *_none_kept(*given[:5], group, options[-1])
    y, handle, (rows, h, back), *of_all = _run("kept", *given)
    of_all = of_all or [topk_ids.new_empty(0), topk_weights.new_empty(0)]
    return y, rows, h, back, handle.own, handle.taken, *of_all


@torch._disable_dynamo
def _backward(grad, topk_ids, topk_weights, w1, w2, *others) -> tuple:
    *kept, all_ids, all_weights, group_name, activation, bound, parallel = others
    from ..ops import mixture_nodes
    from ..ops.mixture_backward import BACKWARDS

    if not grad.shape[0]:
        return tuple(map(torch.zeros_like, (grad, topk_weights, w1, w2)))
    ids, weights, *of_experts = (one.contiguous() for one in (topk_ids, topk_weights, w1, w2))
    report.count("moe_backward", report.FUSED)
    group = _group(group_name, grad)
    kept = (*of_experts, *kept)
    made = BACKWARDS[parallel]
    if group.nodes == 1:
        return made(grad, ids, weights, *kept, group, activation, bound)

    def of_node(all_grad: torch.Tensor, node: Group) -> tuple[torch.Tensor, ...]:
        return made(all_grad, all_ids, all_weights, *kept, node, activation, bound)

    return mixture_nodes.backward(of_node, grad, weights, group)


for _name, _run_of in (
    ("moe_forward", _forward),
    ("moe_kept", _kept),
    ("moe_backward", _backward),
    ("moe_scaled_forward", _scaled),
):
    _implement(_name, _run_of)


def _require_fit(x, topk_ids, topk_weights, w1, w2, group_name, *options, out_dtype=None, nodes=0) -> None:
    """A tracer, or a tensor of the device meta among others, is told what the call would be."""
    from ..ops.mixture_function import require_fit

    activation, bound, over, parallel = _all(options)
    group = _traced_group(group_name, x)
    of_node = group.size // (nodes or _known(group, "nodes", 1))
    given = x, topk_ids, topk_weights, w1, w2
    require_fit(*given, of_node, activation, bound or None, over, parallel, out_dtype)


@torch.library.register_fake("syncopate::moe_forward", lib=library)
def _(x, *others):
    _require_fit(x, *others)
    return x.new_empty(x.shape)


@torch.library.register_fake("syncopate::moe_scaled_forward", lib=library)
def _(x, topk_ids, topk_weights, w1, w2, scales, *others, out_dtype=None):
    from ..ops.mixture_scales import kind_of_scales

    out_dtype = out_dtype or torch.bfloat16
    _require_fit(x, topk_ids, topk_weights, w1, w2, *others, out_dtype=out_dtype)
    kind_of_scales(scales, x.shape[0], w1.shape[0], x.shape[1], w2.shape[1])
    return x.new_empty(x.shape, dtype=out_dtype)


@torch.library.register_fake("syncopate::moe_kept", lib=library)
def _(x, topk_ids, topk_weights, w1, w2, group_name, *options):
    from ..ops import mixture, mixture_function

    *options, nodes = _all(options, 0)
    _require_fit(x, topk_ids, topk_weights, w1, w2, group_name, *options, nodes=nodes)
    _, bound, _, parallel = options
    group = _traced_group(group_name, x)
    nodes = nodes or _known(group, "nodes", 1)
    of_nodes = group.parts.get("node") if nodes > 1 and isinstance(group, Group) else group
    size = group.size // nodes
    hidden, topk, own = x.shape[1], topk_ids.shape[1], w1.shape[0]
    # Whatever is dynamic becomes a number.
    tokens, *extents = (int(one) for one in mixture_function.extents_of(x, topk_ids, w1, w2, size, parallel))
    if not tokens:
        return x.new_empty(x.shape), *_none_kept(x, topk_ids, topk_weights, w1, w2, group, parallel)
    tokens *= nodes
    most = size * tokens * topk
    machine = "" if of_nodes is None else _known(of_nodes, "machine", "")
    spec = mixture.spec_of(tokens, *extents, x.dtype, size, bound or None, "kept", parallel)
    (tiling,) = mixture.strategy_of(spec, group.device, machine=machine).tilings
    rows = _syncopate.ops.rows_for(min(bound or most, most), own, tiling.block_m)
    numbers = x.new_empty((2, own), dtype=torch.int32)
    taken = x.new_empty((tokens, topk), dtype=torch.bool)
    return (
        x.new_empty(x.shape),
        x.new_empty((rows, hidden)),
        x.new_empty((rows, 2 * w2.shape[1])),
        x.new_empty((tokens * topk, hidden) if parallel == "expert" else (size, tokens * topk, hidden)),
        numbers,
        taken,
        topk_ids.new_empty((tokens, topk) if nodes > 1 else (0,)),
        topk_weights.new_empty((tokens, topk) if nodes > 1 else (0,)),
    )


@torch.library.register_fake("syncopate::moe_backward", lib=library)
def _(grad, topk_ids, topk_weights, w1, w2, *_others):
    return tuple(
        torch.empty_like(one, memory_format=torch.contiguous_format) for one in (grad, topk_weights, w1, w2)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, ids, weights, w1, w2, ctx.group_name, ctx.activation, ctx.bound, _, ctx.parallel, _ = inputs
    ctx.save_for_backward(ids, weights, w1, w2, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    made = torch.ops.syncopate.moe_backward(
        grad, *ctx.saved_tensors, ctx.group_name, ctx.activation, ctx.bound, ctx.parallel
    )
    dx, dweights, dw1, dw2 = made
    return dx, None, dweights, dw1, dw2, *[None] * 6


torch.library.register_autograd(
    "syncopate::moe_kept", once("moe", _gradients), setup_context=_setup, lib=Telling
)
