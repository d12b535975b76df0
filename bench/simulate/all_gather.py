"""Copy-engine all-gathers, measured and simulated. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/simulate/all_gather.py [--sizes 1,2,4] [--output FILE]
    python bench/simulate/all_gather.py --compare FILE… [--topology h200x8]      no GPU: the table of saved measurements

Each pattern is a plan, carried out as the runtime does it: every rank's copies one after another in one stream, each
followed by the 4-byte copy that is its flag, replayed as a CUDA graph (and once more as an eager stream). A time is the
median over rounds of the maximum over ranks; ranks start after a barrier on the device, with the host's time hidden.

    all-gather       the template: each shard to every peer, in an order rotated by rank
    no flags, split  the same without flags; each shard in four chunks
    pull             the same, but destinations read
    same order       every rank serves its peers in the same order, so that senders meet at one receiver
    pair, shift      one copy: rank 0 to 1 alone; every rank to its neighbour
    fan, incast      rank 0 to every peer in turn, alone; k ranks to rank 0 at once
    timeline         all-gather again, with the time at which each copy of each rank ended

On a machine without GPUs (--device host) the same runs over shared memory; its times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]

from syncopate.bench.table import write_report  # noqa: E402

MIB = 1 << 20
SLEEP_CYCLES = 4_000_000  # about 2 ms on the device, while the host enqueues
FLAG_BYTES = 256  # apart, as the runtime's signals are kept off each other's lines


@dataclass
class Pattern:
    """One thing to time: a plan, and how it is carried out."""

    name: str
    shard: int  # bytes
    plan: dict  # as JSON, over one tensor "A" of uint8, [ranks * shard]
    flags: bool = True
    modes: tuple[str, ...] = ("graph", "eager")


@dataclass
class Copy:
    """One op of this rank: `peer`'s bytes [begin, end) from here, or of here from there."""

    peer: int
    push: bool
    begin: int
    end: int


# --- Plans


def plan_of(size: int, shard: int, ops: list[list[tuple[str, int, int, int]]]) -> dict:
    """The plan whose rank r does ops[r]: (kind, peer, begin, end) in bytes of the gathered tensor."""

    def chunk(begin: int, end: int) -> dict:
        return {"tensor": "A", "region": [[begin, end]]}

    return {
        "schema": "syncopate.plan/1",
        "mesh": [["gpu", size]],
        "tensors": {"A": {"shape": [size * shard], "dtype": "uint8"}},
        "initial": [{"rank": r, **chunk(r * shard, (r + 1) * shard)} for r in range(size)],
        "final": [],
        "ranks": [
            {
                "rank": r,
                "ops": [
                    {"op": kind, "peer": peer, "src": chunk(begin, end), "dst": chunk(begin, end)}
                    for kind, peer, begin, end in ops[r]
                ],
            }
            for r in range(size)
        ],
    }


def all_gather(size: int, shard: int, split: int = 1, *, pull: bool = False, rotate: bool = True) -> dict:
    ops: list[list[tuple[str, int, int, int]]] = [[] for _ in range(size)]
    for rank in range(size):
        for offset in range(1, size):
            peer = (rank + offset) % size if rotate else (offset - 1 if offset <= rank else offset)
            begin = (peer if pull else rank) * shard
            for part in range(split):
                ops[rank].append(
                    (
                        "pull" if pull else "push",
                        peer,
                        begin + shard * part // split,
                        begin + shard * (part + 1) // split,
                    )
                )
    return plan_of(size, shard, ops)


def pushes(size: int, shard: int, pairs: list[tuple[int, int]]) -> dict:
    ops: list[list[tuple[str, int, int, int]]] = [[] for _ in range(size)]
    for source, target in pairs:
        ops[source].append(("push", target, source * shard, (source + 1) * shard))
    return plan_of(size, shard, ops)


