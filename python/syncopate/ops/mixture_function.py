"""Mixture of experts, expert parallel: rows of tokens go to the ranks of their experts, through two grouped products, and back.

y = sy.ops.moe(x, topk_ids, topk_weights, w1, w2, group)

rows, handle = sy.ops.dispatch(x, topk_ids, experts, group)     and by its parts: rows of this rank's experts, where
y = sy.ops.combine(rows_made, topk_weights, handle)             handle.begins and handle.counts say
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..call import cache
from ..call.arguments import require_whole
from ..call.autocast import cast_operands, is_any_enabled
from ..call.in_graphs import joins_graphs, refuse_tracing, traced
from ..call.places import require_tensors
from ..group import Group
from ..strategy import Strategy
from ..strategy import given as strategy_given
from . import mixture_nodes
from .differentiable import STRATEGY_REFUSED, recorded, refuse_gradients, wanted
from .mixture import Moe, require_options
from .mixture_handle import Handle
from .mixture_scaled import ScaledMoe, ScaledTensorMoe
from .mixture_scales import kind_of_scales
from .mixture_spec import require_bound
from .mixture_stages import require_operands
from .mixture_tensor import TensorMoe
from .no_elements import of_nothing
from .operator import members_of

MOST = 16  # set-ups that are kept
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of x, but for fp8

#: What of the experts a rank has: whole ones, or columns of all.
KINDS: dict[str, type[Moe]] = {kind.parallel: kind for kind in (Moe, TensorMoe)}
SCALED_KINDS: dict[str, type[Moe]] = {kind.parallel: kind for kind in (ScaledMoe, ScaledTensorMoe)}


_WEIGHTS = {
    "expert": "w1 [E / ranks, H, 2 F] and w2 [E / ranks, F, H]",
    "tensor": "w1 [E, H, 2 F / ranks] and w2 [E, F / ranks, H]",
}


def kind_of(parallel: str, scaled: bool = False) -> type[Moe]:
    if parallel not in KINDS:
        raise ValueError(f"parallel: expected {' or '.join(map(repr, KINDS))}, got {parallel!r}")
    return (SCALED_KINDS if scaled else KINDS)[parallel]


def kept(
    extents: tuple[int, ...], dtype: torch.dtype, group: Group, parallel: str = "expert", **options: Any
) -> Any:
    """The operator of that shape, (T, E, topk, H) and of the whole F, for the current stream, made on first use. Collective then."""
    kind = kind_of(parallel, bool(options.get("scales")))
    if options.get("part") in ("dispatch", "combine"):
        extents = (*extents[:4], group.size)  # no product
    call = (kind, extents, dtype, id(group), *options.items())
    options = {"deadline": cache.deadline, **options}
    made = cache.find(
        "ops.moe", group.device == "cuda", call, lambda: cache.Entry(group, kind(*extents, dtype, group, **options)), MOST
    )  # fmt: skip
    return made.operator


def extents_of(
    x: torch.Tensor,
    ids: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    size: int,
    parallel: str = "expert",
) -> tuple[int, ...]:
    """(T, E, topk, H, F)."""
    kind_of(parallel)
    if x.dim() != 2 or ids.dim() != 2 or w1.dim() != 3 or w2.dim() != 3:
        raise ValueError(
            f"expected x [T, H], topk_ids [T, topk], {_WEIGHTS[parallel]}, got "
            f"{list(x.shape)}, {list(ids.shape)}, {list(w1.shape)} and {list(w2.shape)}"
        )
    experts, inner = (1, size) if parallel == "tensor" else (size, 1)
    return x.shape[0], w1.shape[0] * experts, ids.shape[1], x.shape[1], w2.shape[1] * inner


def require_fit(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    size: int,
    activation: str,
    bound: int | None,
    over: str,
    parallel: str,
    out_dtype: torch.dtype | None = None,
) -> None:
    """Raises ValueError, naming it, for an operand or an option that a call would refuse: of tensors that have no memory, too, as where
    a call is traced."""
    tokens, _, topk, hidden, _ = extents_of(x, ids, w1, w2, size, parallel)
    require_options(activation, bound, over)
    own, inner, routed = w1.shape[0], w2.shape[1], (tokens, topk)
    require_operands(
        {
            "x": (x, (tokens, hidden), (torch.float8_e4m3fn,) if out_dtype else DTYPES),
            "topk_ids": (ids, routed, (torch.int32, torch.int64)),
            "topk_weights": (weights, routed, (torch.float32, out_dtype or x.dtype)),
            "w1": (w1, (own, hidden, 2 * inner), (x.dtype,)),
            "w2": (w2, (own, inner, hidden), (x.dtype,)),
        },
        x.device.type,
    )


@joins_graphs
def moe(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    group: Group | Any | None = None,
    activation: str = "silu",
    bound: int | None = None,
    *,
    over: str = "error",
    parallel: str = "expert",
    scales: Sequence[torch.Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    products: tuple[Any, Any] | None = None,
    strategy: Strategy | str = "auto",
) -> torch.Tensor:
    """y [T, H] of this rank's tokens x [T, H]: the sum over a token's topk experts, in that order and in fp32, of its weight times
    (act(x @ w1[:, :F]) * (x @ w1[:, F:])) @ w2. topk_ids, topk_weights: [T, topk], ids of all experts; w1 [E / ranks, H, 2 F],
    w2 [E / ranks, F, H]: of this rank's, rank r having those from r * E / ranks on. `activation`: "silu", "relu" or "" (none). The
    same routing gives the same bits. T is the same on all ranks: fill up with tokens whose ids are -1, which add nothing. E is a
    multiple of the ranks. dtypes: bf16, fp16, fp32; ids int32 or int64; weights fp32, or x's. What is not contiguous is copied,
    but w1 and w2 of fp8, which are refused.

    `parallel`: "tensor": each rank has its share of all experts' columns instead, w1 [E, H, 2 F / ranks] (its columns of the gates,
    then those of what they gate) and w2 [E, F / ranks, H]. Tokens go to all ranks, and each gets the sum, in fp32 in the order of
    ranks, of what they make of its own, in x's dtype. All rows come to every rank: there is no bound.

    `scales`, of fp8: x, w1 and w2 are float8_e4m3fn, y has `out_dtype`, bf16 (the default) or fp16, and w1 and w2 lie with K last: they
    are the transposes of contiguous [E / ranks, 2 F, H] and [E / ranks, H, F] (`w.transpose(1, 2)` of vLLM's, and what
    torch._scaled_grouped_mm takes). fp32 scales of x, w1 and w2: one for each row of x and column of w, [T], [E / ranks, 2 F] and
    [E / ranks, H]; or one for each 128 elements of a row of x, [T, cdiv(H, 128)], and each 128 x 128 of w, [E / ranks, 2 F / 128,
    cdiv(H, 128)] and [E / ranks, cdiv(H, 128), F / 128]. What the first product makes is fp8 too, with a scale for each 128 elements
    of a row. With `parallel` "tensor" all of E, and of F what a rank has. Without gradients.

    `products`: your own in the places of the two: @triton.jit functions f(a_ptr, w_ptr, expert, row, rows, n, K, N, BLOCK_M, BLOCK_N,
    BLOCK_K), of which each returns a tile [BLOCK_M, BLOCK_N]: the n-th columns, of N, for rows [row, row + rows) of a [., K], which
    are of that expert of this rank; no more than BLOCK_M. The first one activates, too: w1 has 2 N columns. Which rows, and how many, only the device knows;
    waits, where a tile is stored, and at which rank, are the program's, for all counts. What is behind `rows` is undefined, and what a
    tile has there, or behind N columns, is not stored. Without gradients, and not of fp8.

    `bound`: rows that come to a rank at most (default: all that could, ranks * T * topk, as a token may name an expert twice);
    memory is taken by it. `over`: with more, "error" raises ValueError on all ranks ("drop": the last ones add nothing). So
    does an id that names no expert, but for -1. Nothing is ever written beyond. Each expert's rows begin at a multiple of a tile's, so
    that there is memory for as many more (Moe.bytes_ahead). On a GPU a call is not waited for: use an operator, whose
    `check()` tells it of all calls (sy.ops.Moe), or `dispatch`, whose handle's tells it of one.

    `strategy`: as of all_gather_matmul; without gradients then. Unfused the host reads how many rows each expert gets: on GPUs it
    is never chosen, and no CUDA graph holds such a call.

    Collective over `group` (a torch process group; default: the world). The first call with a shape sets it up. Over nodes torch's
    collectives take tokens to all nodes before each one's program, and sums back (mixture_nodes.py): what a node sums is rounded to x's
    dtype, and the bound counts as ever. On GPUs only `dispatch` tells of ids and bounds then (docs/nodes.md).
    """
    how = strategy_given(strategy)
    require_tensors(x=x, topk_ids=topk_ids, topk_weights=topk_weights, w1=w1, w2=w2)
    require_bound(bound)  # of torch's ops 0 is none
    is_fp8 = x.dtype == torch.float8_e4m3fn
    if not is_fp8 and (scales is not None or out_dtype not in (None, x.dtype)):
        raise ValueError(f"scales and out_dtype are of x in {torch.float8_e4m3fn}, got {x.dtype}")
    own = how if products is None else {"products": products, **how}
    routed = (x, topk_ids, topk_weights, w1, w2)
    if torch.compiler.is_compiling():
        refused = {"products": products is not None, "a strategy": bool(how)}
        options = {"activation": activation, "bound": bound or 0, "over": over, "parallel": parallel}
        if is_fp8:
            return traced(
                "moe_scaled", (*routed, list(scales or ())), group, refused, **options, out_dtype=out_dtype
            )
        return traced("moe", routed, group, refused, **options)
    if is_any_enabled():
        x, w1, w2 = cast_operands(x, w1, w2)
        if topk_weights.dtype != torch.float32:  # fp32 ones are taken beside any dtype
            (topk_weights,) = cast_operands(topk_weights)
    given = {"x": x, "topk_weights": topk_weights, "w1": w1, "w2": w2}
    routed = (x, topk_ids, topk_weights, w1, w2)
    members = members_of(group, "cuda" if x.is_cuda else "host")
    if is_fp8:
        refuse_gradients_of_fp8("sy.ops.moe", given, scales)
    if not x.shape[0]:
        return of_no_tokens(*routed, members, parallel, out_dtype)
    if "products" in own:
        refuse_gradients("sy.ops.moe with products of yours", "sy.ops.moe", given, list(given.values()))
    elif names := wanted(given):
        options = {"activation": activation, "bound": bound or 0, "over": over, "parallel": parallel}
        return recorded("moe", members, routed, names, {STRATEGY_REFUSED: bool(own)}, **options)
    if members.nodes > 1:
        options = {"activation": activation, "bound": bound, "over": over, **own}

        def of_node(*given: Any) -> tuple[torch.Tensor]:
            *all_routed, node, of_all = given
            return (moe(*all_routed, node, parallel=parallel, scales=of_all, out_dtype=out_dtype, **options),)

        return mixture_nodes.moe(
            of_node, extents_of, routed, members, parallel, scales, out_dtype, **options
        )[0]
    if is_fp8:
        return of_fp8(*routed, scales, members, activation, bound, over, parallel, out_dtype, **own)
    extents = extents_of(x, topk_ids, w1, w2, members.size, parallel)
    operator = kept(extents, x.dtype, members, parallel, activation=activation, bound=bound, over=over, **own)
    return cache.run(operator.run, *(one.contiguous() for one in routed))[0]


def refuse_gradients_of_fp8(kind: str, given: Mapping[str, torch.Tensor], scales: Any) -> None:
    """RuntimeError where one is asked for, of an operand or of a scale."""
    given = dict(given)
    if isinstance(scales, Sequence):
        given |= dict(zip(("scale_x", "scale_w1", "scale_w2"), scales, strict=False))
    given = {name: one for name, one in given.items() if isinstance(one, torch.Tensor)}
    refuse_gradients(f"{kind} of fp8", "sy.ops.moe of bf16", given, list(given.values()))


def of_no_tokens(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    members: Group,
    parallel: str,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`moe` in `members` of T = 0."""
    extents = extents_of(x, topk_ids, w1, w2, members.size, parallel)
    if members.nodes > 1:
        mixture_nodes.no_tokens(members, "moe", extents[2])
    of_y = out_dtype or (torch.bfloat16 if x.dtype == torch.float8_e4m3fn else x.dtype)
    given = {"x": x, "topk_weights": topk_weights, "w1": w1, "w2": w2}
    dtypes = {"topk_weights": (torch.float32, of_y)}
    return of_nothing("moe", members, extents, given, x.shape, dtype=of_y, dtypes=dtypes, options=parallel)


