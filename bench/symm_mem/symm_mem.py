"""torch's two symmetric-memory ops as torchtitan's tensor-parallel LLaMA calls them: torch's own against Syncopate's,
which take them by sy.symm_mem.override(). Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 2 bench/symm_mem/symm_mem.py [--models 8B,70B] [--rows 1024,…,8192] [--json FILE] [--csv FILE]

    qkv, w1w3    fused_all_gather_matmul of x [1, M / ranks, dim] along axis 1, with three and two weights' shards; "+A": x is returned
    wo, w2       fused_matmul_reduce_scatter along axis 1, by sum

Each result is compared with a collective and a product before it is timed. `taken`: Syncopate ran; what it passes on,
as the pair is known to be faster, is torch's own on both sides. Torch's own is called without the dispatcher, which
favours it where the host's time is visible. Where torch's own cannot run (host ranks have its fallback, ranks that
share a GPU have none), that is said. The mean is the geometric one of torch's time by ours, over all calls that both
could run.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as torchs

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "python")]

import syncopate as sy  # noqa: E402
from llama import LLAMA_8B, LLAMA_70B, SMALL, Config, joined  # noqa: E402
from syncopate.bench.measure import Candidate, measure  # noqa: E402
from syncopate.torch.unfused import gather  # noqa: E402

MODELS = {"8B": LLAMA_8B, "70B": LLAMA_70B, "small": SMALL}
CALLS = ("qkv", "qkv+A", "w1w3", "w1w3+A", "wo", "w2")
TOLERANCE = 2e-2  # of the largest value: bf16, and other orders of additions
COLUMNS = ("model", "call", "M", "ranks", "taken", "torch", "ours", "ratio", "why")


@dataclass
class Call:
    """`arguments`, with keywords `options`, of the op `name` in torch.ops.symm_mem."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def op(self) -> Callable[..., Any]:
        return getattr(torch.ops.symm_mem, self.name)

    def torchs_own(self, device: str) -> Callable[..., Any]:
        """What the dispatcher calls where nothing is overridden; on the CPU, what stands for it."""
        return getattr(torchs, f"_{self.name}" + ("" if device == "cuda" else "_fallback"))