def patterns_of(size: int, sizes: list[float], probe_sizes: list[float]) -> list[Pattern]:
    patterns = []
    for mib in sizes:
        shard = int(mib * MIB)
        patterns += [
            Pattern("all-gather", shard, all_gather(size, shard)),
            Pattern("all-gather no flags", shard, all_gather(size, shard), flags=False),
            Pattern("all-gather split 4", shard, all_gather(size, shard, 4)),
            Pattern("all-gather pull", shard, all_gather(size, shard, pull=True)),
            Pattern("all-gather same order", shard, all_gather(size, shard, rotate=False)),
        ]
    for mib in probe_sizes:
        shard = int(mib * MIB)
        patterns += [
            Pattern("pair", shard, pushes(size, shard, [(0, 1)]), flags=False),
            Pattern("pair with flag", shard, pushes(size, shard, [(0, 1)])),
            Pattern("shift", shard, pushes(size, shard, [(r, (r + 1) % size) for r in range(size)])),
            Pattern("fan", shard, pushes(size, shard, [(0, r) for r in range(1, size)])),
            Pattern("timeline", shard, all_gather(size, shard), modes=("timeline",)),
        ]
        for senders in sorted({2, 3, size - 1}):
            if 2 <= senders < size:
                pairs = [(r, 0) for r in range(1, senders + 1)]
                patterns.append(Pattern(f"incast {senders}", shard, pushes(size, shard, pairs)))
    return patterns


def copies_of(plan: dict, rank: int) -> list[Copy]:
    result = []
    for op in plan["ranks"][rank]["ops"]:
        ((begin, end),) = op["src"]["region"]
        result.append(Copy(op["peer"], op["op"] == "push", begin, end))
    return result


# --- Measuring


