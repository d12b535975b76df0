"""GEMM + reduce-scatter of more ranks than there are GPUs, by the traffic of one of them. Start with torchrun on two GPUs:

    torchrun --nproc-per-node 2 bench/gemm_rs/emulated.py --ranks 4 [--ways fused:2,mixed:1] [--json FILE]

Each of the two stands for one of so many ranks (0, and the one half-way round). It makes the whole product, sends every
shard but its own to the other GPU, where all of them are contributions to that one's shard, and sums as many as come from
there. So the kernel, the copies, what the links carry in each direction, the sums and the order of everything are one rank's;
what is not: that contributions come from, and go to, several GPUs, which may be late, and meet others' in the switch.
Beside as many GPUs, four took within a few percent of these times, eight 3 to 8 % more.

    cublas      cuBLAS alone, all of x @ w
    default     the way that an operator for so many ranks takes by itself (syncopate.strategy)
    fused:2     other ways (--ways): inline, fused:P, mixed:N, narrow:N

As CUDA graphs, the host's time hidden; each row is first compared with a sum in fp32.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # PYTHONPATH comes first
sys.path.append(str(Path(__file__).resolve().parents[1]))
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported

import syncopate as sy  # noqa: E402
from syncopate import plans  # noqa: E402
from syncopate.bench.case import MatmulReduceScatter, Rotating, on_gpu  # noqa: E402
from syncopate.bench.measure import Candidate, measure  # noqa: E402
from syncopate.bench.session import Progress, start  # noqa: E402
from syncopate.bench.shapes import Shape, shapes_of, widths  # noqa: E402
from syncopate.call.arguments import DTYPE_NAMES  # noqa: E402
from syncopate.strategy import Problem  # noqa: E402
from ways import strategy_of  # noqa: E402

H200_SMS = 132
HOST_SCALE = 32
KINDS = ("inline", "fused", "mixed", "narrow")


def shard_of(gpu: int, ranks: int, offset: int = 0) -> int:
    """That of the rank for which `gpu` stands, or of the one `offset` after it."""
    return (gpu * (ranks // 2) + offset) % ranks


def emulated_plan(m: int, n: int, dtype: str, ranks: int, split: int, backends: list[str]) -> Any:
    """As plans.push_reduce for `ranks` ranks, parts of columns in turn, but all peers are the other GPU."""

    def chunk(shard: int, part: int) -> dict[str, Any]:
        rows, columns = m // ranks, n // split
        region = [[shard * rows, (shard + 1) * rows], [part * columns, (part + 1) * columns]]
        return {"tensor": "C", "region": region}

    def op(gpu: int, offset: int, part: int) -> dict[str, Any]:
        return {
            "op": "push",
            "peer": 1 - gpu,
            "src": chunk(shard_of(gpu, ranks, offset), part),
            "dst": chunk(shard_of(1 - gpu, ranks), part),
            "reduce": "sum",
            "backend": backends[offset - 1],
        }

    whole = {"tensor": "C", "region": [[0, m], [0, n]]}
    return plans.from_json(
        json.dumps(
            {
                "schema": "syncopate.plan/1",
                "mesh": [["gpu", 2]],
                "tensors": {"C": {"shape": [m, n], "dtype": dtype}},
                "initial": [],
                "produced": [{"rank": gpu, **whole, "partial": True} for gpu in (0, 1)],
                "final": [],  # no shard ends as a sum over ranks of the same thing, which is all that a plan may promise
                "ranks": [
                    {
                        "rank": gpu,
                        "ops": [op(gpu, o, part) for part in range(split) for o in range(1, ranks)],
                    }
                    for gpu in (0, 1)
                ],
            }
        )
    )


class Emulated(sy.ops.MatmulReduceScatter):
    """One of `ranks` ranks on each of two GPUs."""

    ranks = 4

    def outline(self) -> Any:
        """Its contributions are limited by the ranks, not by the GPUs."""
        chosen = self.strategy
        backends = ["auto"] * (self.ranks - 1 - chosen.stored) + ["tma_inline"] * chosen.stored
        dtype = DTYPE_NAMES[self.problem.out_dtype]
        plan = emulated_plan(self.m, self.n, dtype, self.ranks, chosen.split, backends)
        return SimpleNamespace(plan=plan, bindings=[{"c_desc": "C"}], input="", scales="", output="C")

    @property
    def out_rows(self) -> int:
        return self.m // self.ranks


class OneOfMany(MatmulReduceScatter):
    """Each of two GPUs is one of `ranks` ranks; `kind` is the operator of the way that is measured."""

    kind: Any = None

    def __init__(self, shape: Shape, ranks: int) -> None:
        self.ranks = ranks
        super().__init__(shape)

    def make_tensors(self):
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        self.x, self.w, self.out = self.random(m, k), self.random(k, n), self.empty(m // self.ranks, n)
        self.partial = self.empty(m, n)

    def make_right(self):
        """The own contribution, and all that the other GPU sends."""
        shards = (self.ranks, self.shape.m // self.ranks, self.shape.n)
        parts = [torch.mm(a, b).float().view(shards) for a, b in zip(self.x, self.w, strict=True)]
        own = shard_of(self.rank, self.ranks)
        right = []
        for part in parts:
            both = [torch.empty_like(part[own]) for _ in (0, 1)]
            dist.all_gather(both, part.sum(0) - part[own])
            right.append(part[own] + both[1 - self.rank])
        return right

    def way(self, name: str, strategy: sy.Strategy) -> Candidate:
        self.kind = type("EmulatedWay", (Emulated,), {"ranks": self.ranks})
        made = self.operators(strategy=strategy)
        rows, own = self.shape.m // self.ranks, shard_of(self.rank, self.ranks)
        sums = Rotating(op.prepare().tensors["C"][own * rows : (own + 1) * rows] for op in made)
        replay = self.graphs(lambda i: made(i)(self.x(i), self.w(i), self.out(i)))

        def afresh(i: int) -> torch.Tensor:
            sums(i).fill_(float("nan"))
            replay(i)
            return sums(i)

        self.expect(name, afresh)
        return Candidate(name, replay, visible=False)


def run_shape(shape: Shape, ranks: int, ways: list[str], rounds: int) -> dict[str, Any]:
    """The report's entry for one shape."""
    if shape.m % ranks:
        raise ValueError(f"M = {shape.m} is no multiple of {ranks} ranks")
    case = OneOfMany(shape, ranks)
    sms = torch.cuda.get_device_properties(case.device).multi_processor_count if on_gpu() else H200_SMS
    problem = Problem("matmul_reduce_scatter", shape.m, shape.n, shape.k, case.dtype, ranks, sms)
    chosen = sy.strategy.choose(problem)
    try:
        candidates = [Candidate("cublas", case.product, visible=False)]
        try:
            if chosen.pull or chosen.unfused:
                raise ValueError("it is not emulated")
            candidates.append(case.way("default", chosen))
        except (RuntimeError, ValueError) as error:
            case.left_out["default"] = str(error).splitlines()[0]
        candidates += [case.way(name, strategy_of(name)) for name in ways]
        times = measure(candidates, rounds)
        case.check()
        candidates.clear()
    finally:
        case.close()
    return {"rows": times, **({"left_out": case.left_out} if case.left_out else {})}


