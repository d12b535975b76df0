"""A user's own kernel over rows that come in groups, of which only the device knows how many they are (ops/ragged.hpp).

    fused = sy.fuse(grouped, plan, bind={"a_ptr": "A", "offsets_ptr": "counts"}, over="drop")
    fused[grid](a, b, c, counts, N, K, …)

`a` has this rank's rows, expert by expert; `counts` [experts] says on the device how many each expert gets. The kernel is given
the rows that came for this rank's experts, and, in the place of `counts`, offsets [experts / ranks + 1].
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from .. import _syncopate
from ..call.arguments import base_of, is_descriptor, launch_key
from ..call.places import check_place
from ..call.prepared import Prepared
from ..call.stage_call import Call, Stage, TakenCall, launch_of
from ..call.stated import StatedKernel
from ..group import Group
from ..kernels import ragged as kernels
from ..strategy import PROGRAMS_ON_HOST
from .fused import FusedKernel

OVER = ("error", "drop")
_USERS = 3  # the stage that the user's kernel is


@dataclass
class _Made:
    """What a program's stages are given beside the user's arguments, on the device."""

    of: dict[str, Any]
    place: tuple[str, int]  # the device, and which of them
    scratch: dict[str, torch.Tensor]
    strides: dict[str, int]


class RaggedKernel(FusedKernel):
    """Launches like its kernel: `fused[grid](a, b, c, counts, …)`. `over`: what becomes of rows beyond the plan's bound, the
    last ones that come to a rank: an "error" on all ranks, or they are left out ("drop"). On the host each call tells it, of a
    GPU `check` does, of all calls, whose results lack these rows meanwhile. `offsets`: of the last call where each expert's rows
    begin, and the end. How many rows a rank gives is its own: one that gives too many raises alone, and the others when the
    deadline is over."""

    def __init__(
        self, stages: Sequence[Stage], plan: Any, group: Any, strategy: Any, *, over: str, **timing: Any
    ) -> None:
        if over not in OVER:
            raise ValueError(f"over: expected {' or '.join(map(repr, OVER))}, got {over!r}")
        if len(stages) != 1 or isinstance(stages[0].kernel, StatedKernel):
            raise ValueError(
                "a plan with rows in groups, which only a call counts, takes one kernel in Triton"
            )
        if stages[0].values:
            raise ValueError(
                f"values: {', '.join(stages[0].values)}: not of a plan with rows in groups, which only a call counts. "
                "Where the host knows the counts, fuse plan.counted(counts)"
            )
        super().__init__(stages, plan, group, strategy, **timing)
        self.over = over
        self._made: dict[Prepared, _Made] = {}
        self._ended_made: list[_Made] = []
        self._ragged, self._made_by_kernels = frozenset(plan.ragged), frozenset(plan.produced)
        self._whole = {name: (list(shape), dtype) for name, shape, dtype in plan.tensors}
        self._last: _Made | None = None

    @property
    def offsets(self) -> torch.Tensor:
        """[experts / ranks + 1], on the device: the next call's as soon as there is one."""
        if self._last is None:
            raise ValueError("offsets: there was no call")
        return self._last.scratch["offsets_ptr"]

    def run(self, calls: Sequence[Call]) -> None:
        prepared, (items,) = self._find(calls)
        made = self._made[prepared]
        self._require_rows(items, *made.place)
        prepared.require_there()
        # All else of it is what is prepared.
        key = (*map(launch_key, items.values()), items[made.of["reads"]].shape[0])
        try:
            prepared.launch(key, lambda: self._given(prepared, made, items))
        except ValueError:
            if not self.drops(prepared) or not prepared.op.had_been_told:
                raise
            self.run(calls)  # what ended it was no news to this rank
            return
        self._last = made
        if not prepared.is_on_gpu:
            self._judge(made)

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired, and ValueError, on all ranks, where in calls since the last
        check counts were none, or rows over the bound came and that is an error. Synchronises the device."""
        try:
            super().check()
        except _syncopate.SyncopateError:
            for made in self._made.values():
                made.scratch["seen_ptr"].zero_()  # what a failed call has seen, not all ranks have
            raise
        for made in self._made.values():
            seen = made.scratch["seen_ptr"]
            if seen.is_cuda:  # calls of other streams have added to it
                torch.cuda.synchronize(seen.device)
            self._judge(made)

    def reset(self) -> None:
        super().reset()
        for made in self._made.values():
            made.scratch["seen_ptr"].zero_()

    def drops(self, prepared: Prepared) -> bool:
        dropped = super().drops(prepared)
        if dropped and (made := self._made.pop(prepared, None)) is not None and prepared.is_on_gpu:
            self._ended_made.append(made)  # graphs may replay its kernels, which write to it
        return dropped

    def close(self) -> None:
        super().close()
        self._made.clear()
        self._ended_made.clear()
        self._last = None

    def shard(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        raise ValueError(f"{tensor}: where its rows lie only a call knows; they are not written in place")

    def result(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """The rows that came for this rank's experts, where they lie until the next call: see `offsets`."""
        kept = {name for name, *_ in self.plan.final(prepared.op.rank)}
        if tensor != self._made[prepared].of["rows"] or tensor not in kept:
            raise ValueError(f"{tensor}: the plan does not say that it is kept (final)")
        return prepared.tensors[tensor]

    def _judge(self, made: _Made) -> None:
        """Of all calls since it was last asked; the same on all ranks."""
        over, wrong, *calls = made.scratch["seen_ptr"].tolist()
        if calls[1] and wrong <= 0:  # the sum over calls has run over
            wrong = 2**31 - 1
        made.scratch["seen_ptr"].zero_()
        said = []
        if wrong or calls[1]:
            said.append(
                f"{made.of['counts']}: counts below 0, or of more rows than were given: {wrong} in all"
            )
        if over and self.over == "error":
            bound = made.of["bound"]
            said.append(
                f"bound: as many as {over} rows more than {bound} come to a rank: give the plan a bound of {bound + over}, "
                'or over="drop"'
            )
        if said:
            raise ValueError("; ".join(said))

    def _find(self, calls: Sequence[Call]) -> tuple[Prepared, list[dict[str, Any]]]:
        """How many rows a rank gives is not what is compiled for."""
        if len(calls) != 1:
            raise TypeError(f"the program has 1 stage: give a Call for it, got {len(calls)}")
        one = launch_of(self.stages[0], calls[0])
        for parameter, tensor in self.stages[0].bind.items():
            if tensor in self._ragged and parameter in one.tensors:
                shape, _, dtype, block = one.tensors[parameter]
                one.tensors[parameter] = ([0, *shape[1:]], [], dtype, block)
        prepared = self._prepared.get(one.key)
        if prepared is not None and prepared.op.retired:
            self.drops(prepared)
            prepared = None
        if prepared is None:
            prepared = self._prepared[one.key] = self._prepare([one])
        return prepared, [one.items]

    def _bind_to_plan(self, index: int, one: TakenCall, group: Group, device: str) -> None:
        """That the call brings rows and counts as the plan has them; `run` looks at each call's."""
        for parameter, tensor in self.stages[index].bind.items():
            if tensor not in self._whole:
                raise ValueError(f"bind: the plan has no tensor {tensor}; it has {', '.join(self._whole)}")
            if parameter not in one.tensors:
                name = self._texts["cuda"][index].name
                raise ValueError(
                    f"bind: {parameter} is not a tensor parameter of {name}; it has {', '.join(one.tensors)}"
                )
        self._require_rows(one.items, device, group.ordinal)

    def _require_rows(self, items: Mapping[str, Any], device: str, ordinal: int) -> None:
        bind = self.stages[0].bind
        of = {tensor: parameter for parameter, tensor in bind.items()}
        for parameter in bind:
            self._require(parameter, items[parameter], device, ordinal)
        made = [name for name in of if name in self._made_by_kernels]
        given = [name for name in of if name in self._ragged and name not in made]
        if made and given and items[of[made[0]]].shape[0] < items[of[given[0]]].shape[0]:
            raise ValueError(
                f"{of[made[0]]}: it has {items[of[made[0]]].shape[0]} rows, and gets one for each of {of[given[0]]}, "
                f"which has {items[of[given[0]]].shape[0]}"
            )

    def _require(self, parameter: str, value: Any, device: str, ordinal: int) -> None:
        tensor = self.stages[0].bind[parameter]
        shape, dtype = self._whole[tensor]
        if is_descriptor(value):
            raise ValueError(f"{parameter}: rows in groups are read by pointers, not by a descriptor")
        where = f"{parameter} (bound to {tensor})"
        if tensor in self._ragged:
            good = value.dim() == 2 and value.shape[1] == shape[1] and value.shape[0] <= shape[0]
            wanted = f"[rows, {shape[1]}], of at most {shape[0]} rows"
        else:
            good = value.numel() == shape[1] and value.shape[-1:] == (shape[1],)
            wanted = f"this rank's counts, [{shape[1]}]"
        if not good:
            raise ValueError(f"{where}: expected {wanted}, got {list(value.shape)}")
        if not value.is_contiguous():
            raise ValueError(f"{where}: it must be contiguous")
        check_place(where, value, dtype, device, ordinal)

    def _set_up(self, taken: Sequence[TakenCall], group: Group, device: str) -> Prepared:
        (one,), (text,) = taken, self._texts_on(device)
        programs = group.multiprocessors(PROGRAMS_ON_HOST)

        def fused() -> tuple[Any, dict[str, Any], Any]:
            stage = (
                text.source,
                text.file,
                text.asked,
                dict(self.stages[0].bind),
                one.scalars,
                one.tensors,
                one.grid,
            )
            artifact, of = _syncopate.fuse_ragged(
                stage, self.plan, device, group.multiprocessors(), self.strategy, programs
            )
            for warning in (*artifact.warnings, *of["warnings"]):
                warnings.warn(f"syncopate: {warning}", stacklevel=8)
            return artifact, of, text.load(artifact.stages[_USERS])

        artifact, of, kernel = self._together(group, "fused", fused)
        own = [*kernels.STAGES, kernel, *(kernels.BACK if of["back"] else ())]
        prepared = Prepared(artifact, group, own, what=self._what, **self._timing)
        if not of["back"]:  # the plan counts what is stored there; it lies where the user has it
            prepared.stages[_USERS].bind = {of["reads"]: of["rows"]}
        made = self._made[prepared] = made_for(
            prepared, of, base_of(one.items[of["reads"]]).device, (device, group.ordinal)
        )
        options = [{"num_warps": 4, "num_stages": 2}] * len(own)
        options[_USERS] = one.options

        def compiled() -> None:
            prepared.compile(self._given(prepared, made, one.items), options)

        try:
            self._together(group, "compiled", compiled)
        except Exception:
            self._made.pop(prepared)
            if self._in_step:
                prepared.close()
            raise
        return prepared

    def _given(self, prepared: Prepared, made: _Made, items: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The arguments of each stage."""
        of, pow2, heap = made.of, triton.next_power_of_2, prepared.tensors
        table = prepared.op.table_tensor_of
        rows, ranks = items[of["reads"]], self.plan.num_ranks
        none = made.scratch["status_ptr"]
        known = {
            **made.scratch,
            "counts_ptr": heap[of["counts"]], "x_ptr": heap[of["rows"]], "rows_ptr": table(2), "user_ptr": table(_USERS),
            "back_ptr": table(_USERS + 1) if of["back"] else none, "BACK": of["back"] is not None,
            "rank": prepared.op.rank, "ROWS": rows.shape[0], "E": of["experts"], "R": ranks, "EXPERTS": of["own"],
            "BOUND": of["bound"], "TILE": of["tile"], "TILES": len(of["expert_of"]), "SLOTS": 32, "USERS": of["groups"],
            "BE": pow2(of["own"]), "BR": pow2(ranks), "BALL": pow2(of["experts"]),
        }  # fmt: skip

        def moved(columns: int) -> dict[str, int]:
            return {"H": columns, "COLUMNS": min(pow2(columns), 512)}

        stride, kernels_of = made.strides, [*kernels.STAGES]
        of_stage: list[dict[str, Any]] = [
            {"given_ptr": items[of["offsets"]], "stride": stride[of["counts"]]},
            {},
            {"given_ptr": rows, "stride": stride[of["rows"]], **moved(of["columns"])},
        ]
        if of["back"]:
            made_at, back, width = heap[of["made"]], heap[of["back"]], moved(of["columns_back"])
            kernels_of += kernels.BACK
            of_stage += [
                {"made_ptr": made_at, "y_ptr": back, "stride": stride[of["back"]], **width},
                {"y_ptr": back, "out_ptr": items[of["makes"]], "taken_ptr": heap[of["taken"]],
                 "PROGRAMS": heap[of["taken"]].shape[1], **width},
            ]  # fmt: skip
        given = [
            {name: (known | more)[name] for name in kernel.arg_names if not name.startswith("sy_")}
            for kernel, more in zip(kernels_of, of_stage, strict=True)
        ]
        given.insert(_USERS, {**items, of["offsets"]: made.scratch["offsets_ptr"]})
        return given


def made_for(prepared: Any, of: dict[str, Any], device: torch.device, place: tuple[str, int]) -> _Made:
    """What stages tell each other, for a program of which `of` is said (_syncopate.fuse_ragged)."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int32, device=device)

    with torch.inference_mode(False):  # calls in and out of it write to these
        scratch = {
            "sent_ptr": numbers(2, of["experts"]),
            "group_ptr": numbers(of["experts"]),
            "offsets_ptr": numbers(of["own"] + 1),
            "status_ptr": numbers(2),
            "seen_ptr": numbers(4),
            "from_ptr": numbers(of["experts"]),  # by group of this rank's experts
            "to_ptr": numbers(of["experts"]),
            "expert_ptr": torch.tensor(of["expert_of"], dtype=torch.int32, device=device),
            "row_ptr": torch.tensor(of["row_of"], dtype=torch.int32, device=device),
        }
    stride = prepared.op.heap.stride
    strides = {name: stride // tensor.element_size() for name, tensor in prepared.tensors.items()}
    return _Made(of, place, scratch, strides)
