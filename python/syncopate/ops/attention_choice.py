"""Who says how attention is carried out: the caller, what tuning found, or the estimate (C++: tune/choose.hpp)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from ..strategy import PROGRAMS_ON_HOST, Strategy, device_name, shared
from ..strategy.search_hook import search_if_asked
from ..strategy.store_scope import scope

if TYPE_CHECKING:
    from .attention import Attention


def spec_of(op: Attention) -> str:
    kind = "" if op.asked_kind == "auto" else f",kind={op.asked_kind}"
    rows = "" if op.sharding == "contiguous" else f",sharding={op.sharding}"
    extents = f"S={op.s},B={op.b},H={op.h},HKV={op.hkv},D={op.d},causal={int(op.causal)}"
    where = f"ranks={op.group.size},sms={op.group.multiprocessors(PROGRAMS_ON_HOST)}"
    return f"attention:{extents}{kind}{rows},dtype={DTYPE_NAMES[op.dtype]},{where}"


def chosen(
    op: Attention, strategy: Strategy | None, most: int | None, *, looks: bool = True
) -> tuple[Strategy, bool]:
    """The one that is given; else the kind that is chosen, by rank 0 for all, and whether tuning found it, where it `looks` for
    that. Collective then. `most`: as of Attention._set_up."""
    group, kernel = op.group, op.kernel
    op.why = "it was told to"
    if strategy is not None and (strategy.unfused or strategy.kind or op.kind != "auto"):
        return strategy, False
    if strategy is not None and strategy.inner:
        raise ValueError("inner: of a kind that is named, by the strategy or the call")
    device = device_name() if group.device == "cuda" else ""
    # What is found, and the estimate, is of one node.
    known = (
        looks and op.is_usual and strategy is None and group.nodes == 1 and (device or group.device == "host")
    )
    stored = scope(group.device) if known else {}
    with group.calling(op._what):
        if stored:
            search_if_asked(op.spec, group)
        task = kernel.problem.task(
            op.all_rows, op.tiling, kind=op.kind, inner=op.inner, nodes=group.nodes, bounded=most
        )
        found, _, *why = _syncopate.choose_attention(
            task, "gluon" if op.is_gluon else "triton", device, group.device == "cuda",
            unfused=group.process_group is not None and strategy is None, spec=op.spec if stored else "",
            hash=stored.get("kernel", ""), versions=stored.get("versions", ""), machine=group.machine,
        )  # fmt: skip
        found, (measured, op.why) = shared(found, why, group)
    if strategy is not None:
        return replace(strategy, kind=found.kind, inner=found.inner), False
    return found, measured


def take(op: Attention, strategy: Strategy) -> None:
    """What a strategy says of the call itself. Raises ValueError where the call says something else."""
    if strategy.unfused:
        if objection := unfused_objection(op):
            raise ValueError(f"unfused: {objection}")
        op.kind = "all_gather"
    elif strategy.kind and op.kind not in ("auto", strategy.kind):
        raise ValueError(f"kind {op.kind!r}: the strategy says {strategy.kind!r}")
    elif strategy.kind:
        op.kind, op.inner = strategy.kind, strategy.inner or op.inner
    elif strategy.inner and op.inner and strategy.inner != op.inner:
        raise ValueError(f"inner {op.inner}: the strategy says {strategy.inner}")
    else:
        op.inner = strategy.inner or op.inner
    op._require(op.inner)
    op.split, op.parts = strategy.split or op.split, strategy.head_parts or op.parts
    op.strategy = op.kernel.strategy = strategy


def unfused_objection(op: Attention) -> str:
    """Why torch's library does not bring K and V; "" where it may."""
    if op.group.process_group is None:
        return "it takes a torch.distributed process group"
    if op.kind not in ("auto", "all_gather"):
        return f"it gathers K and V, and kind is {op.kind!r}"
    return "it gathers within one node" if op.group.nodes > 1 else ""
