"""Calls of the operators with operands of any layout. Each function returns None where nothing fused does: calls.py counts
why, and the caller runs something else. Shapes are those of syncopate.ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..call.cache import run
from ..call.laid_out import rows, weight
from ..face.rows import documents_of, unequal_rows
from . import buckets, calls, recipes, report
from .unfused import product, scatter, size_of


def pair(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    group_name: str,
    bias: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor | None:
    """A call of an operator of x and w. `options`: of all_gather_matmul."""
    given, transposed = weight(w)
    gathers = name == "all_gather_matmul" and not options["axis"]
    extents = (x.shape[0] * (size_of(group_name) if gathers else 1), w.shape[1], w.shape[0])
    axes = 0 if bias is None else bias.dim()
    operator = calls.find(name, x, group_name, extents, w_transposed=transposed, bias=axes, **options)
    if operator is None:
        return None
    y = run(operator, rows(x), given, None, None if bias is None else bias.contiguous())
    recipes.learn_product(name, group_name, calls.taken.entry, transposed, bias)
    return y


def several(
    name: str,
    x: torch.Tensor,
    ws: Sequence[torch.Tensor],
    group_name: str,
    returned: bool = False,
    axis: int = 0,
    biases: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor] | None:
    """Products by several w of what all_gather_matmul or all_to_all_matmul brings: the widest one runs beside that, the others
    on what has come. `returned`: that is the last of the list, a new tensor, which the widest one's call fills."""
    first, added = max(range(len(ws)), key=lambda i: ws[i].shape[1]), biases or [None] * len(ws)
    made = kept(name, x, ws[first], group_name, added[first], copied=returned, axis=axis)
    if made is None:
        return None
    y, whole = made
    learnt = calls.taken.entry
    recipes.learn_several(
        name, group_name, learnt, first, weight(ws[first])[1], len(ws), biases is not None, returned
    )
    products = [y if i == first else product(whole, w, added[i]) for i, w in enumerate(ws)]
    return products + ([whole] if returned else [])


def kept(
    name: str,
    x: torch.Tensor,
    w: torch.Tensor,
    group_name: str,
    bias: torch.Tensor | None = None,
    copied: bool = False,
    axis: int = 0,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A call of all_gather_matmul or all_to_all_matmul, and what it has gathered: that is the heap's, until the next call
    of the same shape. `copied`: it is the caller's, a new tensor."""
    m = x.shape[0] * (size_of(group_name) if name == "all_gather_matmul" and not axis else 1)
    operator, given = _keeping(name, x, m, w, group_name, bias, copied, axis)
    return None if operator is None else _with_gathered(operator, x, given, bias)


def _with_gathered(
    operator: Any, x: torch.Tensor, given: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    added = None if bias is None else bias.contiguous()
    if not operator.copied:
        return run(operator, rows(x), given, None, added), operator.gathered()
    whole = x.new_empty(operator.m, operator.k)
    return run(operator, rows(x), given, None, added, copy=whole), whole


def _keeping(
    name: str,
    like: torch.Tensor,
    m: int,
    w: torch.Tensor,
    group_name: str,
    bias: torch.Tensor | None = None,
    copied: bool = False,
    axis: int = 0,
) -> tuple[Any, torch.Tensor]:
    """The operator that keeps what it gathers, [m, K] of `like`'s dtype, or has it copied; or None. And w as it takes it."""
    given, transposed = weight(w)
    options = {"w_transposed": transposed, "keep": not copied, "copied": copied, "axis": axis}
    options["bias"] = 0 if bias is None else bias.dim()
    if name != "all_gather_matmul":
        del options["axis"]
    return calls.find(name, like, group_name, (m, w.shape[1], w.shape[0]), **options), given


def reduced(
    x: torch.Tensor, w: torch.Tensor, group_name: str, copied: bool = False
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """all_reduce(x) @ w and all_reduce(x), that in the heap or not as of `kept`: the all-reduce is a reduce-scatter,
    and a gather beside the product."""
    if x.shape[0] % size_of(group_name):
        report.count(
            "matmul_all_reduce_backward", f"{size_of(group_name)} ranks cannot share its rows evenly"
        )
        return None
    operator, given = _keeping("all_gather_matmul", x, x.shape[0], w, group_name, copied=copied)
    return None if operator is None else _with_gathered(operator, scatter(x, group_name), given)


def feed_forward(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group_name: str,
    activation: str = "",
) -> torch.Tensor | None:
    extents = (x.shape[0] * size_of(group_name), x.shape[1], w1.shape[1], w2.shape[1])
    operator = calls.find("feed_forward", x, group_name, extents, activation=activation)
    if operator is None:
        return None
    y = run(operator, rows(x), rows(w1), rows(w2))
    recipes.learn_block(group_name, calls.taken.entry)
    return y


def attention_operator(name: str, q: torch.Tensor, k: torch.Tensor, group_name: str, **options: Any) -> Any:
    """`name`: "attention" or "attention_backward". `options`: of ops.Attention. It is its own unfused pair: ValueError says why it
    cannot be done."""
    b, h, rows, d = q.shape
    length = options.pop("length")
    extents = (b, h, k.shape[1], rows * size_of(group_name) if length is None else length, d)
    documents = documents_of(options["cu_seqlens"], extents[3], counted=length is None)
    options["cu_seqlens"] = tuple(documents) or None
    options["even"] = True  # the rows are those of sy.shard_rows
    bounded = options["bounded"]  # 0: as many rows as two ranks hold
    options["bounded"] = False if bounded is None else bounded or True
    with unequal_rows(length):
        operator, reason = calls.look_up(name, q, group_name, extents, **options)
    if operator is None:
        raise ValueError(f"{name}: {reason}")
    return operator


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group_name: str, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if 0 in q.shape[:3] and options["length"] is None:
        from ..ops.attention_function import of_no_rows

        return of_no_rows(q, k, v, calls.group_of(group_name, q.device.type))
    operator = attention_operator("attention", q, k, group_name, **options)
    with unequal_rows(options["length"]):
        made = run(operator, q.contiguous(), k.contiguous(), v.contiguous())
    recipes.learn_attention(group_name, calls.taken.entry)
    return made


def attention_backward(
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    group_name: str,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the call with these options."""
    if 0 in q.shape[:3] and options["length"] is None:
        return tuple(map(torch.zeros_like, (q, k, v)))
    options["deterministic"] = torch.are_deterministic_algorithms_enabled() or bool(buckets.generation())
    operator = attention_operator("attention_backward", q, k, group_name, **options)
    made = run(operator, grad, grad_lse, q.contiguous(), k.contiguous(), v.contiguous(), o, lse)
    return tuple(one.contiguous() for one in made)  # which they are not where heads were padded
