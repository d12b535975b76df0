"""As host_found.py, of mixtures of experts: of each, which has so many experts, another one is stored. test_found.py has filled the
store."""

import sys
import warnings

import torch
from host_found import fails_once
from syncopate import _syncopate, ranks
from syncopate.call.prepared import Prepared
from syncopate.group import Group, of_folder
from syncopate.ops import Moe

T, TOPK, H, F = 5, 2, 24, 20
FOUND = 32  # rows of the tile that is stored


def called_twice(experts: int, group: Group, programs: int | None = None) -> tuple[Moe, list[str]]:
    """Of a mixture of so many experts, and what was said. Its results must be right."""
    x = torch.ones(T, H)
    own = experts // group.size
    w1, w2 = torch.ones(own, H, 2 * F), torch.ones(own, F, H)
    ids = torch.arange(TOPK).expand(T, TOPK).contiguous()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        op = Moe(
            T, experts, TOPK, H, F, torch.float32, group, activation="relu", programs=programs, deadline=5
        )
        for _ in range(2):
            y, _, _ = op.run(x, ids, torch.ones(T, TOPK), w1, w2)
            assert (y == TOPK * F * H * H).all()
        op.check()
        op.close()
    return op, [str(one.message) for one in said]


def check(place, good: int, compiled: int, run: int, illegal: int) -> None:
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    last = group.size - 1

    op, said = called_twice(good, group)
    assert (op.tiling.block_m, op.programs, said) == (FOUND, 3, [])
    op, said = called_twice(good, group, programs=2)
    assert (op.tiling.block_m, op.programs, said) == (FOUND, 2, []), (
        "what the caller says of programs is kept"
    )

    right = Prepared.compile, Prepared.interpret_kernels
    for experts, method in ((compiled, "compile"), (run, "interpret_kernels")):
        if group.rank == last:
            with fails_once(Prepared, method):
                op, said = called_twice(experts, group)
        else:
            op, said = called_twice(experts, group)
        (message,) = said
        assert (
            f"found for moe:T={T},E={experts}" in message
            and f"rank {last}: too little shared memory" in message
        )
        assert _syncopate.all_gather(group.rendezvous, "said", message) == [message] * group.size
        assert op.tiling.block_m == 16
    assert right == (Prepared.compile, Prepared.interpret_kernels)

    op, said = called_twice(illegal, group)
    assert (op.tiling.block_m, said) == (16, []), "a strategy that no mixture has is as none"


if __name__ == "__main__":
    size, *experts = map(int, sys.argv[1:])
    ranks.run(size, lambda place: check(place, *experts), timeout=300)
