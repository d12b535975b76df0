"""What tuning found for attention, and does not run here: all ranks take the kind that is chosen without it, and say why. test_found.py
has filled the store, by the heads in its arguments."""

import os
import sys
import warnings
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import torch
from host_found import fails_once
from syncopate import _syncopate, ops, ranks
from syncopate.call.prepared import Prepared
from syncopate.group import Group, of_folder

ROWS, IN_PASSES, D = 64, 8, 16
FOUND, USUAL = ("ring", 2), ("all_gather", 1)


def called_twice(heads: int, group: Group, rows: int = ROWS) -> tuple[tuple[str, int], list[str]]:
    """Of attention with so many heads, and rows of each rank: how it is done then, and what was said. Its results must be right."""
    drawn = torch.Generator().manual_seed(heads)
    q, k, v = (torch.randn(1, heads, rows * group.size, D, generator=drawn).bfloat16() for _ in range(3))
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        op = ops.Attention(1, heads, heads, rows * group.size, D, group=group, deadline=20)
        own = [op.shard(one) for one in (q, k, v)]
        for _ in range(2):
            o, _ = op(*own)
            torch.testing.assert_close(o, op.shard(right), rtol=2e-2, atol=2e-2)
        made = op.kind, op.split
        assert bool(op.passes) == (rows == IN_PASSES)
        assert op.passes or op._executable is not None, "C++ makes its calls alone from then on"
        op.close()
    return made, [str(one.message) for one in said]


def must_fall_back(heads: int, group: Group, why: str, rows: int = ROWS) -> None:
    made, said = called_twice(heads, group, rows)
    assert made == USUAL, made
    (message,) = said
    assert f"found for attention:S={rows * group.size},B=1,H={heads}" in message, message
    assert why in message, message
    assert _syncopate.all_gather(group.rendezvous, "said", message) == [message] * group.size


def check(place, good: int, *heads: int) -> None:
    """The last heads are of IN_PASSES rows of each rank, which are no whole tiles."""
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    last = group.size - 1
    assert called_twice(good, group) == (FOUND, [])
    nothing = mock.patch.object(Prepared, "nothing", None, create=True)
    owners = ((ops.Attention, "_set_up"), (Prepared, "compile"), (Prepared, "interpret_kernels"))
    for count, (owner, method) in zip(heads[:-1], owners, strict=True):
        with fails_once(owner, method) if group.rank == last else nothing:
            must_fall_back(count, group, f"rank {last}: too little shared memory")
    with fails_once(Prepared, "compile") if group.rank == last else nothing:
        must_fall_back(heads[-1], group, f"rank {last}: too little shared memory", IN_PASSES)
    assert called_twice(good, group) == (FOUND, []), "others are taken as before"


if __name__ == "__main__":
    size, *heads = map(int, sys.argv[1:])
    ranks.run(size, lambda place: check(place, *heads), timeout=300)
