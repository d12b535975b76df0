"""GEMM + reduce-scatter of more ranks than there are GPUs, by the traffic of one of them. Start with torchrun on two GPUs:

    torchrun --nproc-per-node 2 bench/gemm_rs/emulated.py --ranks 4 [--local-ranks 8] [--ways fused:2,mixed:1] [--json FILE]

Each of the two stands for one of so many ranks (0, and the one half-way round). It makes the whole product, sends every
shard but its own to the other GPU, where all of them are contributions to that one's shard, and sums as many as come from
there. So the kernel, the copies, what the links carry in each direction, the sums and the order of everything are one rank's;
what is not: that contributions come from, and go to, several GPUs, which may be late, and meet others' in the switch.
docs/performance_log.md says how near the times come to those of as many GPUs.

    mm          cuBLAS alone, all of x @ w
    default     the way that an operator for so many ranks takes by itself (syncopate.strategy)
    fused:2     other ways (--ways): inline, fused:P, mixed:N, narrow:N, pulled_last:N

As CUDA graphs, the host's time hidden; each row is first compared with a sum in fp32.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemm_rs import BENCH, TOLERANCE  # noqa: E402
from harness import Candidate, measure  # noqa: E402
from syncopate import plans  # noqa: E402
from syncopate.strategy import Way  # noqa: E402
from syncopate.strategy.reduce_ways import choose_reduce_scatter_way  # noqa: E402
from tensor_parallel import ON_GPU, Progress, Rotating, Setup, Shape, parse, start, sy  # noqa: E402

H200_SMS = 132
KINDS = ("inline", "fused", "mixed", "narrow", "pulled_last")


def shard_of(gpu: int, ranks: int, offset: int = 0) -> int:
    """That of the rank for which `gpu` stands, or of the one `offset` after it."""
    return (gpu * (ranks // 2) + offset) % ranks


def emulated_plan(
    m: int, n: int, dtype: str, ranks: int, split: int, backends: list[str], pulled: int
) -> Any:
    """As plans.push_reduce for `ranks` ranks, parts of columns in turn, but all peers are the other GPU."""

    def chunk(shard: int, part: int) -> dict[str, Any]:
        rows, columns = m // ranks, n // split
        region = [[shard * rows, (shard + 1) * rows], [part * columns, (part + 1) * columns]]
        return {"tensor": "C", "region": region}

    def op(gpu: int, offset: int, part: int) -> dict[str, Any]:
        pull, peer = offset >= ranks - pulled, 1 - gpu
        source, owner = (peer, gpu) if pull else (gpu, peer)
        return {
            "op": "pull" if pull else "push",
            "peer": peer,
            "src": chunk(shard_of(source, ranks, offset), part),
            "dst": chunk(shard_of(owner, ranks), part),
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

    def check_problem(self) -> None:
        """The contributions are limited by the ranks, not by the GPUs."""

    def make_plan(self, mesh: plans.Mesh, dtype: str) -> Any:
        chosen = self.strategy
        sent = self.ranks - 1 - chosen.stored - chosen.pulled
        backends = ["auto"] * sent + ["tma_inline"] * chosen.stored + ["ldst_inline"] * chosen.pulled
        return emulated_plan(self.m, self.n, dtype, self.ranks, chosen.split, backends, chosen.pulled)

    @property
    def out_rows(self) -> int:
        return self.m // self.ranks


def emulating(ranks: int, way: Way) -> type[Emulated]:
    """The operator of a way that `ranks` ranks would take."""
    if way.kind not in KINDS:
        raise ValueError(f"way {way}: expected one of {', '.join(KINDS)}")
    if max(way.stored, way.pulled) >= ranks:
        raise ValueError(f"way {way}: there are {ranks - 1} contributions")
    return type("EmulatedWay", (Emulated,), {"ranks": ranks})


def run_shape(shape: Shape, ranks: int, ways: list[str], rounds: int) -> dict[str, Any]:
    """The report's entry for one shape."""
    m, n, k = shape.m, shape.n, shape.k
    if m % ranks:
        raise ValueError(f"M = {m} is no multiple of {ranks} ranks")
    setup = Setup(shape)
    x, w, out = setup.random(m, k), setup.random(k, n), setup.empty(m // ranks, n)
    product = setup.empty(m, n)
    parts = [torch.mm(a, b).float().view(ranks, m // ranks, n) for a, b in zip(x, w, strict=True)]
    own = shard_of(setup.rank, ranks)
    own_rows = slice(own * m // ranks, (own + 1) * m // ranks)
    sent = [part.sum(0) - part[own] for part in parts]
    come = [torch.empty_like(part) for part in sent]
    for send, receive in zip(sent, come, strict=True):
        both = [torch.empty_like(send) for _ in (0, 1)]
        dist.all_gather(both, send)
        receive.copy_(both[1 - setup.rank])
    right = [part[own] + extra for part, extra in zip(parts, come, strict=True)]
    num_sms = torch.cuda.get_device_properties(setup.device).multi_processor_count if ON_GPU else H200_SMS
    chosen = choose_reduce_scatter_way(m, n, k, setup.dtype, ranks, num_sms)
    try:
        candidates = [Candidate("mm", lambda i: torch.mm(x(i), w(i), out=product(i)), visible=False)]
        for name in ["default", *ways]:
            way = chosen if name == "default" else Way.named(name)
            if name == "default" and way.kind not in KINDS:
                setup.left_out[name] = f"{way} is not emulated"
                continue
            op = setup.operators(emulating(ranks, way), strategy=way.strategy)
            sums = Rotating(o.prepare().tensors["C"][own_rows] for o in op)
            replay = setup.graphs(lambda i, op=op: op(i)(x(i), w(i), out(i)))
            setup.expect(name, replay, sums, right, TOLERANCE)
            candidates.append(Candidate(name, replay, visible=False))
        times = measure(candidates, rounds)
        setup.check()
        candidates.clear()
    finally:
        setup.close()
    return {"way": str(chosen), "rows": times, **({"left_out": setup.left_out} if setup.left_out else {})}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=4, help="that are emulated")
    parser.add_argument("--ways", default="", help="also these: fused:2,mixed:1,pulled_last:1,inline")


def main() -> None:
    options = parse(__doc__, add_options)
    ways = list(filter(None, options.ways.split(",")))
    try:
        if options.ranks < 2:
            raise ValueError(f"--ranks {options.ranks}: expected at least 2")
        for name in ways:
            emulating(options.ranks, Way.named(name))
    except ValueError as error:
        raise SystemExit(f"emulated.py: {error}") from None
    start()
    if dist.get_world_size() != 2:
        raise SystemExit(f"emulated.py runs on 2 ranks, not {dist.get_world_size()}")
    progress = Progress(options)
    progress.report["ranks"] = options.ranks
    failed = False
    for shape in BENCH.chosen(options, options.local_ranks or options.ranks):
        where = f"{shape.model:9} M={shape.m:5} N={shape.n:5} K={shape.k:5} |"
        if progress.out_of_time():
            progress.say(f"{where} not measured: {options.budget:.0f} s are over (--budget)")
            continue
        entry = {"model": shape.model, "M": shape.m, "K": shape.k, "N": shape.n}
        try:
            entry |= run_shape(shape, options.ranks, ways, options.rounds)
            cells = " ".join(f"{name}={row['hidden_us']:.0f}" for name, row in entry["rows"].items())
            progress.say(f"{where} {cells} (default: {entry['way']})")
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
