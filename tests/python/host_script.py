"""What the scripts share that tests run on host ranks: SCRIPT RANKS […]."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from syncopate import ranks


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


def on_ranks(work: Callable[[ranks.Place], Any]) -> list[Any]:
    """Each rank's result; ends the script where one fails. One that crashes prints where."""
    faulthandler.enable()
    try:
        return ranks.run(int(sys.argv[1]), work, timeout=1800)
    except ranks.RankError as error:
        print(error)
        sys.exit(1)


def join(place: ranks.Place) -> None:
    """Makes the default process group, of gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(place.folder) / "store"), place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)


def name_and_size(size: int) -> tuple[str, int]:
    import torch.distributed as dist

    return dist.group.WORLD.group_name, size


def run_checks(
    script: Mapping[str, Any], given: Callable[[int], tuple] = name_and_size, *, go_on: bool = False
) -> None:
    """The functions check_… of a script, or those that are named behind RANKS, one after another on all ranks of a process
    group, with what `given` makes of the number of ranks. `go_on`: past one that fails."""
    checks = [made for name, made in script.items() if name.startswith("check_") and made.__name__ == name]
    chosen = [one for one in checks if not sys.argv[2:] or one.__name__ in sys.argv[2:]]

    def work(place: ranks.Place) -> None:
        import syncopate as sy
        import torch.distributed as dist

        join(place)
        arguments, wrong = given(place.size), []
        for one in chosen:
            try:
                one(*arguments)
            except Exception as error:
                if not go_on:
                    raise
                wrong.append(f"{one.__name__}: {type(error).__name__}: {error}")
        sy.close()
        dist.destroy_process_group()
        expect(not wrong, "\n".join(wrong))

    on_ranks(work)
    print(f"ok: {len(chosen)} checks", flush=True)