def require_way(ranks: int, way: str) -> None:
    if way.partition(":")[0] not in KINDS:
        raise ValueError(f"way {way}: expected one of {', '.join(KINDS)}")
    if strategy_of(way).stored >= ranks:
        raise ValueError(f"way {way}: there are {ranks - 1} contributions")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="that are emulated")
    parser.add_argument("--local-ranks", type=int, default=8, help="F is divided by this (default 8)")
    parser.add_argument("--ways", default="", help="also these: fused:2,mixed:1,inline")
    parser.add_argument("--shapes", default="", help="models, comma-separated")
    parser.add_argument("--tokens", default="1024,4096,8192", help="M, comma-separated")
    parser.add_argument("--rounds", type=int, default=15 if on_gpu() else 1)
    parser.add_argument(
        "--budget", type=float, default=110, help="seconds after which no further shape begins"
    )
    parser.add_argument("--json", default="", help="write the report here")
    return parser.parse_args()


def main() -> None:
    options = parse()
    ways = list(filter(None, options.ways.split(",")))
    try:
        if options.ranks < 2:
            raise ValueError(f"--ranks {options.ranks}: expected at least 2")
        for name in ways:
            require_way(options.ranks, name)
        models, tokens = widths(options.shapes), [int(m) for m in options.tokens.split(",")]
    except ValueError as error:
        raise SystemExit(f"emulated.py: {error}") from None
    start(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "")
    if dist.get_world_size() != 2:
        raise SystemExit(f"emulated.py runs on 2 ranks, not {dist.get_world_size()}")
    progress = Progress(options)
    progress.report["ranks"] = options.ranks
    failed = False
    scale = 1 if on_gpu() else HOST_SCALE
    for shape in shapes_of("K", models, tokens, options.local_ranks, scale, options.ranks):
        where = f"{shape.model:9} M={shape.m:5} N={shape.n:5} K={shape.k:5} |"
        if progress.out_of_time():
            progress.say(f"{where} not measured: {options.budget:.0f} s are over (--budget)")
            continue
        entry = {
            "operator": "matmul_reduce_scatter",
            "model": shape.model,
            "M": shape.m,
            "K": shape.k,
            "N": shape.n,
        }
        try:
            entry |= run_shape(shape, options.ranks, ways, options.rounds)
            progress.say(
                f"{where} " + " ".join(f"{n}={row['hidden_us']:.0f}" for n, row in entry["rows"].items())
            )
        except Exception as error:  # noqa: BLE001 - the other shapes are still to be measured
            failed = True
            entry["error"] = f"{type(error).__name__}: {str(error).strip()}"
            progress.say(f"{where} FAILED {entry['error']}")
        progress.add(entry)
    dist.destroy_process_group()
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
