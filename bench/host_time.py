"""Host time of a call: what enqueueing an operator takes, against torch's collective and matmul. Start with torchrun:

    torchrun --nproc-per-node 2 bench/host_time.py [--tokens 1024,4096] [--json FILE]

Where there is one GPU, both ranks share it, and torch's collectives are left out. The device sleeps meanwhile, so nothing waits for it; us a call, median of the rounds, on rank 0. `op` is the C++ part of
ours: the driver's calls; `graph` the same as one launch of a graph. M as given, N and K of Llama 8B by eight. `×` is torch's pair over ours.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))  # PYTHONPATH comes first

import syncopate as sy  # noqa: E402
from syncopate.bench.session import Progress, host_us, start  # noqa: E402

HIDDEN, LOCAL = 4096, 1792
BUSY = 40, 30_000_000  # calls of a round, and cycles that the device sleeps meanwhile
DTYPE = torch.bfloat16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=DTYPE)


def row(name: str, m: int, op: Any, x: torch.Tensor, n: int, pair: Callable, rounds: int) -> dict[str, Any]:
    """Of `op`, and of pair(x, w)."""
    w = random(x.shape[1], n)
    out = op(x, w)
    op(x, w, out)
    if dist.get_backend() == "nccl":
        pair(x, w)
    entry = {
        "operator": name,
        "M": m,
        "ours_us": host_us(lambda: op(x, w, out), rounds, *BUSY),
    }
    if dist.get_backend() == "nccl":
        entry["pair_us"] = host_us(lambda: pair(x, w), rounds, *BUSY)
    if op.prepared is not None:  # else the unfused pair is the choice
        executable, given = op._executable.native, (x, w, out)
        executable.use_graphs(0)
        entry["op_us"] = host_us(lambda: executable.run(given), rounds, *BUSY)
        executable.use_graphs(2)  # eager calls take one where that is quicker
        for _ in range(3):
            executable.run(given)
        if executable.graph_launches:
            entry["graph_us"] = host_us(lambda: executable.run(given), rounds, *BUSY)
    op.close()
    called, group = getattr(torch.ops.syncopate, name), dist.group.WORLD.group_name
    for mode, grad in (("no_grad", False), ("grad", True)):
        with torch.set_grad_enabled(grad):
            entry[f"custom_op_{mode}_us"] = host_us(lambda: called(x, w, group), rounds, *BUSY)
    entry["function_us"] = host_us(lambda: getattr(sy.ops, name)(x, w), rounds, *BUSY)
    return entry


def rows(m: int, rounds: int) -> list[dict[str, Any]]:
    size = dist.get_world_size()
    product, gathered = random(m, HIDDEN), random(m, HIDDEN)
    part, up = random(m // size, HIDDEN), random(m, LOCAL)

    def reduce_scatter(x: torch.Tensor, w: torch.Tensor) -> None:
        torch.mm(x, w, out=product)
        dist.reduce_scatter_tensor(part, product)

    def all_reduce(x: torch.Tensor, w: torch.Tensor) -> None:
        torch.mm(x, w, out=product)
        dist.all_reduce(product)

    def all_gather(x: torch.Tensor, w: torch.Tensor) -> None:
        dist.all_gather_into_tensor(gathered, x)
        torch.mm(gathered, w, out=up)

    scatters = sy.ops.MatmulReduceScatter(m, HIDDEN, LOCAL, DTYPE)
    reduces = sy.ops.MatmulAllReduce(m, HIDDEN, LOCAL, DTYPE)
    gathers = sy.ops.AllGatherMatmul(m, LOCAL, HIDDEN, DTYPE)
    return [
        row("matmul_reduce_scatter", m, scatters, random(m, LOCAL), HIDDEN, reduce_scatter, rounds),
        row("matmul_all_reduce", m, reduces, random(m, LOCAL), HIDDEN, all_reduce, rounds),
        row("all_gather_matmul", m, gathers, random(m // size, HIDDEN), LOCAL, all_gather, rounds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="", help="M, comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=600)
    parser.add_argument("--json", default="", help="write the report here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("host_time.py: host ranks run the kernel themselves; it needs GPUs")
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        torch.cuda.set_device(0)
        dist.init_process_group("gloo")  # NCCL takes no two ranks on one GPU
    else:
        start(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "")
    progress = Progress(options)
    try:
        tokens = [int(text) for text in (options.tokens or "128,1024,4096").split(",")]
    except ValueError:
        raise SystemExit(f"host_time.py: --tokens {options.tokens}: expected numbers") from None
    for m in tokens:
        for entry in rows(m, options.rounds):
            progress.add(entry)
            ours, op, pair = (entry.get(f"{name}_us") for name in ("ours", "op", "pair"))
            inside = "unfused" if op is None else f"op={op:.1f}"
            if "graph_us" in entry:
                inside += f" graph={entry['graph_us']:.1f}"
            routes = " ".join(
                f"{title}={entry[key]:.1f}"
                for title, key in (
                    ("op(no grad)", "custom_op_no_grad_us"),
                    ("op(grad)", "custom_op_grad_us"),
                    ("function", "function_us"),
                )
            )
            of_torch = "" if pair is None else f" torch={pair:.1f} ×{pair / ours:.2f}"
            progress.say(f"{entry['operator']:22} M={m:5} | ours={ours:.1f} {inside} {routes}{of_torch}")
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
