"""sy.fuse: which of the fused kernels a call asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _syncopate
from ..call.arguments import elements_of
from ..call.stage_call import Stage
from ..group import Group
from ..strategy import Strategy
from .chain import ChainKernel
from .chosen import AutoKernel
from .fused import FusedKernel


def _one_each(name: str, given: Any, kernels: int) -> list[Mapping[str, Any]]:
    """A mapping for each kernel; empty ones where nothing is given."""
    mappings = [given] if isinstance(given, Mapping) else list(given or [{}] * kernels)
    for one in mappings:
        if not isinstance(one, Mapping):
            raise TypeError(f"{name}: expected a mapping from parameters, got {type(one).__name__}: {one!r}")
    if len(mappings) != kernels:
        raise ValueError(f"{name}: give one mapping for each of the {kernels} kernels, got {len(mappings)}")
    return mappings


def fuse(
    kernel: Any | Sequence[Any],
    plan: _syncopate.Plan | None = None,
    bind: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
    group: Group | Any | None = None,
    *,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    strategy: Strategy | str | None = None,
    deadline: float = 30.0,
    host_delay: float = 0.0,
    seed: int = 0,
    way: str | None = None,
    over: str | None = None,
) -> FusedKernel:
    """Makes a distributed kernel from a Triton kernel for one GPU, or a stated one (sy.kernel), or a list of them, and a plan.

    `bind`: parameter name → plan tensor, of a parameter that is a tuple, an item: `a_ptrs[0]`; of a list of kernels one of
    each. `group`: a torch process group (default: the world). `strategy`: how transfers go, and what the kernel is made to
    do (Strategy, its fields that are marked); "auto": chosen for each set of arguments, with what the kernels'
    @triton.autotune and @triton.heuristics leave open (auto.AutoKernel). `deadline`: seconds that any wait may last
    before the call fails with the rank, op and chunk that did not come. `host_delay`, `seed`: on the host, seconds by
    which chunks are late at random. `values`: parameter name → the elements of an integer tensor (a sequence, or a
    tensor) that every launch passes, such as the offsets of sequences: what the kernel loads from it is then known. Of
    a list of kernels one mapping each. Launches are held against it: each of them on the host, on a GPU the first one.
    `FusedKernel.stages[i].values` may be changed between calls, to prepare for other elements. A plan with rows in groups, of
    which only the device knows how many they are, takes kernels of which the first one is bound to the rows, the last one to what
    goes back, and each that asks where rows lie to what the counts say of it, "counts.ends" (ragged.RaggedKernel); `over`, of these only: rows beyond the plan's bound are an "error" (None), or left out: "drop".

    Without a plan: several kernels of one GPU that overlap tile by tile (ChainKernel); `bind` names the arrays that they
    share; there is no `strategy`. `way` is of these only: "tiles", "programmatic", "stream", or the fastest one
    (None).
    """
    kernels = list(kernel) if isinstance(kernel, Sequence) else [kernel]
    binds = _one_each("bind", bind, len(kernels))
    known = _one_each("values", values, len(kernels))
    stages = [
        Stage(one, dict(names), {name: elements_of(of) for name, of in elements.items()})
        for one, names, elements in zip(kernels, binds, known, strict=True)
    ]
    if plan is None:
        if strategy is not None:
            raise ValueError(f"strategy: kernels without a plan have a way instead, not {strategy!r}")
        if over is not None:
            raise ValueError(f"over: kernels without a plan have no bound, got {over!r}")
        return ChainKernel(stages, group, way=way, deadline=deadline, host_delay=host_delay, seed=seed)
    _require_plan_and_bound(plan, stages)
    is_ragged = any(tensor in plan.ragged for stage in stages for tensor in stage.bind.values())
    if over is not None and not is_ragged:
        raise ValueError("over: only a plan whose rows come in groups has a bound, bound to a parameter")
    if way is not None:
        raise ValueError(
            "way: only chains have one, kernels without a plan; a plan's kernels have a strategy"
        )
    if strategy == "auto":
        if is_ragged:
            raise ValueError(
                'strategy: "auto" knows no plan with rows in groups: leave it out, or give a Strategy'
            )
        return AutoKernel(stages, plan, group, deadline=deadline, host_delay=host_delay, seed=seed)
    if isinstance(strategy, str):
        raise ValueError(f'strategy: expected a Strategy, "auto" or None, got "{strategy}"')
    _require_own_fields(strategy)
    if is_ragged:
        from .ragged import RaggedKernel  # here: it imports triton, which asks first how kernels run

        return RaggedKernel(
            stages,
            plan,
            group,
            strategy,
            over=over or "error",
            deadline=deadline,
            host_delay=host_delay,
            seed=seed,
        )
    return FusedKernel(stages, plan, group, strategy, deadline=deadline, host_delay=host_delay, seed=seed)


def _require_plan_and_bound(plan: Any, stages: Sequence[Stage]) -> None:
    """Without a bound parameter a kernel would run alone, beside a plan that moves what it does not see."""
    if not isinstance(plan, _syncopate.Plan):
        raise TypeError(f"plan: expected a Plan (sy.plans), got {type(plan).__name__}")
    if any(stage.bind for stage in stages):
        return
    names = ", ".join(name for name, *_ in plan.tensors)
    raise ValueError(
        f"bind: no parameter is bound to a tensor of the plan ({names}): say which one is, as in bind={{'a_ptr': '{plan.tensors[0][0]}'}}"
    )


#: Of a strategy, what is left to choose for a user's own kernel and plan.
OWN_FIELDS = ("kernel_sums", "together", "backend", "engine_blocks")


def _require_own_fields(strategy: Any) -> None:
    if strategy is None:
        return
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy: expected a Strategy, got {type(strategy).__name__}")
    usual = Strategy(kernel="plain" if strategy.kernel == "plain" else "")  # as candidates of a program say
    others = [
        name
        for name in Strategy.__dataclass_fields__
        if name not in OWN_FIELDS and getattr(strategy, name) != getattr(usual, name)
    ]
    if others:
        raise ValueError(
            f"strategy: {', '.join(others)}: of operators alone; of a kernel and a plan of yours {', '.join(OWN_FIELDS)} are left to choose"
        )
