"""`sy.fuse(kernel, plan, …, strategy="auto")`: how a user's program is carried out, chosen for each set of arguments.

What can be chosen is what fuse takes (C++: tune/candidates/program.hpp), with each configuration of the kernels' `@triton.autotune`.
What is taken is what tuning has found, if the store has it; with SYNCOPATE_TUNE=auto it is found out first; else the quickest
by the estimate.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import LAUNCH_OPTIONS, base_of, bind_launch, chosen_by, describe, is_tensor
from ..call.in_graphs import refuse_tracing, runs_whole
from ..call.prepared import Prepared
from ..call.stage_call import Call, Stage, launch_of
from ..call.tuples import flat
from ..device.jit import refuse_launches_of_an_import
from ..group import FailedTogether, Group, of_process_group
from ..measure.program import ProgramMeasurer
from ..strategy import Strategy
from ..strategy.failures import warn_of_default
from ..strategy.search_hook import mode_of
from ..strategy.store_scope import scope
from .autotuned import configurations_of, configured, words_of
from .fused import FusedKernel

MOST_COMBINED = 16  # configurations of several kernels; beyond, one kernel's is varied at a time


@dataclass(frozen=True)
class Choice:
    """A strategy, and of each stage the index of its kernel's configuration (-1: it has none)."""

    strategy: Strategy
    configuration: tuple[int, ...]


