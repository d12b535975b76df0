"""What the benches of fused operators share: shapes, inputs, checks, the report and the plot.

A bench says which rows one shape has (`Bench.rows`); `main` runs them over the shapes, prints a line for each as it
comes, and keeps a JSON report up to date, so that what was measured survives whatever comes later. A shape that fails
is reported and the next one follows; a row that a machine cannot run is left out with the reason. `python
bench/results.py REPORT` adds a report to the table of all runs.

Started with torchrun, one process a GPU. Without a GPU the same rows run on host ranks over gloo, at 1/32 of each
extent: this checks a bench, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernels are imported

import syncopate as sy  # noqa: E402, F401 - the benches take it from here
from harness import Candidate, capture, measure  # noqa: E402
from results import write_report  # noqa: E402
from syncopate.strategy import Strategy, Way  # noqa: E402, F401 - likewise

LINK_BYTES_PER_US = 380e3  # copy engine of H200, one direction: 367 to 395 GB/s were measured
MODELS = {"8B": (4096, 14336), "70B": (8192, 28672), "GPT-3": (12288, 49152), "405B": (16384, 53248)}
MODELS_8192 = {"LLaMA-7B": (4096, 11008), "Qwen2-72B": (8192, 29568)}  # only M = 8192
HOST_SCALE = 32


@dataclass(frozen=True)
class Shape:
    """The local product of one rank, y [m, n] = x [m, k] @ w [k, n]. `m`: tokens of all ranks."""

    model: str
    m: int
    n: int
    k: int


class Rotating(list):
    """One thing per set of inputs; thing(i) is that of the i-th call."""

    def __call__(self, i: int) -> Any:
        return self[i % len(self)]


class Setup:
    """One shape's inputs and operators, in as many sets as it takes to leave the L2 cache between two uses of one."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
        self.dtype = torch.bfloat16 if ON_GPU else torch.float32
        footprint = 2 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
        self.count = max(2, min(6, math.ceil(180e6 / footprint))) if ON_GPU else 2
        self.left_out: dict[str, str] = {}  # row → why it was not measured
        self._operators: list[Any] = []
        torch.manual_seed(1234 + self.rank)

    def random(self, rows: int, columns: int) -> Rotating:
        return self._tensors(torch.randn, rows, columns)

    def empty(self, rows: int, columns: int) -> Rotating:
        return self._tensors(torch.empty, rows, columns)

    def _tensors(self, make: Callable[..., torch.Tensor], rows: int, columns: int) -> Rotating:
        return Rotating(make(rows, columns, device=self.device, dtype=self.dtype) for _ in range(self.count))

    def operators(self, kind: Any, count: int = 0, **options: Any) -> Rotating:
        """One operator of syncopate.ops per set (or `count` of them); checked and closed after the shape."""
        made = Rotating()
        for _ in range(count or self.count):
            shape = self.shape
            device = "cuda" if ON_GPU else "host"
            made.append(kind(shape.m, shape.n, shape.k, self.dtype, device=device, **options))
            self._operators.append(made[-1])
        return made

    def graphs(self, call: Callable[[int], object]) -> Callable[[int], object]:
        """The same calls as CUDA graphs. They keep `call` and with it the memory that the graphs use: a graph does not."""
        captured = Rotating((capture(lambda i=i: call(i)), call) for i in range(self.count))
        return lambda i: captured(i)[0].replay()

    def expect(
        self, name: str, call: Callable[[int], object], out: Rotating, right: Sequence, tolerance: float
    ) -> None:
        """Raises on all ranks alike unless call(i) makes out[i] equal to right[i], relatively, in the 2-norm."""
        worst = 0.0
        for i in range(self.count):
            out[i].fill_(float("nan"))
            call(i)
            synchronize()
            error = ((out[i].float() - right[i].float()).norm() / right[i].float().norm()).item()
            worst = max(worst, math.inf if math.isnan(error) else error)
        errors = torch.tensor([worst], device=self.device)
        dist.all_reduce(errors, op=dist.ReduceOp.MAX)
        if not errors.item() <= tolerance:
            raise RuntimeError(f"{name} is wrong: relative error {errors.item():.3g}")

    def optional(
        self,
        name: str,
        call: Callable[[int], object],
        graph: bool = False,
        judge: Callable[[], None] | None = None,
    ) -> list[Candidate]:
        """The row of `call` (with `graph`, as graphs), once `judge` has found nothing wrong; none, and the reason in the
        report, where the machine or the shape refuses it."""
        try:
            call(0)
            synchronize()
            if judge is not None:
                judge()
            return [Candidate(name, self.graphs(call) if graph else call)]
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            self.left_out[name] = (str(error).splitlines() or [type(error).__name__])[0]
            return []

    def check(self) -> None:
        for operator in self._operators:
            operator.check()

    def close(self) -> None:
        for operator in self._operators:
            operator.close()
        self._operators.clear()


