"""Launches of about 10,000 tiles for every kernel of tests/corpus, for bench_kernel_analyse:

    TRITON_INTERPRET=1 PYTHONPATH=python:tests python bench/kernel_analyse_corpus.py launches.txt [TILES [CASE…]]
    SYNCOPATE_LAUNCHES=launches.txt build/bin/bench_kernel_analyse --benchmark_filter=corpus/

A case's arguments are enlarged: one extent of its tensors, or two of them, with the scalars that are the same number, with
strides, and with the grid. Files are named from the root of the repository. What has no launch of so many tiles is said on
standard error: data decides its addresses, or its extents are constants of the kernel.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from corpus import cases, checks, worker
from syncopate import _syncopate
from syncopate.call.arguments import describe, function_of, is_tensor, scalar
from syncopate.call.tuples import flat

ROOT = Path(__file__).resolve().parents[1]
SECONDS_A_CASE = 90
TRIED = 300  # tiles with which it is found out what to enlarge


def is_block(name: str) -> bool:
    """Whether a parameter is the size of a block, which stays."""
    return name.isupper() and name.startswith("B") or "BLOCK" in name or "GROUP" in name


def enlarged(items: dict[str, Any], growth: dict[int, int]) -> tuple[dict[str, Any], dict[str, tuple]]:
    """Scalars and tensors with the extents of `growth` replaced; strides and sizes follow."""
    numbers: dict[int, int] = {}
    tensors = {}
    for name, value in items.items():
        if not is_tensor(value):
            continue
        shape, strides, dtype, block = describe(value)
        new = [growth.get(n, n) for n in shape]
        steps = [math.prod(new[axis + 1 :]) for axis in range(len(new))]
        for before, after in zip(strides, steps, strict=True):
            numbers.setdefault(before, after)
        numbers.setdefault(math.prod(shape), math.prod(new))
        tensors[name] = (new, steps, dtype, block)
    scalars = {}
    for name, value in items.items():
        if is_tensor(value):
            continue
        made = scalar(value)
        whole = isinstance(made, int) and not isinstance(made, bool) and made > 1
        if whole and not is_block(name):
            is_stride = "stride" in name.lower()
            made = numbers.get(made, made) if is_stride else growth.get(made, numbers.get(made, made))
        scalars[name] = made
    return scalars, tensors


def launches(make: Any, tiles: int) -> tuple[Any, ...] | None:
    case = make(0)
    if case.refused:
        return None
    function = function_of(case.kernel)
    file = inspect.getsourcefile(function)
    text = Path(file).read_text()
    items = flat(checks.full_arguments(case))
    grid = (case.grid + (1, 1, 1))[:3]

    def count(scalars: dict, tensors: dict, launch: tuple[int, ...]) -> int:
        try:
            found = _syncopate.analyse(text, file, function.__name__, scalars, tensors, list(launch))["tiles"]
        except Exception:  # noqa: BLE001 - this launch is none
            return 0
        return len(found) if found and found[-1][2] else 0

    base = max(1, count(*enlarged(items, {}), grid))
    extents = sorted(
        {n for v in items.values() if is_tensor(v) for n in describe(v)[0] if n > 1}, reverse=True
    )

    def launch_of(
        wanted: int, chosen: tuple[int, ...], axes: tuple[int, ...], told: bool, unit: int
    ) -> tuple[Any, ...]:
        factor = (wanted / base) ** (1 / len(chosen))
        scalars, tensors = enlarged(
            items, {n: math.ceil(math.ceil(n / unit) * unit * factor) for n in chosen}
        )
        launch = tuple(math.ceil(g * factor) if a in axes else g for a, g in enumerate(grid))
        for name, value in scalars.items():
            if told and ("SMS" in name or "PROGRAMS" in name):
                scalars[name] = next((launch[a] for a in axes if value == grid[a]), value)
        return file, function.__name__, launch, scalars, tensors

    # With one extent enlarged, or two; from whole blocks of it, where programs are as many as blocks; and where the
    # kernel is told how many programs there are, that too.
    for told, unit, some in itertools.product((False, True), (1, 16), (1, 2)):
        for chosen in itertools.combinations(extents, some):
            for axes in (*itertools.combinations(range(3), some), ()):
                _, _, launch, scalars, tensors = launch_of(TRIED, chosen, axes, told, unit)
                large = launch_of(tiles, chosen, axes, told, unit)
                fits = sum(math.prod(t[0]) for t in large[4].values()) < 1 << 36
                if not fits or not 0.8 * TRIED <= count(scalars, tensors, launch) <= 1.6 * TRIED:
                    continue
                if 0.8 * tiles <= count(large[3], large[4], large[2]) <= 1.6 * tiles:
                    return large
    return None


def line(name: str, launch: tuple[Any, ...]) -> str:
    file, function, grid, scalars, tensors = launch
    file = str(Path(file).resolve().relative_to(ROOT))
    values = ",".join(f"{n}={v}" for n, v in scalars.items())
    shapes = [
        f"{n}={'x'.join(map(str, s))}:{d}:{','.join(map(str, t))}"
        + (f"@{'x'.join(map(str, b))}" if b else "")
        for n, (s, t, d, b) in tensors.items()
    ]
    return "\t".join([name, file, function, ",".join(map(str, grid)), values, *shapes])


def attempt(name: str, tiles: int, send: Any) -> None:
    launch = launches(cases.REGISTRY[name], tiles)
    send.send("" if launch is None else line(name, launch))


def main() -> None:
    tiles = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    for family in worker.families():
        importlib.import_module(f"corpus.{family}")
    chosen = [n for n in cases.REGISTRY if len(sys.argv) < 4 or n in sys.argv[3:]]
    with Path(sys.argv[1]).open("w") as out:
        for name in chosen:
            # In a process of its own: among the launches that are tried are some that take minutes.
            receive, send = multiprocessing.Pipe(duplex=False)
            child = multiprocessing.get_context("fork").Process(target=attempt, args=(name, tiles, send))
            child.start()
            text = receive.recv() if receive.poll(SECONDS_A_CASE) else ""
            child.kill()
            child.join()
            print(text or f"{name}: no launch of {tiles} tiles", file=out if text else sys.stderr, flush=True)


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
