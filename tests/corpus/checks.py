"""What is checked of each case: the kernel's result against torch, its footprints against the addresses that it touches,
its tile space, and that it fuses, as a consumer and as a producer, on two host ranks (three, in a sweep)."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import syncopate as sy
import torch
from syncopate import debug, ranks
from syncopate.call.arguments import DTYPE_NAMES, base_of, elements_of, function_of, is_descriptor, is_tensor
from syncopate.call.places import shard_box
from syncopate.call.tuples import flat, nested
from syncopate.group import of_folder
from syncopate.host import interpreter

from .cases import REGISTRY, Case

SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))
RANKS = 3 if SWEEP else 2


class Wrong(AssertionError):
    pass


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def full_arguments(case: Case) -> dict[str, Any]:
    """The arguments with defaults of the signature filled in."""
    import inspect

    bound = inspect.signature(function_of(case.kernel)).bind(**case.args)
    bound.apply_defaults()
    return dict(bound.arguments)


def values_of(case: Case) -> dict[str, list[int]]:
    return {name: elements_of(flat(case.args)[name]) for name in case.values}


def differ(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> str:
    """How `got` is off; empty when it is not. NaNs must be at the same places."""
    if tuple(got.shape) != tuple(wanted.shape):
        return f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    holes = wanted.isnan() if wanted.is_floating_point() else torch.zeros_like(wanted, dtype=torch.bool)
    if got.is_floating_point() and not torch.equal(got.isnan(), holes):
        return f"{int((got.isnan() != holes).sum())} elements are NaN that should not, or the reverse"
    a, b = got[~holes].double(), wanted[~holes].double()
    if not a.numel():
        return ""
    off = (a - b).abs().max().item()
    limit = tolerance * max(1e-30, b.abs().max().item())
    return "" if off <= limit else f"off by {off:.3g}, at most {limit:.3g} allowed"


def check_result(make: Callable[[int], Case]) -> None:
    case = alone(make, 0)
    for name, wanted in case.expected.items():
        what = differ(base_of(case.args[name]), wanted, case.tolerance)
        expect(not what, f"{name}: {what}")
    for got, wanted in case.outputs:
        what = differ(got, wanted, case.tolerance)
        expect(not what, what)


@functools.cache
def alone(make: Callable[[int], Case], seed: int) -> Case:
    """The case of a seed after the unmodified kernel; nobody changes it."""
    case = make(seed)
    interpreter.launch(case.kernel, (case.grid + (1, 1, 1))[:3], full_arguments(case))
    return case


def check_footprint(make: Callable[[int], Case]) -> None:
    """Never smaller than what is touched; and equal to it, unless the front end says that it may be larger and the case
    why."""
    case = make(0)
    arguments = full_arguments(case)
    if case.refused:
        try:
            debug.analyse(case.kernel, case.grid, arguments, case.values)
        except sy._syncopate.SyncopateError as error:
            expect(case.refused in str(error), f"the diagnostic is '{error}', expected '{case.refused}'")
            return
        raise Wrong(f"no diagnostic; expected '{case.refused}'")
    analysis = debug.analyse(case.kernel, case.grid, arguments, case.values)
    touches, places = debug.record(case.kernel, case.grid, arguments), debug.Places(arguments)
    out = debug.outside(touches, places, analysis)
    expect(not out, "unsound: " + "; ".join(map(str, out[:3])))
    marked = {
        (program, write, name)
        for program, _, _, reads, writes in analysis["tiles"]
        for write, names in ((False, reads), (True, writes))
        for name in names
    }
    names = sorted({name for _, _, name in marked})
    expect(
        bool(marked) == bool(case.inexact), f"said to be inexact: {names}; expected: {case.inexact or 'none'}"
    )
    expect_equal(touches, places, analysis, marked)


def expect_equal(touches: list, places: debug.Places, analysis: dict, marked: set) -> None:
    touched: dict[tuple, Any] = {}
    for touch in touches:
        for name, indices in places.elements(touch.addresses).items():
            key = (touch.program, touch.write, name)
            if key not in touched:
                touched[key] = places.mask(name, [])
            touched[key][indices[indices >= 0]] = True
    for (program, write), boxes in debug.footprints_by_program(analysis).items():
        for name, parts in boxes.items():
            if (program, write, name) in marked:
                continue
            held = places.mask(name, parts)
            real = touched.get((program, write, name))
            extra = held if real is None else held & ~real
            if extra.any():
                first = places.coordinates(name, extra.nonzero()[0][:1])[0]
                raise Wrong(
                    f"inexact: program {program} never {'stores to' if write else 'loads'} {name}{list(first)} and "
                    f"{int(extra.sum()) - 1} more of {int(held.sum())} elements in {parts}"
                )


def check_space(make: Callable[[int], Case]) -> None:
    case = make(0)
    analysis = debug.analyse(case.kernel, case.grid, full_arguments(case), case.values)
    found = {name: count for name, count, _ in analysis["axes"] if count > 1}  # a whole row is no choice
    names, counts = list(found), tuple(found.values())
    if isinstance(case.axes, dict):
        expect(names == list(case.axes), f"tile space {found}, expected {case.axes}")
    wanted = case.axes.values() if isinstance(case.axes, dict) else case.axes
    expect(counts == tuple(wanted), f"tile space {found}, expected {case.axes}")
    expect(
        analysis["reduction"] == case.reduction,
        f"the reduction loop is over {analysis['reduction']}, expected {case.reduction}",
    )


def check_grid(make: Callable[[int], Case]) -> None:
    """The launch grid, not given: that of the case, or an error that asks for it."""
    case = make(0)
    try:
        analysis = debug.analyse(case.kernel, None, full_arguments(case), case.values)
    except sy._syncopate.SyncopateError as error:
        expect("--grid" in str(error), f"the diagnostic is '{error}', expected one that asks for --grid")
        return
    found, wanted = analysis["grid"], (case.grid + (1, 1, 1))[:3]
    if found == wanted:
        return
    # A launch may have programs to spare, which store nothing.
    given = debug.analyse(case.kernel, case.grid, full_arguments(case), case.values)
    for program, _, writes, *_ in given["tiles"]:
        at = (program % wanted[0], program // wanted[0] % wanted[1], program // wanted[0] // wanted[1])
        spare = any(a >= n for a, n in zip(at, found, strict=True))
        expect(spare == (not writes), f"the grid is {found}, expected {wanted}")


# ---------------------------------------------------------------------------------------------------------------------
# Fusing


def tensor_of(name: str, value: Any) -> sy.Tensor:
    base = base_of(value)
    return sy.Tensor(name, tuple(base.shape), DTYPE_NAMES[base.dtype])


def shard_of(value: Any, box: list[tuple[int, int]] | None) -> Any:
    """The part of a tensor or descriptor that a box holds."""
    base = base_of(value)
    part = base[tuple(slice(*bounds) for bounds in box)] if box else base[:0]
    part = part.contiguous()
    if not is_descriptor(value):
        return part
    return type(value)(part, list(part.shape), list(part.stride()), list(value.block_shape))


def gather_plan(case: Case, split: int = 2) -> tuple[Any, dict[str, str]]:
    ((parameter, axis),) = case.gather.items()
    tensor = tensor_of("A", flat(case.args)[parameter])
    return sy.plans.all_gather(sy.plans.mesh_of(RANKS), tensor, axis=axis, split=split), {parameter: "A"}


def scatter_plan(case: Case, split: int = 2) -> tuple[Any, dict[str, str]]:
    ((parameter, axis),) = case.scatter.items()
    tensor = tensor_of("C", flat(case.args)[parameter])
    return sy.plans.push_reduce(sy.plans.mesh_of(RANKS), tensor, axis=axis, split=split), {parameter: "C"}


def check_gather(make: Callable[[int], Case]) -> None:
    """Each rank holds a part of one input; every output is that of the unfused kernel on the whole, bit for bit."""
    if make(0).unfusable:
        return check_refusal(make)
    whole = alone(make, 0)

    def work(place: ranks.Place) -> None:
        torch.set_num_threads(1)
        case = make(0)
        plan, bind = gather_plan(case)
        group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
        fused = sy.fuse(
            case.kernel,
            plan,
            bind=bind,
            group=group,
            values=values_of(case),
            host_delay=1e-3,
            seed=place.rank,
            deadline=30,
        )
        arguments = flat(full_arguments(case))
        for parameter, tensor in bind.items():
            arguments[parameter] = shard_of(arguments[parameter], shard_box(plan, place.rank, tensor))
        fused[case.grid](**nested(arguments))
        for name, wanted in outputs_of(whole).items():
            what = differ(base_of(arguments[name]), base_of(wanted), 0.0)
            expect(not what, f"rank {place.rank}, {name}: {what}")
        fused.close()

    ranks.run(RANKS, work, timeout=1800)


def check_refusal(make: Callable[[int], Case]) -> None:
    case = make(0)
    try:
        emit(make, Path("/nonexistent"))
    except sy._syncopate.SyncopateError as error:
        expect(case.unfusable in str(error), f"the diagnostic is '{error}', expected '{case.unfusable}'")
        return
    raise Wrong(f"no diagnostic; expected '{case.unfusable}'")


def check_scatter(make: Callable[[int], Case]) -> None:
    """Each rank makes an output from data of its own; its shard of the sum is left on each, added up in rank order."""
    apart = [alone(make, seed) for seed in range(RANKS)]

    def work(place: ranks.Place) -> None:
        torch.set_num_threads(1)
        case = make(place.rank)
        plan, bind = scatter_plan(case)
        group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
        fused = sy.fuse(
            case.kernel,
            plan,
            bind=bind,
            group=group,
            values=values_of(case),
            host_delay=1e-3,
            seed=place.rank,
            deadline=30,
        )
        arguments = flat(full_arguments(case))
        fused[case.grid](**nested(arguments))
        for name in outputs_of(case):
            got, wanted = base_of(arguments[name]), base_of(outputs_of(apart[place.rank])[name])
            if name in bind:
                parts = [base_of(outputs_of(one)[name]) for one in apart]
                total = parts[0].float()
                for part in parts[1:]:
                    total = total + part.float()
                ((_, box, _),) = merged(plan.final(place.rank))
                where = tuple(slice(*bounds) for bounds in box)
                got, wanted = got[where], total.to(parts[0].dtype)[where]
            what = differ(got, wanted, 0.0)
            expect(not what, f"rank {place.rank}, {name}: {what}")
        fused.close()

    ranks.run(RANKS, work, timeout=1800)


def merged(final: list[tuple]) -> list[tuple]:
    """The chunks of one shard as one box."""
    boxes = [box for _, box, _ in final]
    around = [(min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0]))]
    return [(final[0][0], around, final[0][2])]


def outputs_of(case: Case) -> dict[str, Any]:
    """What the case says of: by parameter, or item of one."""
    own = [id(got) for got, _ in case.outputs]
    return {n: v for n, v in flat(case.args).items() if n in case.expected or id(v) in own}


def emit(make: Callable[[int], Case], folder: Path) -> list[dict[str, Any]]:
    """Writes the fused forms of a case as source, and says how they are to be compiled for a GPU: each, in a sweep; else
    one of them, in turn."""
    case = make(0)
    jobs = []
    for form, wanted, plan_of in (
        ("gather", case.gather, gather_plan),
        ("scatter", case.scatter, scatter_plan),
    ):
        if not wanted:
            continue
        plan, bind = plan_of(case)
        arguments = flat(full_arguments(case))
        function = function_of(case.kernel)
        tensors = {n: debug.describe(v) for n, v in arguments.items() if is_tensor(v)}
        for parameter in bind:
            tensors[parameter] = (tensors[parameter][0], [], *tensors[parameter][2:])
        file = function.__code__.co_filename
        artifact = sy._syncopate.fuse(
            [(
                Path(file).read_text(), file, function.__name__, bind,
                {n: debug.scalar(v) for n, v in arguments.items() if not is_tensor(v)},
                tensors, (case.grid + (1, 1, 1))[:3],
            )],
            plan, "cuda", 132, values=[values_of(case)],
        )  # fmt: skip
        path = folder / f"{function.__name__}_{form}.py"
        path.write_text(artifact.kernel_source)
        jobs.append(
            {
                "form": form,
                "path": str(path),
                "function": function.__name__,
                "arguments": nested({n: described(v) for n, v in arguments.items()}),
                "replace": {n: v for n, v in (case.compile or {}).items()},
            }
        )
    return jobs if SWEEP else jobs[list(REGISTRY.values()).index(make) % 2 :][:1] or jobs


def described(value: Any) -> Any:
    """An argument for the compiling process: a scalar, or the kind of a tensor."""
    if is_tensor(value):
        kind = DTYPE_NAMES[base_of(value).dtype].replace("int", "i")
        if is_descriptor(value):
            return {"descriptor": [kind, [int(n) for n in value.block_shape]]}
        return {"pointer": kind}
    value = debug.scalar(value)
    return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value
