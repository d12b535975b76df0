"""Times strategies of problems against each other, on the GPUs of one host: whether another choice is a better one.

    torchrun --nproc-per-node 2 bench/tune/compare.py CHANGED.json [--seconds 60] [-o compared.json]

CHANGED.json is a list of [SPEC, strategy, strategy, …], as JSON of strategies (changed.py writes it). Prints of each the µs of
both, as the estimate takes calls (replayed, of operands that no cache holds), and second over first; then the mean and the worst.
The two take turns, so that a clock that falls slows both. What fails on some rank is said and left out. -o writes what estimate.py
and fit.py read of bench/results (compared_*.json).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

TURNS = 3

#: (operator, extents, strategies as JSON) → µs of each.
Timed = Callable[[str, tuple[int, int, int], Sequence[str]], Sequence[float]]


def parsed(pair: Sequence[Any]) -> tuple[str, tuple[int, int, int], list[str]]:
    spec, *strategies = pair
    name, _, rest = spec.partition(":")
    given = dict(part.split("=") for part in rest.split(","))
    m, n, k = (int(given[axis]) for axis in "MNK")
    return name, (m, n, k), [json.dumps(strategy) for strategy in strategies[:2]]


def in_turns(times: Sequence[Callable[[], float]]) -> list[float]:
    """The median of each, measured one after another in every turn."""
    turns = [[one() for one in times] for _ in range(TURNS)]
    return [statistics.median(us) for us in zip(*turns, strict=True)]


def compared(
    pairs: Sequence[Sequence[Any]], timed: Timed, late: Callable[[], bool], found: list[Any] | None = None
) -> Iterator[str]:
    """Lines to print: of pairs until it is `late`, then of all of them. `found` gets [SPEC, [[strategy, µs], …]] of each."""
    ratios = []
    for number, pair in enumerate(pairs):
        if late():
            yield f"{len(pairs) - number} are left out: no time"
            break
        try:
            first, second = timed(*parsed(pair))
        except RuntimeError as error:
            yield f"{pair[0]:60} fails: {error}"
            continue
        ratios.append(second / first)
        if found is not None:
            found.append([pair[0], [[pair[1], round(first, 1)], [pair[2], round(second, 1)]]])
        yield f"{pair[0]:60} {first:8.1f} {second:8.1f} {ratios[-1]:6.3f}"
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield f"{len(ratios)} compared: {mean:.3f} on average, {max(ratios):.3f} at worst"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("changed", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()

    import torch
    import torch.distributed as dist
    from syncopate.measure.calls import Calls, operator
    from syncopate.measure.links import Ranks
    from syncopate.ops.operator import members_of
    from syncopate.strategy import Strategy

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    ranks = Ranks(members_of(None, "cuda"))
    calls, begin = Calls(ranks), time.monotonic()

    def timed(name: str, extents: tuple[int, int, int], strategies: Sequence[str]) -> Sequence[float]:
        with ExitStack() as made:
            graphs: list[Any] = []
            held: list[Any] = []
            for text in strategies:
                op = made.enter_context(operator(ranks.group, name, extents, Strategy.from_json(text)))
                held.append(calls.call_of(op))  # what the graph reads
                graphs.append(calls.captured(held[-1]))
            return in_turns([lambda graph=graph: calls.replayed(graph) for graph in graphs])

    def together(*pair: Any) -> Sequence[float]:
        return ranks.group.together("a comparison", lambda: timed(*pair))

    found: list[Any] = []
    for line in compared(
        json.loads(options.changed.read_text()),
        together,
        lambda: ranks.slowest(time.monotonic() - begin) > options.seconds,
        found,
    ):
        if dist.get_rank() == 0:
            print(line, flush=True)
    if options.output and dist.get_rank() == 0:
        of = {
            "gpu": torch.cuda.get_device_name().removeprefix("NVIDIA "),
            "ranks": dist.get_world_size(),
            "date": time.strftime("%Y-%m-%d"),
        }
        options.output.write_text(json.dumps(of | {"compared": found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
