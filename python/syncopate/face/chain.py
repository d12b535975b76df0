"""Kernels of one GPU that overlap tile by tile, with no plan and no transfers:

    block = sy.fuse([up, down], bind=[{"a_ptr": "X", "c_ptr": "H"}, {"a_ptr": "H", "c_ptr": "Y"}])
    block.run([block.call(0, up_grid, x, w1, h, …), block.call(1, down_grid, h, w2, y, …)])

Each kernel waits for the tiles that it reads of what earlier ones write. Which these are follows from the kernels'
footprints. Arrays stay where the user has them.
"""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _syncopate
from ..call.arguments import base_of, is_tensor, launch_key
from ..call.prepared import MOST_PACKED, Prepared
from ..call.stage_call import Call, Stage, TakenCall
from ..call.stated import StatedKernel
from ..group import Group, alone
from ..strategy import Strategy
from .chain_way import WAYS, StreamOrder, awaits_kernel, measure
from .fused import FusedKernel


def plan_of(tensors: Mapping[str, tuple[Sequence[int], str]]) -> _syncopate.Plan:
    """The plan of one rank that holds all of these (shape, dtype) and moves nothing."""
    text = {
        "schema": "syncopate.plan/1",
        "mesh": [["gpu", 1]],
        "tensors": {name: {"shape": list(shape), "dtype": dtype} for name, (shape, dtype) in tensors.items()},
        "initial": [
            {"rank": 0, "tensor": name, "region": [[0, n] for n in shape]}
            for name, (shape, _) in tensors.items()
        ],
        "final": [],
        "ranks": [{"rank": 0, "ops": []}],
    }
    return _syncopate.plan_from_json(json.dumps(text), "<chain>")