@dataclass
class Machine:
    """The ranks' memory, and the clock of one device."""

    rank: int
    size: int
    device: str
    buffers: list  # by rank: its whole buffer, a torch tensor of uint8
    flags: list  # by rank: its flag words, uint8
    keep: list = field(default_factory=list)

    def synchronize(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


def open_machine(device: str, largest: int) -> Machine:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        dist.init_process_group("gloo")
    from syncopate import _syncopate
    from syncopate.group import of_process_group

    rank, size = dist.get_rank(), dist.get_world_size()
    group = of_process_group(None, device)
    flag_bytes = FLAG_BYTES * size * 64
    heap = _syncopate.SymmetricHeap(
        device, group.ordinal, group.rendezvous, size * largest + flag_bytes + (4 << 20)
    )
    data, flags = heap.allocate(size * largest), heap.allocate(flag_bytes)
    return Machine(
        rank,
        size,
        device,
        [heap.array(r, data, size * largest) for r in range(size)],
        [heap.array(r, flags, flag_bytes) for r in range(size)],
        [group, heap],
    )


def enqueue(machine: Machine, pattern: Pattern, mark: Callable[[], None] | None = None) -> None:
    """This rank's copies, each with its flag, on the current stream; `mark` is called after each."""
    here = machine.rank
    for index, copy in enumerate(copies_of(pattern.plan, here)):
        there = copy.peer
        target, source = (there, here) if copy.push else (here, there)
        machine.buffers[target][copy.begin : copy.end].copy_(
            machine.buffers[source][copy.begin : copy.end], non_blocking=True
        )
        if pattern.flags:
            word = FLAG_BYTES * (here * 64 + index % 64)
            machine.flags[target][word : word + 4].copy_(
                machine.flags[here][word + 8 : word + 12], non_blocking=True
            )
        if mark is not None:
            mark()


def fill(machine: Machine, pattern: Pattern) -> None:
    """This rank's shard gets its own values, all else another one."""
    mine = machine.buffers[machine.rank]
    mine[: machine.size * pattern.shard].fill_(255)
    mine[machine.rank * pattern.shard : (machine.rank + 1) * pattern.shard].fill_(machine.rank)


def verify(machine: Machine, pattern: Pattern) -> None:
    """Raises SystemExit unless every chunk that was sent to this rank is here and all else is untouched."""
    mine = machine.buffers[machine.rank]
    for source in range(machine.size):
        expected = 255
        if source == machine.rank:
            expected = source
        for rank in range(machine.size):
            for copy in copies_of(pattern.plan, rank):
                target, origin = (copy.peer, rank) if copy.push else (rank, copy.peer)
                if target == machine.rank and origin == source:
                    expected = source
        part = mine[source * pattern.shard : (source + 1) * pattern.shard]
        if int(part.min()) != expected or int(part.max()) != expected:
            raise SystemExit(
                f"rank {machine.rank}: {pattern.name}, {pattern.shard} bytes: shard {source} is not {expected}"
            )


def runner(machine: Machine, pattern: Pattern, mode: str) -> Callable[[], None]:
    """What enqueues one run of the pattern."""
    if mode == "graph" and machine.device == "cuda" and copies_of(pattern.plan, machine.rank):
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            enqueue(machine, pattern)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            enqueue(machine, pattern)
        return graph.replay
    return lambda: enqueue(machine, pattern)


def time_once(machine: Machine, token, run: Callable[[], None], steps: list | None = None) -> Callable:
    """Enqueues one timed run; the result, asked for after synchronize, is its µs. `steps`: filled with event times."""
    import torch
    import torch.distributed as dist

    if machine.device != "cuda":
        dist.barrier()
        start = time.perf_counter()
        run()
        elapsed = (time.perf_counter() - start) * 1e6
        return lambda: elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    dist.all_reduce(token)
    begin.record()
    if steps is not None:
        steps.append(begin)
    run()
    end.record()
    return lambda: begin.elapsed_time(end) * 1e3


def over_ranks(values: list[float], device: str, how: str) -> list[float]:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op={"max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}[how])
    return tensor.tolist()


def measure(machine: Machine, pattern: Pattern, rounds: int) -> dict:
    import torch
    import torch.distributed as dist

    where = "cuda" if machine.device == "cuda" else "cpu"
    token = torch.zeros(1, device=where)
    entry: dict = {"pattern": pattern.name, "shard": pattern.shard, "flags": pattern.flags}
    fill(machine, pattern)
    machine.synchronize()
    dist.barrier()
    for mode in pattern.modes:
        if mode == "timeline":
            entry["timeline_us"] = timeline(machine, pattern, rounds, token)
            continue
        run = runner(machine, pattern, mode)
        for _ in range(2):
            run()
        machine.synchronize()
        dist.barrier()
        results = []
        for _ in range(rounds):
            results.append(time_once(machine, token, run))
            machine.synchronize()
        mine = [result() for result in results]
        longest = over_ranks(mine, where, "max")
        entry[f"{mode}_us"] = statistics.median(longest)
        entry[f"{mode}_min_us"] = min(longest)
        medians = [0.0] * machine.size
        medians[machine.rank] = statistics.median(mine)
        entry[f"{mode}_by_rank_us"] = over_ranks(medians, where, "sum")
    machine.synchronize()
    dist.barrier()
    verify(machine, pattern)
    dist.barrier()
    return entry


def timeline(machine: Machine, pattern: Pattern, rounds: int, token: object) -> list[list[float]]:
    """By rank: the median time after the start at which each of its copies (with its flag) had ended."""
    import torch

    where = "cuda" if machine.device == "cuda" else "cpu"
    count = len(copies_of(pattern.plan, machine.rank))
    ends: list[list[float]] = []
    for turn in range(rounds + 2):
        marks: list = []

        def mark(marks: list = marks) -> None:
            if machine.device == "cuda":
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                marks.append(event)
            else:
                marks.append(time.perf_counter())

        began: list = []
        start = time.perf_counter()
        time_once(machine, token, lambda mark=mark: enqueue(machine, pattern, mark), began)
        machine.synchronize()
        if turn < 2:
            continue
        if machine.device == "cuda":
            ends.append([began[0].elapsed_time(event) * 1e3 for event in marks])
        else:
            ends.append([(at - start) * 1e6 for at in marks])
    mine = [statistics.median(row[i] for row in ends) for i in range(count)]
    flat = [0.0] * (machine.size * count)
    flat[machine.rank * count : (machine.rank + 1) * count] = mine
    flat = over_ranks(flat, where, "sum")
    return [flat[r * count : (r + 1) * count] for r in range(machine.size)]


# --- Comparing


def simulated_us(entry: dict, plan: dict, topology: str) -> float | None:
    """The simulated makespan, or None where this build has no simulator."""
    from syncopate import plans

    if not hasattr(plans, "simulate"):
        return None
    return plans.simulate(plans.from_json(json.dumps(plan)), topology, posts=entry["flags"]).makespan_us


def table(report: dict, topology: str) -> list[str]:
    by_key = {
        (p.name, p.shard): p.plan
        for p in patterns_of(
            report["ranks"],
            sorted({e["shard"] / MIB for e in report["table"]}),
            sorted({e["shard"] / MIB for e in report["table"]}),
        )
    }
    lines = [
        f"{report['machine']}, {report['date']}; simulated on {topology}",
        f"{'pattern':24} {'MiB':>6} {'graph µs':>9} {'eager µs':>9} {'GB/s in':>8} {'simulated':>9} {'ratio':>6}",
    ]
    for entry in report["table"]:
        if "graph_us" not in entry:
            continue
        plan = by_key[(entry["pattern"], entry["shard"])]
        simulated = simulated_us(entry, plan, topology)
        measured = entry["graph_us"]
        moved = max(
            sum(
                end - begin
                for rank in range(report["ranks"])
                for copy in copies_of(plan, rank)
                for begin, end in [(copy.begin, copy.end)]
                if (copy.peer if copy.push else rank) == target
            )
            for target in range(report["ranks"])
        )
        entry["simulated_us"] = simulated
        lines.append(
            f"{entry['pattern']:24} {entry['shard'] / MIB:6g} {measured:9.1f} {entry['eager_us']:9.1f} "
            f"{moved / measured / 1e3:8.0f} "
            + (f"{simulated:9.1f} {simulated / measured:6.2f}" if simulated else f"{'-':>9} {'-':>6}")
        )
    return lines


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=numbers, default=[1, 2, 4, 8, 16, 32, 64, 128, 256], help="MiB a rank"
    )
    parser.add_argument("--probe-sizes", type=numbers, default=[0.25, 1, 4, 8, 16, 64])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--topology", default="h200x8")
    parser.add_argument("--output", default="", help="JSON file to write")
    parser.add_argument("--compare", nargs="+", default=[], help="measure nothing: tables of these files")
    options = parser.parse_args()
    if options.compare:
        for path in options.compare:
            try:
                report = json.loads(Path(path).read_text())
            except OSError as error:
                raise SystemExit(f"error: {path}: {error.strerror}") from None
            except ValueError as error:
                raise SystemExit(f"error: {path}: {error}") from None
            print("\n".join(table(report, options.topology)) + "\n")
        return
    if "RANK" not in os.environ:
        raise SystemExit("start with torchrun, one process a GPU (or --compare FILE…); see --help")
    largest = int(max([*options.sizes, *options.probe_sizes]) * MIB)
    machine = open_machine(options.device, largest)
    import torch
    import torch.distributed as dist

    cuda = options.device == "cuda"
    report = {
        "machine": f"{machine.size} x {torch.cuda.get_device_name() if cuda else 'host'}",
        "ranks": machine.size,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "command": " ".join(["torchrun", "--nproc-per-node", str(machine.size), *sys.argv]),
        "table": [],
    }
    for pattern in patterns_of(machine.size, options.sizes, options.probe_sizes):
        entry = measure(machine, pattern, options.rounds)
        report["table"].append(entry)
        if machine.rank == 0:
            times = " ".join(
                f"{mode} {entry[f'{mode}_us']:.1f}" for mode in pattern.modes if mode != "timeline"
            )
            print(f"{pattern.name} {pattern.shard / MIB:g} MiB {times}", flush=True)
            if options.output:  # after every pattern, so that an interrupted run is not lost
                write_report(report, Path(options.output))
    if machine.rank == 0:
        print("\n".join(table(report, options.topology)))
        if options.output:
            write_report(report, Path(options.output))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
