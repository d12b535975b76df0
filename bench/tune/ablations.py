"""One choice varied, all else as completed, by the estimate on a machine file: simulated, not measured. No GPU.

    python bench/tune/ablations.py [--machine h200x4] [--shape 70B]

What is measured is said by the commands of docs/tuning.md, "Ablations"; this prints the same tables as Markdown, in µs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from syncopate import _syncopate  # noqa: E402

SHAPES = {"8B": (4096, 14336), "70B": (8192, 28672), "GPT-3": (12288, 49152), "405B": (16384, 53248)}
GATHER, SCATTER, REDUCE = "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"
BACKENDS = ("copy_engine", "tma_dedicated", "ldst_dedicated", "tma_inline", "ldst_inline")
LOCAL_RANKS = 8

Json = dict[str, Any]


def problem(operator: str, m: int, shape: str, ranks: int) -> str:
    hidden, f = SHAPES[shape]
    n, k = (f // LOCAL_RANKS, hidden) if operator == GATHER else (hidden, f // LOCAL_RANKS)
    return f"{operator}:M={m},N={n},K={k},dtype=bf16,ranks={ranks},sms=132"


def us(key: str, strategy: Json, machine: str) -> str:
    made = _syncopate.tune.estimate(key, json.dumps(strategy), machine)
    return "-" if made["objection"] else f"{made['us']:.0f}"


def table(title: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    lines = [f"| {' | '.join([title, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join([name, *cells])} |" for name, cells in rows]) + "\n"


def varied(
    title: str, operators: list[tuple[str, int]], strategies: dict[str, Json], options: argparse.Namespace
) -> str:
    rows = []
    for operator, m in operators:
        key = problem(operator, m, options.shape, options.ranks)
        cells = [us(key, strategy, options.machine) for strategy in strategies.values()]
        rows.append((f"{operator}, M = {m}", [*cells, us(key, {"placement": "unfused"}, options.machine)]))
    return table(title, [*strategies, "unfused"], rows)


def by_backend(backend: str, operator: str) -> Json:
    """What tiles fetch, and what owners read by loads, is pulled."""
    pull = (operator == GATHER and backend == "tma_inline") or (
        operator != GATHER and backend == "ldst_inline"
    )
    return {"backend": backend} | ({"pull": True} if pull else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default="h200x4")
    parser.add_argument("--shape", default="70B", choices=tuple(SHAPES))
    options = parser.parse_args()
    options.ranks = int(options.machine.rpartition("x")[2])
    print(f"{options.shape} on {options.machine}, µs by the estimate\n")
    rows = []
    for operator in (GATHER, SCATTER, REDUCE):
        key = problem(operator, 4096, options.shape, options.ranks)
        by = [by_backend(backend, operator) for backend in BACKENDS]
        rows.append((f"{operator}, M = 4096", [us(key, one, options.machine) for one in by]))
    print(table("backend", list(BACKENDS), rows))
    both = [(GATHER, 4096), (REDUCE, 4096)]
    blocks = {
        str(n): {"backend": "ldst_dedicated", "engine_blocks": n, "split": 8, "split_axis": 1}
        for n in (4, 8, 12, 16, 32)
    }
    gathers = {n: {"backend": "tma_dedicated", "engine_blocks": int(n)} for n in blocks}
    sums = {n: one | {"pull": True} for n, one in blocks.items()}
    print(varied("communication SMs, copies", both[:1], gathers, options))
    print(varied("communication SMs, sums in eight parts", both[1:], sums, options))
    parts = {str(n): {"backend": "copy_engine", "chunking": {"rows": n}} for n in (1, 2, 4, 8, 16)}
    print(varied("chunks of a shard, before", [(GATHER, 1024), (GATHER, 8192)], parts, options))
    cuts = {str(n): {"backend": "copy_engine", "split": n} for n in (1, 2, 4, 8, 16)}
    after = [(SCATTER, 1024), (SCATTER, 8192), (REDUCE, 1024), (REDUCE, 8192)]
    print(varied("parts of rows, after", after, cuts, options))
    ways = {"push": {"backend": "copy_engine"}, "pull": {"backend": "copy_engine", "pull": True}}
    print(varied("push against pull", [(GATHER, m) for m in (64, 1024, 8192)], ways, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
