"""What tuning found, and does not run here: all ranks take the default strategy, and say why. test_found.py has filled the
store, by the columns in its arguments."""

import sys
import warnings
from unittest import mock

import torch
from syncopate import _syncopate, ops, ranks
from syncopate.call.prepared import Prepared
from syncopate.group import Group, of_folder
from syncopate.strategy import Problem, Strategy, complete

M, K = 64, 32
FOUND = 2  # parts of a shard, in what is stored


def called_twice(columns: int, group: Group) -> tuple[Strategy, Problem, list[str]]:
    """Of an operator of so many columns: the strategy that it has then, its problem, and what was said. Its results
    must be right."""
    x, w = (torch.ones(*shape, dtype=torch.float16) for shape in ((M, K), (K, columns)))
    x *= group.rank + 1
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        op = ops.MatmulReduceScatter(M, columns, K, torch.float16, group, device="host", deadline=5)
        for _ in range(2):
            y = op(x, w)
            assert y.shape == (M // group.size, columns)
            assert (y == K * group.size * (group.size + 1) / 2).all()
        op.close()
    return op.strategy, op.problem, [str(one.message) for one in said]


def must_fall_back(columns: int, group: Group, why: str) -> None:
    strategy, problem, said = called_twice(columns, group)
    (message,) = said
    assert f"found for matmul_reduce_scatter:M={M},N={columns},K={K},dtype=fp16" in message
    assert f"split={FOUND}" in message, "the winner"
    assert why in message
    assert strategy == complete(problem, Strategy())
    assert _syncopate.all_gather(group.rendezvous, "said", message) == [message] * group.size


def fails_once(owner: type, name: str) -> mock._patch:
    """The first call of a method fails."""
    right, calls = getattr(owner, name), []

    def method(*given, **named):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("too little shared memory")
        return right(*given, **named)

    return mock.patch.object(owner, name, method)


def check(place, good: int, compiled: int, run: int) -> None:
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    last = group.size - 1

    strategy, _, said = called_twice(good, group)
    assert (strategy.split, said) == (FOUND, [])

    nothing = mock.patch.object(Prepared, "nothing", None, create=True)
    for columns, method in ((compiled, "compile"), (run, "interpret_kernels")):
        with fails_once(Prepared, method) if group.rank == last else nothing:
            must_fall_back(columns, group, f"rank {last}: too little shared memory")


if __name__ == "__main__":
    size, *columns = map(int, sys.argv[1:])
    ranks.run(size, lambda place: check(place, *columns), timeout=300)
