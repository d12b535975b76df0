"""Chains on the host with every program as early as its waits let it run, later stages first: what stream order hides, such as a
tile that reads before what it reads is made, then shows in the values.

Each program is a process, forked from this one; one of them runs at a time. It hands on when it waits in vain, and when it has
posted. Who is next: the first in order (see below) that can go on. Arrays are moved to memory that the processes share.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from syncopate.call.arguments import base_of, is_tensor
from syncopate.call.prepared import Prepared, call_on_host
from syncopate.call.tuples import flat
from syncopate.host import interpreter
from syncopate.host import language as language_host
from syncopate.host.bounds import Bounds
from triton.runtime import interpreter as triton_interpreter

LIMIT = 60  # seconds without a word of a program


class Program:
    """A program of a stage, in a process of its own from its first step on."""

    def __init__(self, stage: int, place: tuple[int, ...]) -> None:
        self.stage, self.place = stage, place
        self.pid, self.said = 0, ""

    def step(self, run) -> str:
        """Lets it go on. What it says then: blocked, posted, done, or what went wrong."""
        if self.pid == 0:
            go, self._go = os.pipe()
            self._say, say = os.pipe()
            self.pid = os.fork()
            if self.pid == 0:
                _be(self.place, run, go, say)
            os.close(go)
            os.close(say)
        os.write(self._go, b"g")
        if not select.select([self._say], [], [], LIMIT)[0]:
            raise RuntimeError(f"program {self.place} of stage {self.stage} says nothing")
        self.said = os.read(self._say, 4096).decode() or "it died"
        if self.said not in ("blocked", "posted"):
            self.end()
        return self.said

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # it has ended, or is of no use
            os.waitpid(self.pid, 0)
            os.close(self._go)
            os.close(self._say)
            self.pid = 0


def _be(place, run, go: int, say: int) -> None:
    """This process is the program at `place` of what `run` launches. Does not return."""

    def hand_on(word: str) -> None:
        os.write(say, word.encode())
        if not os.read(go, 1):
            os._exit(1)

    class Waits:
        """Instead of the module time: who waits hands on, and its deadline does not come nearer."""

        @staticmethod
        def sleep(_seconds: float) -> None:
            hand_on("blocked")

        @staticmethod
        def monotonic() -> float:
            return 0.0

    post_all = language_host._post_all

    def post_and_hand_on(*arguments) -> None:
        post_all(*arguments)
        hand_on("posted")

    builder = triton_interpreter.interpreter_builder
    set_grid_dim = builder.set_grid_dim

    def set_grid_dim_and_be_one(*grid) -> None:
        """The executor's loops over the grid come next: each is of this program's coordinate."""
        set_grid_dim(*grid)
        coordinates = iter(place)

        def once(_count: int) -> list[int]:
            coordinate = next(coordinates)
            if coordinates.__length_hint__() == 0:
                del triton_interpreter.range
            return [coordinate]

        triton_interpreter.range = once

    code = 1
    try:
        os.read(go, 1)
        language_host.time, language_host._post_all = Waits, post_and_hand_on
        builder.set_grid_dim = set_grid_dim_and_be_one
        run()
        os.write(say, b"done")
        code = 0
    except BaseException as error:
        os.write(say, f"{type(error).__name__}: {error}"[:4000].encode())
    finally:
        os._exit(code)


def _in_order(prepared: Prepared, full, order: random.Random | None) -> None:
    overlaps = prepared.schedule.overlaps
    programs = [
        Program(index, place)
        for index, stage in enumerate(prepared.stages)
        for place in itertools.product(*map(range, (*stage.grid, 1, 1)[:3]))
    ][::-1]
    for name, value in (item for arguments in full for item in flat(arguments).items()):
        if is_tensor(value) and not name.startswith("sy_") and not base_of(value).is_shared():
            base_of(value).untyped_storage().share_memory_()

    def run_of(stage: int):
        emitted, arguments = prepared.stages[stage], full[stage]
        bounds = Bounds(arguments, prepared._reach())
        return lambda: interpreter.launch(emitted.kernel, emitted.grid, dict(arguments), bounds)

    runs = [run_of(stage) for stage in range(len(prepared.stages))]
    try:
        while programs:
            if order:
                order.shuffle(programs)
            first = min(one.stage for one in programs)
            for one in programs:
                later = range(first + 1, one.stage + 1)
                if not all(overlaps[stage] for stage in later):
                    continue  # it starts when the one before it has ended
                said = one.step(runs[one.stage])
                if said == "done":
                    programs.remove(one)
                if said in ("done", "posted"):
                    break
                if said != "blocked":
                    raise RuntimeError(f"program {one.place} of stage {one.stage}: {said}")
            else:
                raise RuntimeError("all programs wait")
    finally:
        for one in programs:
            one.end()


@contextmanager
def eagerly(seed: int | None = None) -> Iterator[None]:
    """Chains run on the host in this order: later stages first and of one the last program first, or with a `seed` at random."""
    order = None if seed is None else random.Random(seed)

    def interpret(prepared: Prepared, full) -> None:
        with call_on_host(prepared.op):
            _in_order(prepared, full, order)

    usual = Prepared.interpret
    Prepared.interpret = interpret
    try:
        yield
    finally:
        Prepared.interpret = usual
