"""Users' grouped kernels compiled ahead: fused with their plan for a device that need not be there, and written as a bundle, which a
process without Python or Triton runs (docs/deployment.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from .. import _syncopate
from ..call.arguments import DTYPES, base_of, is_descriptor, is_tensor
from ..call.prepared import descriptor_like
from ..call.stage_call import Call, TakenCall
from ..strategy import PROGRAMS_ON_HOST
from .ragged_made import USERS, given_of, made_for

if TYPE_CHECKING:
    from .ragged import RaggedKernel

HOST = "host"
META = torch.device("meta")


def write(fused: RaggedKernel, file: str, calls: Sequence[Call], arch: str, multiprocessors: int) -> None:
    """See RaggedKernel.compile_ahead."""
    if arch != HOST and not re.fullmatch(r"sm_\d+a?", arch):
        raise ValueError(f"arch: expected {HOST!r}, or a GPU's such as 'sm_90', got {arch!r}")
    taken = fused._taken(calls)
    for index, one in enumerate(taken):
        fused._bind_to_plan(index, one, SimpleNamespace(ordinal=0), "ahead")
    texts = fused._texts_on("cuda")
    stages = fused._stage_tuples(taken, texts)
    programs = PROGRAMS_ON_HOST if arch == HOST else multiprocessors
    sizes = (multiprocessors, programs, fused.strategy)
    text, sections = _syncopate.bundle.grouped(
        stages, fused.plan, arch, *sizes, fused.over == "drop", _names_of(fused, taken)
    )
    manifest = json.loads(text)
    if arch != HOST:
        from ..command.compile import made_by

        with _compiling_for(arch):
            manifest["kernels"], manifest["grouped"]["kernels"], cubins = _compiled(
                fused, taken, texts, stages, multiprocessors
            )
        sections = sections | cubins
        manifest["made_by"] += f", {made_by()}"
    _syncopate.bundle.write(json.dumps(manifest), sections, str(file))


def _names_of(fused: RaggedKernel, taken: Sequence[TakenCall]) -> list[dict[str, str]]:
    """By kernel and parameter, the name of the call's tensor where it is not the parameter's: one tensor has one name, and two of
    different kernels have two."""
    known: dict[str, torch.Tensor] = {}
    reserved, made = set(fused._whole), []
    for index, (stage, one) in enumerate(zip(fused.stages, taken, strict=True)):
        names = {}
        for parameter in one.tensors:
            if parameter in stage.bind:
                continue
            value = base_of(one.items[parameter])
            if not value.is_contiguous():
                raise ValueError(
                    f"{parameter}: tensors of a bundle's calls are contiguous; its strides are {value.stride()}"
                )
            name = next((name for name, other in known.items() if _same(value, other)), None)
            if name is None:
                name = parameter
                while name in known or name in reserved:
                    name = f"{name}_{index}"
            known[name] = value
            if name != parameter:
                names[parameter] = name
        made.append(names)
    return made


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    has_memory = one.device.type != "meta" and one.numel() > 0
    return (
        has_memory
        and one.data_ptr() == other.data_ptr()
        and (one.shape, one.dtype) == (other.shape, other.dtype)
    )


@contextmanager
def _compiling_for(arch: str) -> Iterator[None]:
    """Triton compiles for what its driver says; a process that has a GPU goes on with that."""
    from triton.runtime import driver

    from ..command.compile import NoGpu

    try:
        before = driver.active
    except RuntimeError:  # there is no GPU, so no driver either
        before = None
    driver.set_active(NoGpu(arch))
    try:
        yield
    finally:
        if before is not None:  # else there is none that Triton could go back to
            driver.set_active(before)


def _compiled(
    fused: RaggedKernel,
    taken: Sequence[TakenCall],
    texts: Sequence[Any],
    stages: Sequence[Any],
    multiprocessors: int,
) -> tuple[list[dict[str, Any]], list[int], dict[str, bytes]]:
    """The kernels of all stages, which of them each stage has, and their code."""
    from ..command.compile import FAR_ROWS, Kernels
    from ..command.compile_mixture import FAR_APART, SOME_RANK
    from ..kernels import ragged as library

    artifact, of = _syncopate.fuse_ragged(
        stages, fused.plan, "cuda", multiprocessors, fused.strategy, multiprocessors
    )
    emitted = artifact.stages[USERS : USERS + len(texts)]
    users = [text.load(stage) for text, stage in zip(texts, emitted, strict=True)]
    own = [*library.STAGES, *users, *(library.BACK if of["back"] else ())]
    by_row = artifact.schedule.tensors_by_row
    heap = {
        name: torch.empty(
            FAR_ROWS if name in by_row else shape[0], *shape[1:], dtype=DTYPES[dtype], device=META
        )
        for name, shape, dtype in artifact.plan.tensors
    }
    words = torch.empty(64, dtype=torch.int32, device=META)
    op = SimpleNamespace(rank=SOME_RANK, heap=SimpleNamespace(stride=0), table_tensor_of=lambda _: words)
    prepared = SimpleNamespace(op=op, tensors=heap)
    # Of memory that is there: not all of it begins at a multiple of 16 bytes.
    made = made_for(prepared, of, torch.device("cpu"), ("ahead", 0))
    made.strides = dict.fromkeys(heap, FAR_APART)
    items = [{name: _nowhere(value) for name, value in one.items.items()} for one in taken]
    kernels, numbers = Kernels(), []
    for index, (kernel, given) in enumerate(
        zip(own, given_of(prepared, made, items, ahead=True), strict=True)
    ):
        user = index - USERS
        options: Mapping[str, Any] = library.options_of(kernel, of["apart"])
        full = dict(given)
        if 0 <= user < len(users):
            options = taken[user].options
            for parameter, tensor in artifact.stages[index].bindings.items():
                if of["parameters"][index].get(parameter) is not None:
                    continue  # the call's own
                value = full[parameter]
                full[parameter] = (
                    descriptor_like(value, heap[tensor]) if is_descriptor(value) else heap[tensor]
                )
        arguments = full | {"sy_schedule": words, "sy_control": words}
        numbers.append(kernels.compile(kernel, arguments, artifact.grid_of(index, 0), options))
    return kernels.entries, numbers, kernels.sections


def _nowhere(value: Any) -> Any:
    """The same tensor without memory: a bundle's are at multiples of 16 bytes."""
    if not is_tensor(value):
        return value
    base = base_of(value)
    empty = torch.empty(base.shape, dtype=base.dtype, device=META)
    return descriptor_like(value, empty) if is_descriptor(value) else empty
