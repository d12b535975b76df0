"""A rank that has one call more than the others, whose processes have ended: each such call ends, and says so. Run by
test_differ.py.

host_ended.py RANKS
"""

import host_differ
import torch
from host_differ import Calls, said_by, torch_ops
from host_script import expect, join, on_ranks
from syncopate import ranks

ENDED = " ended"


def check(place: ranks.Place) -> None:
    join(place)
    (calls,) = host_differ.calls_made(place.size)
    w = calls.w.clone().requires_grad_(place.rank == 0)
    y = torch_ops.all_gather_matmul(calls.x, w, calls.group)
    if place.rank != 0:
        return  # without a word: nothing is closed
    wide, biased = torch.ones(host_differ.K, 48), sy_reduce(calls)
    more = {
        "all_gather_matmul [": [
            lambda: y.sum().backward(),
            calls.op,  # known
            calls.op,  # set up anew
            calls.object,
            calls.object,
            lambda: torch_ops.all_gather_matmul(calls.x, wide, calls.group),
        ],
        "matmul_reduce_scatter [": [calls.scattered, biased],
        "op 'op' matmul_kernel": [calls.kernel],
        "attention [": [calls.attention],
        "close of ": [calls.gather.close],
    }
    for name, extra in more.items():
        for number, call in enumerate(extra):
            said = said_by(call)
            expect(name in said and ENDED in said, f"{name}{number}: {said or 'no error'}")


def sy_reduce(calls: Calls):
    """A set-up alone."""
    reduce = type(calls.scatter)
    rows = len(calls.tall)
    return lambda: reduce(rows, host_differ.N, host_differ.K, torch.float32, bias=1).prepare()


if __name__ == "__main__":
    on_ranks(check)
    print("ok", flush=True)