def of_fp8(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    scales: Sequence[torch.Tensor] | None,
    members: Group,
    activation: str,
    bound: int | None,
    over: str,
    parallel: str,
    out_dtype: torch.dtype | None,
    **own: Any,
) -> torch.Tensor:
    """`moe` of fp8 in `members`."""
    extents = extents_of(x, topk_ids, w1, w2, members.size, parallel)
    operator = kept(
        extents, x.dtype, members, parallel, activation=activation, bound=bound, over=over,
        scales=kind_of_scales(scales, x.shape[0], w1.shape[0], x.shape[1], w2.shape[1]),
        out_dtype=out_dtype or torch.bfloat16, **own,
    )  # fmt: skip
    given = (x.contiguous(), topk_ids.contiguous(), topk_weights.contiguous(), w1, w2)
    return cache.run(operator.run, *given, [one.contiguous() for one in scales])[0]


@joins_graphs
def dispatch(
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    experts: int,
    group: Group | Any | None = None,
    *,
    bound: int | None = None,
    over: str = "error",
) -> tuple[torch.Tensor, Handle]:
    """The rows of x [T, H], one for each of topk_ids [T, topk], at the ranks of their experts: rows [., H], expert by expert, and a
    handle that says where (Handle.begins, Handle.counts), for `combine`. What lies between two experts' rows, as each begins at
    a multiple of a tile's, is undefined, and not read. Arguments and errors as of `moe`."""
    refuse_tracing("sy.ops.dispatch")
    require_tensors(x=x, topk_ids=topk_ids)
    require_whole("experts", experts)
    refuse_gradients("sy.ops.dispatch", "sy.ops.moe", ["x"], [x])
    members = members_of(group, "cuda" if x.is_cuda else "host")
    if x.dim() != 2 or topk_ids.dim() != 2:
        raise ValueError(
            f"expected x [T, H] and topk_ids [T, topk], got {list(x.shape)} and {list(topk_ids.shape)}"
        )
    if members.nodes > 1:
        return mixture_nodes.dispatch(dispatch, x, topk_ids, experts, members, bound=bound, over=over)
    extents = (x.shape[0], experts, topk_ids.shape[1], x.shape[1])
    operator = kept(extents, x.dtype, members, bound=bound, over=over, part="dispatch", weighted=False)
    return cache.run(operator.dispatch, x.contiguous(), topk_ids.contiguous())


