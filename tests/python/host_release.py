"""Memory of a group that is given back and taken again; run by test_bundle.py.

host_release.py RANKS

Exits 1 with the first thing that is wrong.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import torch  # noqa: E402
from example_calls import numbers  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

M, N, K = 40, 48, 32


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    rank, size = place.rank, place.size
    group = of_folder(place.folder, rank, size, place.run_id, "host")
    op = ops.MatmulAllReduce(M, N, K, torch.float32, group)
    ws = [numbers((K, N), 7 + other, torch.float32) for other in range(size)]

    def call(index: int) -> None:
        xs = [numbers((M, K), 100 * index + other, torch.float32) for other in range(size)]
        y = op(xs[rank], ws[rank])
        expect(torch.equal(y, sum(x @ w for x, w in zip(xs, ws, strict=True))), f"call {index} differs")

    call(0)
    used, released = group.memory()
    expect(used > 0 and released == 0, f"{used} bytes, {released} of them released")
    for index in range(1, 4):
        expect(group.release() == used, "not all was released")
        expect(group.memory() == (used, used), f"while it is away: {group.memory()}")
        refuses(
            lambda: op(numbers((M, K), 0, torch.float32), ws[rank]),
            "matmul_all_reduce [",
            "the group's memory has been released",
        )
        another = ops.AllGatherMatmul(M, N, K, torch.float32, group)
        refuses(another.prepare, "all_gather_matmul [", "memory has been released")
        expect(group.restore() == used, "not all was restored")
        call(index)
    group.set_budget(used)
    refuses(
        lambda: ops.MatmulAllReduce(M, N, K, torch.float32, group).prepare(),
        "does not fit the group's budget",
    )
    group.set_budget(0)
    other = ops.MatmulAllReduce(M, N, K, torch.float32, group)
    expect(other.prepare() is not None, "without a budget there is room")
    call(9)
    other.close()
    op.close()


def refuses(work, *said: str) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001
        missing = [text for text in said if text not in str(error)]
        expect(not missing, f"expected {missing}, got {error!r}")
        return
    expect(False, f"nothing was refused: {said}")


if __name__ == "__main__":
    on_ranks(check)
    print("ok", flush=True)