def calls_of(
    c: Config, m: int, mesh: Any, dtype: torch.dtype, wanted: list[str]
) -> Iterator[tuple[str, Call]]:
    size, name = mesh.size(), mesh.get_group().group_name
    generator = torch.Generator(mesh.device_type).manual_seed(7 + mesh.get_local_rank())

    def data(*shape: int) -> torch.Tensor:
        made = torch.randn(*shape, device=mesh.device_type, dtype=torch.float32, generator=generator)
        return (made / shape[-1] ** 0.5).to(dtype)

    def weight(k: int, n: int) -> torch.Tensor:
        return data(n, k).t()  # as a Linear keeps it

    q, kv, hidden = c.heads * c.head // size, c.kv_heads * c.head // size, c.hidden // size
    gathered = {"qkv": (q, kv, kv), "w1w3": (hidden, hidden)}
    sent = {"wo": q, "w2": hidden}
    for call in wanted:
        kind, _, whole = call.partition("+")
        if kind in gathered:
            x, ws = data(1, m // size, c.dim), [weight(c.dim, n) for n in gathered[kind]]
            yield call, Call("fused_all_gather_matmul", (x, ws, 1, name), {"return_A": bool(whole)})
        else:
            x = data(1, m, sent[kind])
            yield (
                call,
                Call("fused_matmul_reduce_scatter", (x, weight(sent[kind], c.dim), "sum", 1, name), {}),
            )


def tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    whole, products = result
    return [*products, *([] if whole is None else [whole])]


def differs(made: Any, exact: Any) -> float:
    """The largest difference, of the largest value."""
    pairs = zip(tensors(made), tensors(exact), strict=True)
    return max(((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in pairs)


def exact_of(call: Call) -> Any:
    """By a collective of torch.distributed and products."""
    if call.name == "fused_all_gather_matmul":
        x, ws, _, name = call.arguments
        whole = gather(x[0], name)[None]
        return whole if call.options["return_A"] else None, [whole @ w for w in ws]
    x, w, *_ = call.arguments
    total = (x @ w).float()
    dist.all_reduce(total)
    return total.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def agreed(reason: str) -> str:
    """The first rank's that has one: ranks go on alike."""
    reasons: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


def why_torchs_cannot(device: str) -> str:
    """ "" if torch's own ops can run on these ranks."""
    if device == "cuda" and dist.get_backend() != "nccl":
        return "torch's symmetric memory takes a GPU a rank, and these share one"
    return ""


def measured(
    model: str, m: int, ours: sy.symm_mem.Override, options: argparse.Namespace, mesh: Any, dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    for call_name, call in calls_of(MODELS[model], m, mesh, dtype, options.calls.split(",")):
        row = {"model": model, "call": call_name, "M": m, "ranks": mesh.size(), "taken": False, "why": ""}
        why = why_torchs_cannot(mesh.device_type)
        own = call.torchs_own(mesh.device_type)
        candidates = (
            {} if why else {"torch": lambda i, own=own, call=call: own(*call.arguments, **call.options)}
        )
        exact = exact_of(call)
        before = ours.taken.total()
        try:
            if why and (reason := left(call)):
                raise NotImplementedError(reason)
            error = differs(call.op(*call.arguments, **call.options), exact)
            row["taken"] = ours.taken.total() > before
            candidates["ours"] = lambda i, call=call: call.op(*call.arguments, **call.options)
        except NotImplementedError as missing:
            error, why = 0.0, f"{missing}; {why}"
        if candidates.get("torch"):
            error = max(error, differs(own(*call.arguments, **call.options), exact))
        if agreed("wrong" * (error > TOLERANCE)):
            raise SystemExit(f"{model} {call_name} M={m}: differs by {error:.1e}")
        times = measure([Candidate(*item) for item in candidates.items()], options.rounds)
        row |= {name: round(time["hidden_us"], 1) for name, time in times.items()} | {"why": why}
        if len(times) == 2:
            row["ratio"] = round(row["torch"] / row["ours"], 4)
        yield row


def left(call: Call) -> str:
    """Why Syncopate passes the call on; asked only where torch's own could not take it."""
    made = {
        "fused_all_gather_matmul": sy.symm_mem.all_gather_matmul,
        "fused_matmul_reduce_scatter": sy.symm_mem.matmul_reduce_scatter,
    }[call.name](*call.arguments, *call.options.values())
    return "it was passed on" if made is None else ""


def summary(rows: list[dict[str, Any]]) -> str:
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    taken = sum(row["taken"] for row in rows)
    said = f"{taken} of {len(rows)} calls were taken"
    if not ratios:
        return f"{said}; no call could be compared with torch's own: {rows[0]['why'] if rows else 'no rows'}"
    lost = sum(ratio < 1 for ratio in ratios)
    return f"{said}; torch's time by ours, geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.3f}, below 1: {lost}"


def line(row: dict[str, Any]) -> str:
    cells = [row["model"], row["call"], str(row["M"]), "ours" if row["taken"] else "passed on"]
    cells += [f"{row[name]:.1f}" if name in row else "-" for name in ("torch", "ours")]
    return "| " + " | ".join([*cells, f"{row['ratio']:.2f}" if "ratio" in row else "-"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="8B,70B")
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--rows", default="1024,2048,4096,8192")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    for given, known in ((options.models, MODELS), (options.calls, CALLS)):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = joined(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    made: list[dict[str, Any]] = []
    if dist.get_rank() == 0:
        print("| model | call | M | by | torch µs | ours µs | torch / ours |\n|---|---|--:|---|--:|--:|--:|")
    with sy.symm_mem.override() as ours:
        for model in options.models.split(","):
            for m in map(int, options.rows.split(",")):
                for row in measured(model, m, ours, options, mesh, dtype):
                    made.append(row)
                    if dist.get_rank() == 0:
                        print(line(row), flush=True)
    if dist.get_rank() == 0:
        print(summary(made))
        print(ours)
        if options.json:
            report = {"torch": torch.__version__, "device": device, "rows": made, "summary": summary(made)}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        if options.csv:
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(made)
    sy.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