@dataclass(frozen=True)
class Bench:
    """One operator and what it is compared with. Rows are named in each bench's own heading."""

    title: str
    rows: Callable[[Setup, argparse.Namespace], list[Candidate]]
    sharded: (
        str  # which extent of the product is F / local ranks: "N" (column parallel) or "K" (row parallel)
    )
    sent: Callable[[Shape, int], int]  # (shape, ranks) → elements that a rank sends
    unfused: str  # the row with the collective and the product one after the other
    peers: tuple[str, ...] = ()  # rows of other fused systems
    unfused_eager: str = ""  # that row without a graph, where `unfused` is one
    cost: str = "post_cost"  # what the fused kernel alone over the unmodified one is called
    m: tuple[int, ...] = (1024, 4096, 8192)

    def shapes(self, local_ranks: int) -> list[Shape]:
        table = [(model, m, h, f) for model, (h, f) in MODELS.items() for m in self.m]
        if 8192 in self.m:
            table += [(model, 8192, h, f) for model, (h, f) in MODELS_8192.items()]
        scale = 1 if ON_GPU else HOST_SCALE
        column = self.sharded == "N"
        made = []
        for model, m, hidden, f in table:
            local, whole = f // local_ranks // scale // 8 * 8, hidden // scale
            made.append(Shape(model, m // scale, local if column else whole, whole if column else local))
        return made

    def chosen(self, options: argparse.Namespace, local_ranks: int) -> list[Shape]:
        """Those that --shapes and --tokens leave; ends the program where none is left."""
        scale = 1 if ON_GPU else HOST_SCALE
        wanted_m = {int(m) // scale for m in options.tokens.split(",") if m}
        left = [
            shape
            for shape in self.shapes(local_ranks)
            if any(name in shape.model for name in options.shapes.split(","))
            and (not wanted_m or shape.m in wanted_m)
        ]
        if not left:
            raise SystemExit(
                f"{self.title}: no shape has --shapes {options.shapes} --tokens {options.tokens}"
            )
        return left


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def run_shape(bench: Bench, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """The report's entry for one shape."""
    setup = Setup(shape)
    try:
        candidates = bench.rows(setup, options)
        times = measure(candidates, options.rounds)
        setup.check()
        candidates.clear()
    finally:
        setup.close()
    entry: dict[str, Any] = {"rows": times, **ratios(bench, times, shape, setup.size)}
    if setup.left_out:
        entry["left_out"] = setup.left_out
    return entry


def ratios(bench: Bench, times: dict, shape: Shape, size: int) -> dict[str, float]:
    def time_of(name: str) -> float:
        return times[name]["hidden_us"]

    ours = time_of("graph")
    floor = max(time_of("mm"), 2 * bench.sent(shape, size) / LINK_BYTES_PER_US)
    result = {
        "vs_unfused": time_of(bench.unfused) / ours,
        "vs_unfused_eager": time_of(bench.unfused_eager or bench.unfused) / time_of("ours"),
        "vs_best": min(time_of(name) for name in (bench.unfused, *bench.peers) if name in times) / ours,
        "bound": ours / floor,
    }
    if "local" in times and "triton" in times:
        result[bench.cost] = time_of("local") / time_of("triton")
    return result


def machine_facts() -> dict[str, Any]:
    """What a report says about where it was measured."""
    size = dist.get_world_size()
    facts: dict[str, Any] = {
        "machine": f"{size} x {torch.cuda.get_device_name()}" if ON_GPU else f"{size} host ranks",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "command": " ".join(["torchrun", "--nproc-per-node", str(size), *sys.argv]),
    }
    if ON_GPU:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
        facts["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return facts


class Progress:
    """Prints on rank 0, keeps the report's file up to date, and says when the time is used up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = dist.get_rank()
        self.begin = time.monotonic()
        self.report: dict[str, Any] = {**machine_facts(), "table": []}

    def out_of_time(self) -> bool:
        """The same answer on all ranks."""
        late = [time.monotonic() - self.begin > self.options.budget]
        dist.broadcast_object_list(late, src=0)
        return late[0]

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def add(self, entry: dict[str, Any]) -> None:
        self.report["table"].append(entry)
        if self.rank == 0 and self.options.json:
            write_report(self.report, Path(self.options.json))


def parse(doc: str, add: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--local-ranks", type=int, default=0, help="F is divided by this (default: the GPUs)")
    parser.add_argument(
        "--shapes", default="", help="only models whose name contains one of these, comma-separated"
    )
    parser.add_argument("--tokens", default="", help="only these M, comma-separated")
    parser.add_argument("--rounds", type=int, default=15 if ON_GPU else 1)
    parser.add_argument(
        "--budget", type=float, default=110, help="seconds after which no further shape begins"
    )
    parser.add_argument("--json", default="", help="write the report here")
    parser.add_argument("--plot", default="", help="draw it here")
    if add is not None:
        add(parser)
    return parser.parse_args()


def start() -> None:
    """Joins the process group of torchrun, on this process's GPU."""
    if not ON_GPU:
        dist.init_process_group("gloo")
        return
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    import torch.distributed._symmetric_memory as symmetric_memory

    symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)


def main(doc: str, *benches: Bench, add: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    options = parse(doc, add)
    start()
    progress = Progress(options)
    local_ranks = options.local_ranks or dist.get_world_size()
    for bench in benches:
        if len(benches) > 1:
            progress.say(bench.title)
        for shape in bench.chosen(options, local_ranks):
            run_one(bench, shape, options, progress)
    if progress.rank == 0:
        for bench in benches:
            summarise(bench, progress.report["table"])
        if options.plot:
            plot(benches, progress.report, options.plot)
    failed = any("error" in entry for entry in progress.report["table"])
    dist.destroy_process_group()
    if failed:
        raise SystemExit(1)


def run_one(bench: Bench, shape: Shape, options: argparse.Namespace, progress: Progress) -> None:
    where = f"{shape.model:9} M={shape.m:5} N={shape.n:5} K={shape.k:5} |"
    if progress.out_of_time():
        progress.say(f"{where} not measured: {options.budget:.0f} s are over (--budget)")
        return
    entry = {"operator": bench.title, "model": shape.model, "M": shape.m, "K": shape.k, "N": shape.n}
    try:
        entry |= run_shape(bench, shape, options)
    except Exception as error:  # noqa: BLE001 - the other shapes are still to be measured
        entry["error"] = f"{type(error).__name__}: {str(error).strip()}"
        progress.say(f"{where} FAILED {entry['error']}")
    else:
        cells = " ".join(
            f"{name}={v['hidden_us']:.0f}/{v.get('visible_us', float('nan')):.0f}"
            for name, v in entry["rows"].items()
        )
        cost = f" {bench.cost} {entry[bench.cost]:.3f}" if bench.cost in entry else ""
        progress.say(
            f"{where} {cells} | x{entry['vs_unfused']:.2f} (eager {entry['vs_unfused_eager']:.2f}) "
            f"best x{entry['vs_best']:.2f} bound {entry['bound']:.2f}{cost}"
        )
        for name, why in entry.get("left_out", {}).items():
            progress.say(f"{'':36} without {name}: {why}")
    progress.add(entry)
    if ON_GPU:
        torch.cuda.empty_cache()


def summarise(bench: Bench, table: list[dict]) -> None:
    for m in sorted({entry["M"] for entry in table}):
        values = [
            entry["vs_unfused"]
            for entry in table
            if entry["M"] == m
            and entry["operator"] == bench.title
            and entry["model"] in MODELS
            and "rows" in entry
        ]
        if values:
            print(
                f"{bench.title}, M={m}: geometric mean of {bench.unfused} / ours (graph) "
                f"{statistics.geometric_mean(values):.3f}"
            )


def plot(benches: Sequence[Bench], report: dict, path: str) -> None:
    """Bars of speed relative to the unfused pair, one picture row per bench."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = ["#9aa5b1", "#d9a441", "#7a9a5b", "#2b6cb0"]
    widest = max(sum(e["operator"] == b.title and "rows" in e for e in report["table"]) for b in benches)
    figure, all_axes = plt.subplots(
        len(benches), figsize=(1.5 + 0.8 * widest, 4 * len(benches)), squeeze=False
    )
    for bench, axes in zip(benches, all_axes[:, 0], strict=True):
        table = [e for e in report["table"] if e["operator"] == bench.title and "rows" in e]
        names = [bench.unfused, *(p for p in bench.peers if any(p in e["rows"] for e in table)), "graph"]
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            places = [
                x + width * (i - (len(names) - 1) / 2) for x, e in enumerate(table) if name in e["rows"]
            ]
            heights = [
                e["rows"][bench.unfused]["hidden_us"] / e["rows"][name]["hidden_us"]
                for e in table
                if name in e["rows"]
            ]
            colour = colours[-1] if name == "graph" else colours[i % (len(colours) - 1)]
            axes.bar(places, heights, width * 0.95, color=colour, label="ours" if name == "graph" else name)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(table)), [f"{e['model']}\n{e['M']}" for e in table], fontsize=8)
        axes.set_ylabel(f"speed, {bench.unfused} = 1")
        axes.set_title(f"{bench.title}, bf16, {report['machine']}")
        axes.legend(frameon=False, ncols=len(names))
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
