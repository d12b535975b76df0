"""Fuses what is chosen for a GPU, with no GPU: operators over rows, ranks and hidden sizes. Prints what the compiler refuses."""

import itertools
import sys
from types import SimpleNamespace

import torch
from syncopate import _syncopate, ops
from syncopate.call import stage_call as stages
from syncopate.ops import operator, product
from syncopate.strategy import Strategy

MACHINES = {2: "h100x2", 4: "h100x4", 8: "h200x8"}
HIDDEN = ((4096, 14336), (5120, 13824), (16384, 53248))  # and F, of eight ranks
ROWS = (16, 48, 64, 128, 192, 256, 512, 1000, 2048)
SMS = 132


def problems():
    for ranks, (hidden, f), m, name in itertools.product(MACHINES, HIDDEN, ROWS, sorted(ops.OPERATORS)):
        if name == "feed_forward":
            continue
        n, k = (f // 8, hidden) if name in ("all_gather_matmul", "all_to_all_matmul") else (hidden, f // 8)
        spec = f"{name}:M={m},N={n},K={k},dtype=bf16,ranks={ranks},sms={SMS}"
        if not _syncopate.tune.problem_objection(spec):
            yield name, (m, n, k), ranks, spec


def fuse(name: str, extents: tuple[int, int, int], ranks: int, strategy: Strategy) -> None:
    """As the operator of rank 0 does on a GPU, of tensors without memory."""
    group = SimpleNamespace(
        device="cuda",
        ordinal=0,
        process_group=object(),
        rendezvous=None,
        size=ranks,
        rank=0,
        multiprocessors=lambda _: SMS,
    )
    product.members_of = lambda *_: group
    op = ops.OPERATORS[name](*extents, strategy=strategy)
    op.device = torch.device("meta")
    _, *given = (op.operand(operand) for operand in op._shapes)
    x = None if op.input else op.operand("x")
    y = None if op.output else op.empty(op.m, op.n)
    calls = op.calls(operator._StandIns(op), x, given, y)
    taken = [stages.launch_of(stage, call) for stage, call in zip(op.fused.stages, calls, strict=True)]
    whole = {tensor: (list(shape), dtype) for tensor, shape, dtype in op.plan.tensors}
    for stage, one in zip(op.fused.stages, taken, strict=True):
        for parameter, tensor in stage.bind.items():
            shape, dtype = whole[tensor]
            one.tensors[parameter] = (shape, [], dtype, one.tensors[parameter][3])
    op.fused._fuse(taken, op.fused._texts_on("cuda"), "cuda", SMS)


def main() -> int:
    stages._standing_in = lambda kernel, call: call  # what runs on a GPU is itself
    fused, refused = 0, 0
    for name, extents, ranks, spec in problems():
        strategy = _syncopate.tune.choose(spec, MACHINES[ranks])[0]
        if not strategy.fused:
            continue
        try:
            fuse(name, extents, ranks, strategy)
            fused += 1
        except Exception as error:  # noqa: BLE001
            refused += 1
            print(f"{spec}, {strategy.name}: {type(error).__name__}: {error}")
    print(f"{fused} fused, {refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
