"""All-gather + GEMM: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/ag_gemm/ag_gemm.py [--local-ranks 8] [--json FILE] [--plot FILE] [--shapes 70B]

Each row of a shape computes y[M, N] = all_gather(x[M / ranks, K]) @ w[K, N], with N = F / local-ranks:

    mm          cuBLAS alone, on gathered input          ag          NCCL's all-gather alone
    triton      our unmodified kernel alone              nccl+mm     the two, one after the other
    local       our fused kernel, all chunks arrived     async-tp    torch's fused_all_gather_matmul
    ours        fused, eager, x in the heap              graph       the same as a CUDA graph
    ours-copy   fused, eager, x elsewhere (copied in)

hidden: the host's time is hidden behind a sleeping device; visible: it is not. Inputs rotate past the L2 cache.
`bound` is ours (graph) over max(mm, bytes received at the link rate of H200: 380 GB/s).
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
PAPER = {"LLaMA-7B": (4096, 11008), "Qwen2-72B": (8192, 29568)}  # 8B/Mistral, 70B and 405B are above


def shapes() -> list[tuple[str, int, int, int]]:
    """(model, M, K, F): the twelve of H200.md; those of PAPER.md that are not among them, at M = 8192."""
    table = [(model, m, h, f) for model, (h, f) in HIDDEN.items() for m in (1024, 4096, 8192)]
    return table + [(model, 8192, h, f) for model, (h, f) in PAPER.items()]


def run_shape(
    m: int, k: int, n: int, rounds: int, chunkings: list[ops.Chunking]
) -> dict[str, dict[str, float]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = m // size
    footprint = 2 * (m * k + k * n + m * n)
    num_sets = max(2, min(6, math.ceil(180e6 / footprint)))
    torch.manual_seed(1234 + rank)
    shards, weights, outs, gathered, fused = [], [], [], [], []
    for _ in range(num_sets):
        shards.append(torch.randn(rows, k, device="cuda", dtype=torch.bfloat16))
        weights.append(torch.randn(k, n, device="cuda", dtype=torch.bfloat16))
        outs.append(torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
        gathered.append(torch.empty(m, k, device="cuda", dtype=torch.bfloat16))
        op = ops.AllGatherMatmul(m, n, k)
        op.shard().copy_(shards[-1])
        fused.append(op)

    def pick(i: int) -> int:
        return i % num_sets

    def mm(i: int) -> None:
        torch.mm(gathered[pick(i)], weights[pick(i)], out=outs[pick(i)])

    def ag(i: int) -> None:
        dist.all_gather_into_tensor(gathered[pick(i)], shards[pick(i)])

    def unfused(i: int) -> None:
        ag(i)
        mm(i)

    def triton_alone(i: int) -> None:
        fused[pick(i)].unfused(gathered[pick(i)], weights[pick(i)], outs[pick(i)])

    def local(i: int) -> None:
        fused[pick(i)].run_local(weights[pick(i)], outs[pick(i)])

    def ours(i: int) -> None:
        op = fused[pick(i)]
        op(op.shard(), weights[pick(i)], outs[pick(i)])

    def ours_copy(i: int) -> None:
        fused[pick(i)](shards[pick(i)], weights[pick(i)], outs[pick(i)])

    def async_tp(i: int) -> None:
        torch.ops.symm_mem.fused_all_gather_matmul(
            shards[pick(i)], [weights[pick(i)]], 0, dist.group.WORLD.group_name
        )

    for i in range(num_sets):
        unfused(i)
    reference = [torch.mm(gathered[i], weights[i]).float() for i in range(num_sets)]
    for i in range(num_sets):
        outs[i].fill_(float("nan"))
        ours(i)
        torch.cuda.synchronize()
        error = ((outs[i].float() - reference[i]).norm() / reference[i].norm()).item()
        if not error < 5e-3:
            raise SystemExit(f"rank {rank}: ours is wrong at M={m} N={n} K={k}: relative error {error}")
    expected = [out.clone() for out in outs]
    del reference
    graphs = [capture(lambda i=i: ours(i)) for i in range(num_sets)]
    candidates = [
        Candidate("mm", mm),
        Candidate("triton", triton_alone),
        Candidate("local", local),
        Candidate("ag", ag),
        Candidate("nccl+mm", unfused),
        Candidate("async-tp", async_tp),
        Candidate("ours", ours),
        Candidate("ours-copy", ours_copy),
        Candidate("graph", lambda i: graphs[pick(i)].replay()),
    ]
    for chunking in chunkings:
        if chunking == fused[0].chunking:
            continue
        others = [ops.AllGatherMatmul(m, n, k, chunking=chunking) for _ in range(num_sets)]
        for op, shard in zip(others, shards, strict=True):
            op.shard().copy_(shard)
        replays = [
            capture(lambda op=op, i=i: op(op.shard(), weights[i], outs[i])) for i, op in enumerate(others)
        ]
        peers = "p" if chunking.peer_by_peer else ""
        engine = f":e{chunking.engine_blocks}" if chunking.engine_blocks else ""
        name = f"[{chunking.rows}x{chunking.slices}{peers}{engine}]"
        for i, op in enumerate(others):
            outs[i].fill_(float("nan"))
            replays[i].replay()
            torch.cuda.synchronize()
            op.check()
            wrong = (outs[i].float() - expected[i].float()).norm() / expected[i].float().norm()
            if not wrong.item() < 5e-3:
                raise SystemExit(f"rank {rank}: {name} is wrong at M={m} N={n} K={k}")
        candidates.append(Candidate(name, lambda i, g=replays: g[pick(i)].replay(), visible=False))
        fused += others
    result = measure(candidates, rounds)
    for op in fused:
        op.check()
    graphs.clear()
    candidates.clear()
    for op in fused:
        op.close()
    return result


def ratios(row: dict, m: int, k: int, size: int) -> dict[str, float]:
    ours = row["graph"]["hidden_us"]
    bytes_in = 2 * (m - m // size) * k
    floor = max(row["mm"]["hidden_us"], bytes_in / LINK_BYTES_PER_US)
    best = min(row["nccl+mm"]["hidden_us"], row["async-tp"]["hidden_us"])
    return {
        "vs_unfused": row["nccl+mm"]["hidden_us"] / ours,
        "vs_unfused_eager": row["nccl+mm"]["hidden_us"] / row["ours"]["hidden_us"],
        "vs_best": best / ours,
        "bound": ours / floor,
        "wait_cost": row["local"]["hidden_us"] / row["triton"]["hidden_us"],
    }


def parse_chunking(text: str) -> ops.Chunking:
    cut, _, engine = text.partition(":e")
    rows, slices = map(int, cut.rstrip("p").split("x"))
    return ops.Chunking(rows, slices, cut.endswith("p"), int(engine or 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--local-ranks", type=int, default=0, help="N = F / this (default: the number of GPUs)"
    )
    parser.add_argument("--shapes", default="", help="only models whose name contains this")
    parser.add_argument("--m", default="", help="only these M, comma-separated")
    parser.add_argument(
        "--chunkings",
        default="",
        help="also these cuts of a shard: ROWSxSLICES[p][:eBLOCKS], such as 2x1,1x2p,1x4:e8",
    )
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
    chunkings = [parse_chunking(text) for text in options.chunkings.split(",") if text]
    wanted_m = {int(m) for m in options.m.split(",") if m}
    table = []
    for model, m, k, f in shapes():
        if options.shapes not in model or (wanted_m and m not in wanted_m):
            continue
        n = f // divide
        row = run_shape(m, k, n, options.rounds, chunkings)
        entry = {"model": model, "M": m, "K": k, "N": n, "rows": row, **ratios(row, m, k, size)}
        table.append(entry)
        if rank == 0:
            cells = " ".join(
                f"{name}={v['hidden_us']:.0f}/{v.get('visible_us', float('nan')):.0f}"
                for name, v in row.items()
            )
            print(
                f"{model:9} M={m:5} N={n:5} K={k:5} | {cells} | x{entry['vs_unfused']:.2f} "
                f"(eager {entry['vs_unfused_eager']:.2f}) best x{entry['vs_best']:.2f} bound {entry['bound']:.2f} "
                f"waits {entry['wait_cost']:.3f}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if rank == 0:
        for m in (1024, 4096, 8192):
            values = [e["vs_unfused"] for e in table if e["M"] == m and e["model"] in HIDDEN]
            if values:
                print(
                    f"M={m}: geometric mean of nccl+mm / ours (graph) {statistics.geometric_mean(values):.3f}"
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
    series = {"nccl+mm": "#9aa5b1", "async-tp": "#d9a441", "graph": "#2b6cb0"}
    for i, (name, colour) in enumerate(series.items()):
        heights = [e["rows"]["nccl+mm"]["hidden_us"] / e["rows"][name]["hidden_us"] for e in report["table"]]
        places = [x + 0.27 * (i - 1) for x in range(len(labels))]
        axes.bar(places, heights, 0.26, color=colour, label="ours" if name == "graph" else name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylabel("speed, NCCL + cuBLAS = 1")
    axes.set_title(f"all-gather + GEMM, bf16, {report['machine']}")
    axes.legend(frameon=False, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
