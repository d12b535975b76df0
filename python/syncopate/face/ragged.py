"""A user's own kernel over rows that come in groups, of which only the device knows how many they are (ops/ragged.hpp).

    fused = sy.fuse(grouped, plan, bind={"a_ptr": "A", "offsets_ptr": "counts"}, over="drop")
    fused[grid](a, b, c, counts, N, K, …)

`a` has this rank's rows, expert by expert; `counts` [experts] says on the device how many each expert gets. The kernel is given
the rows that came for this rank's experts, and, in the place of `counts`, offsets [experts / ranks + 1], or what its
binding says: "counts.ends", "counts.experts[BM]", … (src/ops/ragged_told.hpp draws them).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import base_of, is_descriptor, is_tensor, launch_key
from ..call.places import check_place
from ..call.prepared import Prepared
from ..call.stage_call import Call, Stage, TakenCall, launch_of
from ..call.stated import StatedKernel
from ..group import Group
from ..kernels import ragged as kernels
from ..strategy import PROGRAMS_ON_HOST
from .fused import FusedKernel
from .ragged_made import USERS, Made, given_of, made_for

OVER = ("error", "drop")


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
        if any(isinstance(stage.kernel, StatedKernel) for stage in stages):
            raise ValueError("a plan with rows in groups, which only a call counts, takes kernels in Triton")
        if values := [name for stage in stages for name in stage.values]:
            raise ValueError(
                f"values: {', '.join(values)}: not of a plan with rows in groups, which only a call counts. "
                "Where the host knows the counts, fuse plan.counted(counts)"
            )
        super().__init__(stages, plan, group, strategy, **timing)
        self.over = over
        self._made: dict[Prepared, Made] = {}
        self._ended_made: list[Made] = []
        self._ragged, self._made_by_kernels = frozenset(plan.ragged), frozenset(plan.produced)
        self._whole = {name: (list(shape), dtype) for name, shape, dtype in plan.tensors}
        self._last: Made | None = None

    @property
    def offsets(self) -> torch.Tensor:
        """[experts / ranks + 1], on the device: the next call's as soon as there is one."""
        if self._last is None:
            raise ValueError("offsets: there was no call")
        return self._last.scratch["offsets"]

    def _run(self, calls: Sequence[Call]) -> None:
        prepared, items = self._find(calls)
        made = self._made[prepared]
        rows = self._require_rows(items, *made.place)
        prepared.require_there()
        # All else of it is what is prepared.
        key = (*(launch_key(value) for given in items for value in given.values()), rows)
        try:
            prepared.launch(key, lambda: self._given(prepared, made, items))
        except ValueError:
            if not self.drops(prepared) or not prepared.op.had_been_told:
                raise
            self._run(calls)  # what ended it was no news to this rank
            return
        self._last = made
        if not prepared.is_on_gpu:
            self._judge(made)

    def _given(
        self, prepared: Prepared, made: Made, items: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        if made.of["beside"]:
            brought = {
                tensor: (parameter, one[parameter])
                for user, one in zip(made.of["users"], items, strict=True)
                for parameter, tensor in user["reads"].items()
            }
            _require_apart(brought.values(), self.stages[0].bind, made.of["users"][0]["writes"], items[0])
        return given_of(prepared, made, items)

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired, and ValueError, on all ranks, where in calls since the last
        check counts were none, or rows over the bound came and that is an error. Synchronises the device."""
        try:
            super().check()
        except _syncopate.SyncopateError:
            for made in self._made.values():
                made.forget()
            raise
        for made in self._made.values():
            seen = made.scratch["seen"]
            if seen.is_cuda:  # calls of other streams have added to it
                torch.cuda.synchronize(seen.device)
            self._judge(made)

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

    def compile_ahead(
        self, file: str, calls: Sequence[Call], *, arch: str = "sm_90", multiprocessors: int = 132
    ) -> None:
        """Writes what `run(calls)` would run as a bundle, for processes without Python: for a GPU that need not be there, or for
        "host". Tensors of `calls` may be of any device, and on "meta". No rank need be there. In the bundle a call gives as many
        rows as the plan has memory for; how many of them there are, its counts say."""
        from .ragged_ahead import write

        write(self, file, calls, arch, multiprocessors)

    def shard(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        raise ValueError(f"{tensor}: where its rows lie only a call knows; they are not written in place")

    def result(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """The rows that came for this rank's experts, where they lie until the next call: see `offsets`."""
        of = self._made[prepared].of
        kept = {name for name, *_ in self.plan.final(prepared.op.rank)}
        if tensor not in (of["rows"], of["more"]) or tensor not in kept:
            raise ValueError(f"{tensor}: the plan does not say that it is kept (final)")
        return prepared.tensors[tensor]

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """What came in the last call, by the plan's tensor, in memory of its own: [bound, columns], of which `offsets` says how many
        rows there are. For a backward pass, whatever is called meanwhile. Raises ValueError where the plan keeps nothing."""
        last = next((one for one, made in self._made.items() if made is self._last), None)
        if last is None:
            raise ValueError("kept: there was no call")
        of = self._made[last].of
        final = {name for name, *_ in self.plan.final(last.op.rank)}
        names = [name for name in (of["rows"], of["more"]) if name in final]
        if not names:
            raise ValueError("kept: the plan keeps nothing of what comes: push_groups(…, keep=True)")
        return {name: self.result(last, name).flatten(0, -2)[: of["bound"]].clone() for name in names}

    def _judge(self, made: Made) -> None:
        """Of all calls since it was last asked; the same on all ranks."""
        seen = made.scratch["seen"]
        words = [word & 0xFFFFFFFF for word in seen.tolist()]
        seen.zero_()
        said = _syncopate.ragged_verdict(made.of["counts"], made.of["bound"], words, self.over == "drop")
        if said:
            raise ValueError(said)

    def _find(self, calls: Sequence[Call]) -> tuple[Prepared, list[dict[str, Any]]]:
        taken = self._taken(calls)
        key = tuple(one.key for one in taken)
        prepared = self._prepared.get(key)
        if prepared is not None and prepared.op.retired:
            self.drops(prepared)
            prepared = None
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(taken)
        return prepared, [one.items for one in taken]

    def _taken(self, calls: Sequence[Call]) -> list[TakenCall]:
        """How many rows a rank gives is not what is compiled for."""
        if len(calls) != len(self.stages):
            raise TypeError(
                f"the program has {len(self.stages)} stage(s): give a Call for each, got {len(calls)}"
            )
        taken = [launch_of(stage, call) for stage, call in zip(self.stages, calls, strict=True)]
        for stage, one in zip(self.stages, taken, strict=True):
            for parameter, tensor in stage.bind.items():
                if tensor in self._ragged and parameter in one.tensors:
                    shape, _, dtype, block = one.tensors[parameter]
                    one.tensors[parameter] = ([0, *shape[1:]], [], dtype, block)
        return taken

    def _bind_to_plan(self, index: int, one: TakenCall, group: Group, device: str) -> None:
        """That the call brings rows and counts as the plan has them; `run` looks at each call's."""
        for parameter, tensor in self.stages[index].bind.items():
            if self._tensor_of(tensor) not in self._whole:
                raise ValueError(f"bind: the plan has no tensor {tensor}; it has {', '.join(self._whole)}")
            if parameter not in one.tensors:
                name = self._texts["cuda"][index].name
                raise ValueError(
                    f"bind: {parameter} is not a tensor parameter of {name}; it has {', '.join(one.tensors)}"
                )
            self._require(parameter, tensor, one.items[parameter], device, group.ordinal)

    def _require_rows(self, items: Sequence[Mapping[str, Any]], device: str, ordinal: int) -> int:
        """That a call's tensors are as the plan has them; how many rows are given."""
        of: dict[str, str] = {}  # by the plan's tensor
        rows: dict[str, int] = {}
        counted: list[tuple[str, Any]] = []
        brought: dict[str, torch.Tensor] = {}
        for stage, given in zip(self.stages, items, strict=True):
            for parameter, bound in stage.bind.items():
                value = given[parameter]
                self._require(parameter, bound, value, device, ordinal)
                if bound in self._ragged:
                    before = brought.setdefault(bound, base_of(value))
                    if launch_key(before) != launch_key(base_of(value)):
                        raise ValueError(
                            f"{parameter}: another tensor than {of[bound]}: both are bound to {bound}, so give the same to both"
                        )
                    of[bound], rows[bound] = parameter, base_of(value).shape[0]
                else:
                    counted.append((parameter, value))
        gives = next(name for name in rows if name not in self._made_by_kernels)
        for gets in rows:
            if gets in self._made_by_kernels and rows[gets] < rows[gives]:
                raise ValueError(
                    f"{of[gets]}: it has {rows[gets]} rows, and gets one for each of {of[gives]}, which has {rows[gives]}"
                )
            if gets not in self._made_by_kernels and rows[gets] != rows[gives]:
                raise ValueError(
                    f"{of[gets]}: it has {rows[gets]} rows, and {of[gives]}, which are the same ones, {rows[gives]}"
                )
        for parameter, value in counted[1:]:
            if launch_key(value) != launch_key(counted[0][1]):
                raise ValueError(
                    f"{parameter}: another tensor than {counted[0][0]}: both are bound to the counts, so give the same to both"
                )
        return rows[gives]

    def _tensor_of(self, bound: str) -> str:
        """The plan's tensor of "counts.ends", and of "counts"."""
        return bound if bound in self._whole else bound.rpartition(".")[0]

    def _require(self, parameter: str, bound: str, value: Any, device: str, ordinal: int) -> None:
        tensor = self._tensor_of(bound)
        shape, dtype = self._whole[tensor]
        if is_descriptor(value):
            if tensor not in self._ragged:
                raise ValueError(f"{parameter}: where rows lie is loaded by a pointer, not by a descriptor")
            if list(value.shape) != list(value.base.shape):
                raise ValueError(
                    f"{parameter}: the descriptor is of {list(value.shape)}, and its tensor {list(value.base.shape)}: "
                    "describe the whole tensor"
                )
            value = value.base
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

    def _stage_tuples(self, taken: Sequence[TakenCall], texts: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [
            (text.source, text.file, text.asked, dict(stage.bind), one.scalars, one.tensors, one.grid)
            for stage, text, one in zip(self.stages, texts, taken, strict=True)
        ]

    def _set_up(self, taken: Sequence[TakenCall], group: Group, device: str) -> Prepared:
        texts = self._texts_on(device)
        programs = group.multiprocessors(PROGRAMS_ON_HOST)

        def fused() -> tuple[Any, dict[str, Any], list[Any]]:
            artifact, of = _syncopate.fuse_ragged(
                self._stage_tuples(taken, texts),
                self.plan,
                device,
                group.multiprocessors(),
                self.strategy,
                programs,
            )
            for warning in (*artifact.warnings, *(one for user in of["users"] for one in user["warnings"])):
                warnings.warn(f"syncopate: {warning}", stacklevel=8)
            emitted = artifact.stages[USERS : USERS + len(texts)]
            return artifact, of, [text.load(stage) for text, stage in zip(texts, emitted, strict=True)]

        artifact, of, users = self._together(group, "fused", fused)
        own = [*kernels.STAGES, *users, *(kernels.BACK if of["back"] else ())]
        prepared = Prepared(artifact, group, own, what=self._what, **self._timing)
        for index, user in enumerate(of["users"]):
            # The plan counts what is stored; but for what goes back, it lies where the user has it.
            if not of["back"] or index + 1 < len(users):
                del prepared.stages[USERS + index].bind[user["makes"]]
        items = [one.items for one in taken]
        device_of_rows = base_of(items[0][next(iter(of["users"][0]["reads"]))]).device
        made = self._made[prepared] = made_for(prepared, of, device_of_rows, (device, group.ordinal))
        prepared.op.when_renewed(made.forget)  # by reset and sy.recover
        options = [kernels.options_of(one, of["apart"]) for one in own]
        options[USERS : USERS + len(users)] = [one.options for one in taken]

        def compiled() -> None:
            prepared.compile(given_of(prepared, made, items), options)

        try:
            self._together(group, "compiled", compiled)
        except Exception:
            self._made.pop(prepared)
            if self._in_step:
                prepared.close()
            raise
        return prepared


def _require_apart(
    brought: Iterable[tuple[str, Any]],
    bind: Mapping[str, str],
    writes: Sequence[str],
    items: Mapping[str, Any],
) -> None:
    """That the kernel stores into no memory of the rows that are given: they are sent while it runs."""

    def ends(value: Any) -> tuple[int, int]:
        tensor = base_of(value)
        steps = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        elements = steps + 1 if tensor.numel() else 0
        return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()

    for reads, given in brought:
        begin, end = ends(given)
        for name in writes:
            if name in bind or not is_tensor(items[name]):
                continue
            first, last = ends(items[name])
            if first < end and begin < last:
                raise ValueError(
                    f"{name}: the kernel stores into the memory of {reads}, whose rows are still sent while it runs: give it "
                    "memory of its own"
                )