class ChainKernel(FusedKernel):
    """Two or more kernels of one GPU as one program. What one kernel writes and another one touches must be bound, to the
    same name and the same array in both; everything else may be.

    A stage starts once every program of the one before it has started, and its tiles wait for the tiles that they read;
    one that overwrites what an earlier stage touches starts when that one has ended. The result is that of the kernels in
    stream order, bit for bit.

    `way`: "tiles" is that; "stream" runs the plain kernels in stream order; "programmatic" too, but a stated kernel that
    has AFTER_KERNEL starts beside the one before it, and awaits its end; None, the default, measures them on a GPU with the first call of each
    set of arguments and takes the fastest one, with a warning where that is stream order. `ways` and `messages` say
    which and why, by set of arguments.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        group: Group | None = None,
        *,
        way: str | None = None,
        **timing: Any,
    ) -> None:
        if len(stages) < 2:
            raise ValueError("without a plan there are at least two kernels, for tiles to wait between")
        if way is not None and way not in WAYS:
            raise ValueError(f"way: {way!r}; there are {', '.join(WAYS)}")
        super().__init__(stages, plan_of({}), group, Strategy(), **timing)
        self._timing["in_place"] = True
        self._checked: set[tuple] = set()
        self._way = way
        self._chosen: dict[int, str] = {}  # by prepared program
        self._streams: dict[tuple[int, str], StreamOrder] = {}  # by prepared program and way
        self.messages: list[str] = []

    @property
    def ways(self) -> list[str]:
        """How each set of arguments runs, in the order of `prepared`."""
        return [self._chosen.get(id(one), "tiles") for one in self.prepared]

    def _run(self, calls: Sequence[Call]) -> None:
        prepared, items = self._find(calls)
        self._check_places(prepared, items)
        key = tuple(launch_key(value) for given in items for value in given.values())
        way = self._chosen.get(id(prepared))
        if way is None:
            self._require_early_inputs(calls)
            way = self._chosen[id(prepared)] = self._choose(prepared, calls, items, key)
        if way in ("stream", "programmatic"):
            self._streams[id(prepared), way].launch(key, items)
        else:
            prepared.launch(key, lambda: items)

    def close(self) -> None:
        super().close()
        self._chosen.clear()
        self._checked.clear()
        self._streams.clear()

    def _require_early_inputs(self, calls: Sequence[Call]) -> None:
        """What a stage reads before its waits is nothing that an earlier stage may write."""
        for index, (stage, call) in enumerate(zip(self.stages, calls, strict=True)):
            early = stage.kernel.early(call.arguments) if isinstance(stage.kernel, StatedKernel) else []
            for name in early:
                tensor = stage.bind.get(name)
                for before, other in enumerate(self.stages[:index]):
                    for parameter, theirs in other.bind.items():
                        reads_only = isinstance(other.kernel, StatedKernel) and not other.kernel.may_write(
                            parameter
                        )
                        if tensor is not None and theirs == tensor and not reads_only:
                            raise ValueError(
                                f"{name} of stage {index} is read before the stage waits, and stage {before} may write "
                                f"{tensor} ({parameter}): let it be read after the wait"
                            )

    def _choose(
        self, prepared: Prepared, calls: Sequence[Call], items: Sequence[Mapping[str, Any]], key: Any
    ) -> str:
        if self.group.device != "cuda" or self._way == "tiles":
            return "tiles"
        in_order = self._make_streams(prepared, calls, items)
        if self._way in in_order:
            return self._way
        if not prepared.artifact.repeatable:
            self._say(
                'its calls overwrite their own input, so that nothing can be measured: stream order. way="tiles" overlaps'
            )
            return "stream"
        ways = {"tiles": lambda: prepared.launch(key, lambda: items)}
        for name, one in in_order.items():
            ways[name] = lambda one=one: one.launch(key, items)
        times = measure(ways)
        way = _syncopate.fastest_way(times)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        if way == "stream":
            self._say(
                f"tile by tile it takes {medians['tiles']:.1f} µs, in stream order {medians['stream']:.1f} µs: stream order"
            )
        return way

    def _make_streams(
        self, prepared: Prepared, calls: Sequence[Call], items: Sequence[Mapping[str, Any]]
    ) -> dict[str, StreamOrder]:
        """The kernels one after another, by way: the one that was asked for, or each that there is."""
        kernels = [stage.kernel for stage in self.stages]
        grids = [stage.grid for stage in prepared.stages]
        options = [call.options for call in calls]
        made = {}
        if self._way != "programmatic":
            made["stream"] = StreamOrder(kernels, grids, items, options)
        if self._way != "stream" and any(map(awaits_kernel, kernels[1:])):
            made["programmatic"] = StreamOrder(kernels, grids, items, options, programmatic=True)
        if not made:
            raise ValueError(
                "programmatic: no kernel but the first can await the one before it: state one that has AFTER_KERNEL"
            )
        for name, one in made.items():
            self._streams[id(prepared), name] = one
        return made

    def _say(self, what: str) -> None:
        names = " → ".join(text.name for text in self._texts["cuda"])
        self.messages.append(f"chain {names}: {what}")
        warnings.warn(f"syncopate: {self.messages[-1]}", stacklevel=5)

    def _check_places(self, prepared: Prepared, items: Sequence[Mapping[str, Any]]) -> None:
        """Arrays stay where they are: they only have to be what the names say."""
        places = (base_of(v).data_ptr() for given in items for v in given.values() if is_tensor(v))
        key = id(prepared), *places  # of one program all shapes and strides are the same
        if key not in self._checked:
            if len(self._checked) >= MOST_PACKED:
                self._checked.clear()
            self._check_arrays(items, [set(names) for names in prepared.artifact.written])
            self._checked.add(key)

    def _check_arrays(self, items: Sequence[Mapping[str, Any]], written: Sequence[set[str]]) -> None:
        """A name is one array, and no two stages share memory in any other way, unless both only read it. `written`: by
        stage, the parameters to which it writes."""
        places: dict[str, tuple[int, str]] = {}
        used: list[tuple[int, int, int, str | None, bool, str]] = []
        for index, (stage, given) in enumerate(zip(self.stages, items, strict=True)):
            for parameter, value in given.items():
                if not is_tensor(value):
                    continue
                base, name = base_of(value), stage.bind.get(parameter)
                where = f"{parameter} of stage {index}"
                begin = base.data_ptr()
                spans = ((n - 1) * s for n, s in zip(base.shape, base.stride(), strict=True))
                end = begin + base.element_size() * (1 + sum(spans))
                if name is not None and places.setdefault(name, (begin, where))[0] != begin:
                    raise ValueError(f"{where} and {places[name][1]} are bound to {name}, and are two arrays")
                used.append((begin, end, index, name, parameter in written[index], where))
        used.sort(key=lambda one: one[0])
        for at, (_, end, stage, name, writes, where) in enumerate(used):
            for other_begin, _, other_stage, other_name, other_writes, other_where in used[at + 1 :]:
                if other_begin >= end:
                    break
                if not writes and not other_writes:
                    continue
                if stage != other_stage and (name is None or name != other_name):
                    raise ValueError(
                        f"{where} and {other_where} share memory: bind both to one name, so that tiles wait for it"
                    )

    def _prepare(self, taken: Sequence[TakenCall]) -> Prepared:
        tensors: dict[str, tuple[list[int], str]] = {}
        for index, (stage, one) in enumerate(zip(self.stages, taken, strict=True)):
            for parameter, name in stage.bind.items():
                if parameter not in one.tensors:
                    raise ValueError(f"bind: {parameter} is not a tensor parameter of stage {index}")
                shape, _, dtype, _ = one.tensors[parameter]
                if 0 in shape:
                    raise ValueError(
                        f"{parameter} of stage {index}: its shape is {shape}, so that it has no elements"
                    )
                if not base_of(one.items[parameter]).is_contiguous():
                    raise ValueError(
                        f"{parameter}: it is bound, so its elements must follow each other without gaps"
                    )
                if tensors.setdefault(name, (shape, dtype)) != (shape, dtype):
                    raise ValueError(
                        f"{parameter} is {shape} of {dtype}, and {name} is {tensors[name][0]} of {tensors[name][1]}"
                    )
        self.plan = plan_of(tensors)
        if self.group is None:
            cuda = any(base_of(one.items[name]).is_cuda for one in taken for name in one.tensors)
            self.group = alone("cuda" if cuda else "host")
        return super()._prepare(taken)

    def _bind_to_plan(self, index: int, one: TakenCall, group: Group, device: str) -> None:
        """Arrays are taken as they are."""
