"""GEMM + reduce-scatter: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/gemm_rs/gemm_rs.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Each row of a shape computes y[M / ranks, N] = reduce_scatter(x[M, K] @ w[K, N]), with K = F / local-ranks, N = hidden:

    mm          cuBLAS alone, all of x @ w               rs          NCCL's reduce-scatter alone
    triton      our unmodified kernel alone              mm+nccl     the two, one after the other
    local       our fused kernel alone, with its posts   async-tp    torch's fused_matmul_reduce_scatter
    ours        fused, eager                             graph       the same as a CUDA graph
    [S]         other splits of a shard (--splits), as graphs

hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs rotate past the L2 cache.
`bound` is ours (graph) over max(mm, bytes sent at the link rate of H200: 380 GB/s). Ours sums as fp32 in rank order.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from harness import Candidate, capture, measure  # noqa: E402
from syncopate import ops  # noqa: E402

LINK_BYTES_PER_US = 380e3  # copy engine, one direction (H200.md: 367 to 395 GB/s)
HIDDEN = {"8B": (4096, 14336), "70B": (8192, 28672), "GPT-3": (12288, 49152), "405B": (16384, 53248)}
PAPER = {"LLaMA-7B": (4096, 11008), "Qwen2-72B": (8192, 29568)}


def shapes() -> list[tuple[str, int, int, int]]:
    """(model, M, N, F): the twelve of H200.md; those of PAPER.md that are not among them, at M = 8192."""
    table = [(model, m, h, f) for model, (h, f) in HIDDEN.items() for m in (1024, 4096, 8192)]
    return table + [(model, 8192, h, f) for model, (h, f) in PAPER.items()]


def run_shape(
    m: int, k: int, n: int, rounds: int, splits: list[int], async_tp: bool
) -> dict[str, dict[str, float]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = m // size
    footprint = 2 * (m * k + k * n + m * n)
    num_sets = max(2, min(6, math.ceil(180e6 / footprint)))
    torch.manual_seed(1234 + rank)
    inputs, weights, partial, outs, fused = [], [], [], [], []
    for _ in range(num_sets):
        inputs.append(torch.randn(m, k, device="cuda", dtype=torch.bfloat16))
        weights.append(torch.randn(k, n, device="cuda", dtype=torch.bfloat16))
        partial.append(torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
        outs.append(torch.empty(rows, n, device="cuda", dtype=torch.bfloat16))
        fused.append(ops.MatmulReduceScatter(m, n, k))

    def pick(i: int) -> int:
        return i % num_sets

    def mm(i: int) -> None:
        torch.mm(inputs[pick(i)], weights[pick(i)], out=partial[pick(i)])

    def rs(i: int) -> None:
        dist.reduce_scatter_tensor(outs[pick(i)], partial[pick(i)])

    def unfused(i: int) -> None:
        mm(i)
        rs(i)

    def triton_alone(i: int) -> None:
        fused[pick(i)].unfused(inputs[pick(i)], weights[pick(i)], partial[pick(i)])

    def local(i: int) -> None:
        fused[pick(i)].run_local(inputs[pick(i)], weights[pick(i)])

    def ours(i: int) -> None:
        fused[pick(i)](inputs[pick(i)], weights[pick(i)], outs[pick(i)])

    def fused_torch(i: int) -> None:
        torch.ops.symm_mem.fused_matmul_reduce_scatter(
            inputs[pick(i)], weights[pick(i)], "sum", 0, dist.group.WORLD.group_name
        )

    reference = []
    for i in range(num_sets):
        total = torch.mm(inputs[i], weights[i]).float()
        mine = torch.empty(rows, n, device="cuda")
        dist.reduce_scatter_tensor(mine, total)
        reference.append(mine)
    for i in range(num_sets):
        outs[i].fill_(float("nan"))
        ours(i)
        torch.cuda.synchronize()
        error = ((outs[i].float() - reference[i]).norm() / reference[i].norm()).item()
        if not error < 1e-2:
            raise SystemExit(f"rank {rank}: ours is wrong at M={m} N={n} K={k}: relative error {error}")
    expected = [out.clone() for out in outs]
    del reference
    graphs = [capture(lambda i=i: ours(i)) for i in range(num_sets)]
    candidates = [
        Candidate("mm", mm),
        Candidate("triton", triton_alone),
        Candidate("local", local),
        Candidate("rs", rs),
        Candidate("mm+nccl", unfused),
        Candidate("ours", ours),
        Candidate("graph", lambda i: graphs[pick(i)].replay()),
    ]
    if async_tp:
        candidates.insert(5, Candidate("async-tp", fused_torch))
    for split in splits:
        if split == fused[0].split:
            continue
        others = [ops.MatmulReduceScatter(m, n, k, split=split) for _ in range(num_sets)]
        replays = [
            capture(lambda op=op, i=i: op(inputs[i], weights[i], outs[i])) for i, op in enumerate(others)
        ]
        for i, op in enumerate(others):
            outs[i].fill_(float("nan"))
            replays[i].replay()
            torch.cuda.synchronize()
            op.check()
            if not torch.equal(outs[i], expected[i]):
                raise SystemExit(f"rank {rank}: split {split} gives other bits at M={m} N={n} K={k}")
        candidates.append(Candidate(f"[{split}]", lambda i, g=replays: g[pick(i)].replay(), visible=False))
        fused += others
    result = measure(candidates, rounds)
    for op in fused:
        op.check()
    graphs.clear()
    candidates.clear()
    for op in fused:
        op.close()
    return result


def ratios(row: dict, m: int, n: int, size: int) -> dict[str, float]:
    ours = row["graph"]["hidden_us"]
    bytes_out = 2 * (m - m // size) * n
    floor = max(row["mm"]["hidden_us"], bytes_out / LINK_BYTES_PER_US)
    best = min(row[name]["hidden_us"] for name in ("mm+nccl", "async-tp") if name in row)
    return {
        "vs_unfused": row["mm+nccl"]["hidden_us"] / ours,
        "vs_unfused_eager": row["mm+nccl"]["hidden_us"] / row["ours"]["hidden_us"],
        "vs_best": best / ours,
        "bound": ours / floor,
        "post_cost": row["local"]["hidden_us"] / row["triton"]["hidden_us"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--local-ranks", type=int, default=0, help="K = F / this (default: the number of GPUs)"
    )
    parser.add_argument("--shapes", default="", help="only models whose name contains this")
    parser.add_argument("--m", default="", help="only these M, comma-separated")
    parser.add_argument("--splits", default="", help="also these splits of a shard, comma-separated: 1,2,4")
    parser.add_argument("--no-async-tp", action="store_true", help="leave torch's fused operator out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default="")
    parser.add_argument("--plot", default="")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    size = dist.get_world_size()
    import torch.distributed._symmetric_memory as symmetric_memory

    symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    divide = options.local_ranks or size
    splits = [int(text) for text in options.splits.split(",") if text]
    wanted_m = {int(m) for m in options.m.split(",") if m}
    table = []
    for model, m, n, f in shapes():
        if options.shapes not in model or (wanted_m and m not in wanted_m):
            continue
        k = f // divide
        row = run_shape(m, k, n, options.rounds, splits, not options.no_async_tp)
        entry = {"model": model, "M": m, "K": k, "N": n, "rows": row, **ratios(row, m, n, size)}
        table.append(entry)
        if rank == 0:
            cells = " ".join(
                f"{name}={v['hidden_us']:.0f}/{v.get('visible_us', float('nan')):.0f}"
                for name, v in row.items()
            )
            print(
                f"{model:9} M={m:5} N={n:5} K={k:5} | {cells} | x{entry['vs_unfused']:.2f} "
                f"(eager {entry['vs_unfused_eager']:.2f}) best x{entry['vs_best']:.2f} bound {entry['bound']:.2f} "
                f"posts {entry['post_cost']:.3f}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if rank == 0:
        for m in (1024, 4096, 8192):
            values = [e["vs_unfused"] for e in table if e["M"] == m and e["model"] in HIDDEN]
            if values:
                print(
                    f"M={m}: geometric mean of mm+nccl / ours (graph) {statistics.geometric_mean(values):.3f}"
                )
        report = {
            "machine": f"{size} x {torch.cuda.get_device_name()}",
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": subprocess.run(
                ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout.strip(),
            "command": " ".join(["torchrun", "--nproc-per-node", str(size), *sys.argv]),
            "table": table,
        }
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1))
        if options.plot:
            plot(report, options.plot)
    dist.destroy_process_group()


def plot(report: dict, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = [f"{e['model']}\n{e['M']}" for e in report["table"]]
    figure, axes = plt.subplots(figsize=(1 + 0.8 * len(labels), 4))
    series = {"mm+nccl": "#9aa5b1", "async-tp": "#d9a441", "graph": "#2b6cb0"}
    for i, (name, colour) in enumerate(series.items()):
        if any(name not in e["rows"] for e in report["table"]):
            continue
        heights = [e["rows"]["mm+nccl"]["hidden_us"] / e["rows"][name]["hidden_us"] for e in report["table"]]
        places = [x + 0.27 * (i - 1) for x in range(len(labels))]
        axes.bar(places, heights, 0.26, color=colour, label="ours" if name == "graph" else name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylabel("speed, cuBLAS + NCCL = 1")
    axes.set_title(f"GEMM + reduce-scatter, bf16, {report['machine']}")
    axes.legend(frameon=False, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