@joins_graphs
def combine(rows: torch.Tensor, topk_weights: torch.Tensor | None, handle: Handle) -> torch.Tensor:
    """y [T, H]: rows [., H] as `dispatch` left them, back at the ranks of their tokens, which add each token's in the order of its
    topk in fp32, by topk_weights [T, topk]; None: as they are. Collective."""
    refuse_tracing("sy.ops.combine")
    given = {"rows": rows} if topk_weights is None else {"rows": rows, "topk_weights": topk_weights}
    require_tensors(**given)
    if not isinstance(handle, Handle):
        raise TypeError(f"handle: expected what sy.ops.dispatch gave, got {type(handle).__name__}")
    refuse_gradients("sy.ops.combine", "sy.ops.moe", given, list(given.values()))
    if isinstance(handle, mixture_nodes.HandleOverNodes):
        return mixture_nodes.combine(combine, rows, topk_weights, handle)
    of = handle.operator
    extents = (of.tokens, of.experts, of.topk, of.hidden)
    operator = kept(
        extents, rows.dtype, of.group, bound=of.bound, over=of.over, part="combine", weighted=topk_weights is not None,
        tiling=of.tiling,
    )  # fmt: skip
    routed = None if topk_weights is None else topk_weights.contiguous()
    return cache.run(
        operator.combine,
        rows.contiguous(),
        handle.ids,
        routed,
        handle.position,
        handle.all_counts,
        handle.origin,
    )
