"""A run of a bench: the ranks' process group, what a report says of the machine, and the report as it grows."""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..command.standard_output import answering
from .picture import HOST_RANKS
from .table import us_of, write_report

#: Seconds after which NCCL gives up a collective that another rank never began, as where a peer fails on one rank alone.
LIMIT = 180
#: Options that name a file to write.
OUTPUTS = ("--json", "--csv", "--markdown", "--plot")


def start(rank: int, size: int, store: str) -> None:
    """Joins the process group; on a GPU, this process's own."""
    # Newer torch calls the collectives by other names; those that are measured have both.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    init = {"init_method": store, "rank": rank, "world_size": size} if store else {}
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo", **init)
        return
    local = int(os.environ.get("LOCAL_RANK", rank))
    torch.cuda.set_device(local)
    dist.init_process_group(
        "nccl", device_id=torch.device("cuda", local), timeout=datetime.timedelta(seconds=LIMIT), **init
    )


def command_name() -> str:
    """What was started: a script of this checkout, or the command."""
    script = Path(sys.argv[0])
    return (
        "syncopate bench"
        if script.parent.name == "bench" and script.stem == "__main__"
        else f"python {script}"
    )


def what_was_run(arguments: Sequence[str]) -> str:
    """The command, less the files that it writes: what times depend on, whatever the machine's folders are called."""
    kept: list[str] = []
    following = iter(arguments)
    for argument in following:
        name, _, value = argument.partition("=")
        if name not in OUTPUTS:
            kept.append(argument)
        elif not value:
            next(following, None)
    return " ".join([command_name(), *kept])


def machine_facts() -> dict[str, Any]:
    """What a report says about where it was measured."""
    size = dist.get_world_size()
    gpu = torch.cuda.is_available()
    facts: dict[str, Any] = {
        "machine": f"{size} x {torch.cuda.get_device_name()}" if gpu else f"{size} {HOST_RANKS}",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "command": what_was_run(sys.argv[1:]),
    }
    if gpu:
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
            with answering():
                print(text)

    def shape(
        self,
        where: str,
        entry: dict[str, Any],
        measure: Callable[[], dict[str, Any]],
        said: Callable[[dict[str, Any]], str],
    ) -> None:
        """Adds to the report `entry`, which names a shape, with what `measure` finds of it, or with the error."""
        if self.out_of_time():
            self.say(f"{where} not measured: {self.options.budget:.0f} s are over (--budget)")
            return
        try:
            entry |= measure()
            self.say(f"{where} {said(entry)}")
        except Exception as error:  # noqa: BLE001 - the other shapes are still to be measured
            notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
            entry["error"] = f"{type(error).__name__}: {str(error).strip()}{notes}"
            self.say(f"{where} FAILED {entry['error']}")
        self.add(entry)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def add(self, entry: dict[str, Any]) -> None:
        self.report["table"].append(entry)
        if self.rank == 0 and self.options.json:
            write_report(self.report, Path(self.options.json))


def host_us(call: Callable[[], Any], rounds: int, calls: int, sleep_cycles: int) -> float:
    """Of one call on this rank: the median of the rounds. The device sleeps meanwhile, for longer than the calls of a round take."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda._sleep(sleep_cycles)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def summary(entry: dict[str, Any]) -> str:
    """An entry in a line, and a line for each row that is left out."""
    cells = " ".join(f"{name}={us_of(row):.0f}" for name, row in entry["rows"].items())
    left = "".join(f"\n{'':24} without {name}: {why}" for name, why in entry.get("left_out", {}).items())
    best = f" | {entry['best']} x{entry['vs_best']:.2f}" if "vs_best" in entry else ""
    bound = f", bound {entry['bound']:.2f}" if "bound" in entry else ""
    return cells + best + bound + left
