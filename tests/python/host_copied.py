"""What operators gather, left where the caller says; run by test_host.py.

host_copied.py RANKS

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

CALLS_EACH = 3
N, K = 48, 88  # no multiple of a tile's depth


def strategies():
    """By name, with the rows of a shard: whole tiles and ragged ones, K at once and in slices, two shapes."""
    one = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    yield "in slices of K", 32, ops.Strategy((one,), chunking=ops.Chunking(2, (32, 56)))
    yield "ragged", 20, ops.Strategy((one,), chunking=ops.Chunking(2))
    yield "pulled", 20, ops.Strategy((one,), pull=True)
    yield "wide and narrow", 20, ops.Strategy((ops.Tiling(16, 32, 32, 2, 1, "ieee", 2),))
    yield "only narrow", 20, ops.Strategy((ops.Tiling(16, 32, 32, 2, 0, "ieee", 2),))


def check_rows(rank: int, size: int, group) -> None:
    for number, (name, rows, chosen) in enumerate(strategies()):
        op = ops.AllGatherMatmul(
            rows * size, N, K, torch.float32, group, strategy=chosen, copied=True, host_delay=1e-3, seed=rank
        )
        w = numbers((K, N), 3, torch.float32)
        for call in range(CALLS_EACH):
            whole = numbers((rows * size, K), 10 * call + number, torch.float32)
            copy = torch.full((rows * size + 1, K), float("nan"))
            y = op(whole[rank * rows : (rank + 1) * rows], w, copy=copy[:-1])
            expect(torch.equal(y, whole @ w), f"{name}, call {call}: y differs")
            expect(torch.equal(copy[:-1], whole), f"{name}, call {call}: the copy differs")
            expect(bool(copy[-1].isnan().all()), f"{name}, call {call}: written behind the copy")
        op.close()


def check_columns(rank: int, size: int, group) -> None:
    op = ops.AllGatherMatmul(40, N, 64 * size, torch.bfloat16, group, axis=1, copied=True)
    w = numbers((64 * size, N), 3, torch.bfloat16)
    for call in range(CALLS_EACH):
        whole = numbers((40, 64 * size), call, torch.bfloat16)
        copy = torch.full_like(whole, float("nan"))
        y = op(whole[:, 64 * rank : 64 * (rank + 1)].contiguous(), w, copy=copy)
        expect(torch.equal(y, (whole.float() @ w.float()).bfloat16()), f"columns, call {call}: y differs")
        expect(torch.equal(copy, whole), f"columns, call {call}: the copy differs")
    op.close()


def check_exchanged(rank: int, size: int, group) -> None:
    """And with a bias, so that operands keep their places."""
    rows = 16
    op = ops.AllToAllMatmul(rows * size, N, K, torch.float32, group, copied=True, bias=1)
    w, bias = numbers((K, N), 3, torch.float32), numbers((N,), 4, torch.float32)
    for call in range(CALLS_EACH):
        xs = [numbers((rows * size, K), 10 * call + r, torch.float32) for r in range(size)]
        came = torch.cat([x[rank * rows : (rank + 1) * rows] for x in xs])
        copy = torch.full_like(came, float("nan"))
        y = op(xs[rank], w, None, bias, copy=copy)
        expect(torch.equal(y, came @ w + bias), f"exchanged, call {call}: y differs")
        expect(torch.equal(copy, came), f"exchanged, call {call}: the copy differs")
    op.close()


def check_refusals(group) -> None:
    x, w = torch.zeros(8, 32), torch.zeros(32, 16)
    whole = torch.zeros(8 * group.size, 32)
    for copied, copy, message in (
        (True, None, "copy: this op takes one"),
        (False, whole, "copy: this op was made without"),
        (True, whole[1:], "copy: expected shape"),
        (True, whole.half(), "copy: expected dtype"),
    ):
        op = ops.AllGatherMatmul(8 * group.size, 16, 32, torch.float32, group, copied=copied)
        try:
            op(x, w, copy=copy)
        except ValueError as error:
            expect(message in str(error), f"{message!r} is said as {error}")
        else:
            expect(False, f"{message!r} is not said")
        op.close()


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_rows(place.rank, place.size, group)
    check_columns(place.rank, place.size, group)
    check_exchanged(place.rank, place.size, group)
    check_refusals(group)


if __name__ == "__main__":
    on_ranks(check)
    print("ok", flush=True)
