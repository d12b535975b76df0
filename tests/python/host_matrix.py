"""The three example kernels fused with all-gathers, on N host ranks in Triton's interpreter; run by test_host.py.

Every configuration makes some calls with fresh data; chunks are delayed at random and the results must be identical,
bit for bit, to the unfused kernel on the gathered input. In a sweep each plan meets each kernel, otherwise one of them.
Prints one line and exits 1 on the first difference.

    host_matrix.py RANKS [CALLS]
"""

import os
import random
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from syncopate import ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.host import interpreter  # noqa: E402

BLOCKS = Blocks(16, 16, 16, 2, 3)
N, K = 32, 48


def configurations() -> list[tuple[str, dict]]:
    plans = [{"split": split, "pull": pull} for split in (1, 2, 3, 4) for pull in (False, True)]
    plans += [{"axis": 1}, {"axis": 1, "split": 2, "pull": True}]  # shards of K: the reduction loop is cut
    plans += [
        {"split": 2, "minor_axis": 1, "minor_split": 3},
        {"minor_axis": 1, "minor_split": 2, "pull": True},
    ]
    names = list(CALLS)
    if not os.environ.get("SYNCOPATE_SWEEP"):
        return [(names[index % len(names)], plan) for index, plan in enumerate(plans)]
    return [(name, plan) for name in names for plan in plans]


def rows_of(size: int) -> int:
    return 7 * size + 3  # uneven shards, tiles that straddle them


def aligned(shard: torch.Tensor) -> torch.Tensor:
    """A copy whose rows start at multiples of 16 bytes, as a descriptor asks for."""
    rows, columns = shard.shape
    copy = torch.empty(rows, -(-columns // 4) * 4)[:, :columns]
    return copy.copy_(shard)


def work(place: ranks.Place, calls: int) -> str:
    torch.set_num_threads(1)
    rng = random.Random(place.rank)
    m = rows_of(place.size)
    for index, (name, options) in enumerate(configurations()):
        group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-{index}", "host")
        plan = sy.plans.all_gather(sy.plans.mesh_of(place.size), sy.Tensor("A", (m, K), "fp32"), **options)
        example = CALLS[name]
        fused = example.fuse(plan, group=group, host_delay=2e-3, seed=index * 100 + place.rank, deadline=600)
        for call in range(calls):
            whole = numbers((m, K), 10 * index + call, torch.float32)
            w = numbers((K, N), 7 + index, torch.float32)
            axis = options.get("axis", 0)
            base, extra = divmod(whole.shape[axis], place.size)
            first = place.rank * base + min(place.rank, extra)
            mine = aligned(whole.narrow(axis, first, base + (place.rank < extra)))
            out = torch.full((m, N), float("nan"))
            if rng.random() < 0.3:
                time.sleep(rng.random() * 5e-3 * (place.rank + 1))
            example.launch(fused, mine, w, out, BLOCKS)
            exact = whole @ w  # of small integers: exact in any order of additions
            if place.rank == call % place.size:  # the unfused kernel is as slow as the fused one: on one rank
                alone = torch.full((m, N), float("nan"))
                grid, arguments = example.arguments(whole, w, alone, BLOCKS)
                interpreter.launch(example.kernel, grid, arguments)
                if not torch.equal(alone, exact):
                    raise RuntimeError(f"{name} {options} call {call}: the unfused kernel is wrong")
            if not torch.equal(out, exact):
                raise RuntimeError(f"{name} {options} call {call}: the result differs")
        fused.close()
    return "ok"


if __name__ == "__main__":
    count, calls = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    try:
        ranks.run(count, lambda place: work(place, calls), timeout=1800)
    except ranks.RankError as error:
        print(error)
        sys.exit(1)
    print(
        f"{count} ranks: {len(configurations())} configurations, {calls * len(configurations())} calls, identical"
    )