class AutoKernel(FusedKernel):
    """A FusedKernel whose strategy is chosen for each set of arguments, and with it what the kernels' @triton.autotune and
    @triton.heuristics leave open: a launch gives neither."""

    def __init__(
        self, stages: Sequence[Stage], plan: _syncopate.Plan, group: Group | Any | None, **timing: Any
    ) -> None:
        super().__init__(stages, plan, group, None, **timing)
        self._kernels: dict[Strategy, FusedKernel] = {}
        self._choices: dict[tuple, Choice] = {}

    @property
    def prepared(self) -> list[Prepared]:
        return [one for kernel in self._kernels.values() for one in kernel.prepared]

    @property
    def chosen(self) -> list[Choice]:
        """Of each set of arguments so far."""
        return list(self._choices.values())

    @runs_whole
    def call(self, stage: int, grid: Any, /, *args: Any, **kwargs: Any) -> Call:
        refuse_tracing("a fused kernel")
        refuse_launches_of_an_import()
        kernel, signature = self.stages[stage].kernel, self._signatures[stage]
        options = {name: kwargs[name] for name in LAUNCH_OPTIONS if name in kwargs}
        for name in set(options) - set(signature.parameters):
            del kwargs[name]
        opened = chosen_by(kernel)
        given = signature.bind_partial(*args, **kwargs).arguments
        # What nobody chooses has to be there.
        rest = {name: None for name in opened if name not in given}
        bound = dict(bind_launch(kernel, signature, (), {**given, **rest}).arguments)
        return Call(grid, {name: value for name, value in bound.items() if name not in rest}, options)

    def check(self) -> None:
        for kernel in self._kernels.values():
            kernel.check()

    def close(self) -> None:
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()
        self._choices.clear()

    def tune(self, calls: Sequence[Call], *, budget: float = 60.0, again: bool = False) -> dict[str, Any]:
        """Measures strategies for these calls for so many seconds, stores the fastest, and takes it from now on. What the
        calls write is as before afterwards. Collective. Returns what was found: `winner`, `us`, `default_us`, `trials`."""
        program = _Program(self, calls)
        found = program.search(budget, again)
        self._choices[self._open_key(calls)] = program.choice_of(found["strategy"])
        return found

    def ranking(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """All that fuse takes of these calls, best first by the estimate, with no GPU; then what it refuses, and why."""
        return _Program(self, calls, alone=True).ranked

    def kernel_for(self, strategy: Strategy) -> FusedKernel:
        if strategy not in self._kernels:
            self._kernels[strategy] = FusedKernel(
                self.stages, self.plan, self.group, strategy, **self._timing
            )
        return self._kernels[strategy]

    def configured(self, calls: Sequence[Call], configuration: Sequence[int]) -> list[Call]:
        return [
            configured(stage.kernel, call, index)
            for stage, call, index in zip(self.stages, calls, configuration, strict=True)
        ]

    def _find(self, calls: Sequence[Call]) -> tuple[Prepared, list[dict[str, Any]]]:
        if len(calls) != len(self.stages):
            raise TypeError(
                f"the program has {len(self.stages)} stages: give a Call for each, got {len(calls)}"
            )
        key = self._open_key(calls)
        choice = self._choices.get(key)
        if choice is None:
            program = _Program(self, calls)
            choice, found = program.choose()
            if found:
                choice = self._proven(program, choice)
            self._choices[key] = choice
        return self.kernel_for(choice.strategy)._find(self.configured(calls, choice.configuration))

    def _proven(self, program: _Program, choice: Choice) -> Choice:
        """What the store holds, once it is set up on all ranks; where it cannot be on some rank, the default with a warning."""
        kernel = self._kernels.get(choice.strategy) or FusedKernel(
            self.stages, self.plan, self.group, choice.strategy, in_step=True, **self._timing
        )
        calls = self.configured(program.calls, choice.configuration)
        try:
            program.group.together("prepared", lambda: kernel._find(calls))
        except FailedTogether as error:
            warn_of_default(program.key["family"], choice.strategy.name, error, stacklevel=4)
            return Choice(Strategy(), program.configurations[0])
        self._kernels[choice.strategy] = kernel
        return choice

    @staticmethod
    def _open_key(calls: Sequence[Call]) -> tuple:
        """What a choice depends on: all that a launch says but the elements of its tensors."""

        def seen(value: Any) -> Any:
            if is_tensor(value):
                shape, strides, dtype, block = describe(value)
                return tuple(shape), tuple(strides), dtype, tuple(block), base_of(value).device
            return value if isinstance(value, (int, float, bool, str)) else str(value)

        return tuple(
            (
                None if callable(call.grid) else tuple(call.grid),
                tuple((name, seen(value)) for name, value in flat(call.arguments).items()),
                tuple(sorted(call.options.items())),
            )
            for call in calls
        )


class _Program:
    """A program with one set of arguments, all configurations of its kernels, and what can be chosen of them."""

    def __init__(self, kernel: AutoKernel, calls: Sequence[Call], *, alone: bool = False) -> None:
        """Collective, but where this rank is `alone`."""
        self.kernel, self.calls = kernel, list(calls)
        values = [value for call in calls for value in flat(call.arguments).values()]
        self.cuda = any(is_tensor(value) and base_of(value).is_cuda for value in values)
        self.device = "cuda" if self.cuda else "host"
        given = kernel.group
        self.group = given if isinstance(given, Group) else of_process_group(given, self.device)
        self.configurations = self._configurations()
        self.ranked = self._rank("" if alone else self.group.machine)

    def _configurations(self) -> list[tuple[int, ...]]:
        each = [
            configurations_of(stage.kernel, flat(call.arguments))
            for stage, call in zip(self.kernel.stages, self.calls, strict=True)
        ]
        if math.prod(map(len, each)) <= MOST_COMBINED or len(each) == 1:
            return list(itertools.product(*each))
        usual = tuple(one[0] for one in each)
        varied = [usual[:at] + (index,) + usual[at + 1 :] for at, one in enumerate(each) for index in one[1:]]
        return [usual, *varied]

    def _rank(self, machine: str) -> list[dict[str, Any]]:
        """Candidates as C++ ranks them, the configuration by its indices."""
        texts = self.kernel._texts_on(self.device)
        made, values = [], []
        for configuration in self.configurations:
            calls = self.kernel.configured(self.calls, configuration)
            taken = [launch_of(stage, call) for stage, call in zip(self.kernel.stages, calls, strict=True)]
            for index, one in enumerate(taken):
                self.kernel._bind_to_plan(index, one, self.group, self.device)
            made.append(
                [
                    (text.source, text.file, text.name, dict(stage.bind), one.scalars, one.tensors, one.grid)
                    for text, stage, one in zip(texts, self.kernel.stages, taken, strict=True)
                ]
            )
            values = [one.values for one in taken]
        ranked = _syncopate.tune.rank_program(
            made,
            self.kernel.plan,
            self.device,
            self.group.multiprocessors(),
            values=values,
            machine=machine,
            device_name=torch.cuda.get_device_name() if self.cuda else "",
        )
        return [
            one | {"configuration": self.configurations[one["configuration"]], "name": self._name(one)}
            for one in ranked
        ]

    def _name(self, one: Mapping[str, Any]) -> str:
        """With what the configuration says in the place of its number."""
        words = [
            ",".join(f"{name}={value}" for name, value in said.items())
            for said in self._words(self.configurations[one["configuration"]])
            if said
        ]
        return "/".join(
            [*words, one["name"].partition("/")[2] if words and "/" in one["name"] else one["name"]]
        )

    def _words(self, configuration: Sequence[int]) -> list[dict[str, Any] | None]:
        return [words_of(s.kernel, i) for s, i in zip(self.kernel.stages, configuration, strict=True)]

    def text_of(self, one: Mapping[str, Any]) -> str:
        """A candidate as the store keeps it."""
        words = self._words(one["configuration"])
        return json.dumps({"configuration": words, "strategy": json.loads(one["strategy"].to_json())})

    def choice_of(self, text: str) -> Choice:
        """Raises ValueError for what the kernels have no configuration for."""
        read = json.loads(text)
        for configuration in self.configurations:
            if self._words(configuration) == read["configuration"]:
                return Choice(Strategy.from_json(json.dumps(read["strategy"])), tuple(configuration))
        raise ValueError("the kernels have no such configuration")

    @property
    def key(self) -> dict[str, Any]:
        """Of a result in the store: a hash stands for kernels, plan and arguments."""
        digest = hashlib.sha256()
        for text in self.kernel._texts_on(self.device):
            digest.update(f"{text.name}\n{text.source}\n".encode())
        digest.update(self.kernel.plan.to_json().encode())
        digest.update(str([stage.bind for stage in self.kernel.stages]).encode())
        digest.update(str([[tuple(key[:2]) for key in one] for one in self._described()]).encode())
        names = "+".join(text.name for text in self.kernel._texts_on("cuda"))
        return scope(self.device) | {
            "family": f"fuse:{names}",
            "ranks": self.kernel.plan.num_ranks,
            "kernel": digest.hexdigest()[:16],
        }

    def _described(self) -> list[list[tuple]]:
        return [
            [
                (name, str(describe(value)) if is_tensor(value) else str(value))
                for name, value in flat(call.arguments).items()
            ]
            for call in self.calls
        ]

    def choose(self) -> tuple[Choice, bool]:
        """By rank 0 for all: the stored winner (True), a search if SYNCOPATE_TUNE is auto there, else the best by the estimate."""
        mode = mode_of(self.group)
        found = ""
        if mode != "off" and self.group.rank == 0:
            found = _syncopate.tune.stored_program(**self.key)
        found = _syncopate.tune.share(self.group.rendezvous, found)
        if found:
            try:
                return self.choice_of(found), True
            except (KeyError, ValueError):
                pass  # another version's: as if there were none
        if mode == "auto":
            budget = float(os.environ.get("SYNCOPATE_TUNE_BUDGET") or 60)
            return self.choice_of(self.search(budget)["strategy"]), False
        likely = [one for one in self.ranked if not one["pruned"]]
        if not likely:
            raise ValueError(self.ranked[0]["pruned"])
        return self.choice_of(_syncopate.tune.share(self.group.rendezvous, self.text_of(likely[0]))), False

    def search(self, budget: float, again: bool = False) -> dict[str, Any]:
        """Measures until the fastest is known, and stores it. The first configuration by the default strategy is the one
        that nothing has to be faster than."""
        likely = [one for one in self.ranked if not one["pruned"]]
        usual = Strategy(kernel="plain")
        first = self.configurations[0]
        default = next(
            (one for one in likely if one["configuration"] == first and one["strategy"] == usual),
            likely[0] if likely else None,
        )
        if default is None:
            raise ValueError(self.ranked[0]["pruned"])
        order = [default, *(one for one in likely if one is not default)]
        entries = [(one["name"], self.text_of(one), one["us"], one is default) for one in order]
        measurer = ProgramMeasurer(self, [self.choice_of(text) for _, text, _, _ in entries])
        try:
            return _syncopate.tune.search_program(
                contenders=entries,
                budget=budget,
                again=again,
                measurer=measurer,
                rendezvous=self.group.rendezvous,
                **self.key,
            )
        finally:
            measurer.restore()
