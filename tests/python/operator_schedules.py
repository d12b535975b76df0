"""Operators fused as rank 0 does it on a GPU, with no GPU, of tensors without memory, and the programs that C++ makes of the
same by itself: prints where the schedules differ."""

import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402
from syncopate import _syncopate, ops  # noqa: E402
from syncopate.call import stage_call as stages  # noqa: E402
from syncopate.ops import block, operator, product  # noqa: E402
from syncopate.strategy import Strategy, from_json  # noqa: E402

SMS = 132
TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "stages": 4}
GLUON = {"kernel": "gluon", "tiles": [TILE], "programs": 8, "split": 1}
WAYS = {
    "all_gather_matmul": [
        {"backend": "copy_engine", "chunking": {"rows": 2}},
        {"backend": "tma_dedicated", "chunking": {"slices": 2}, "together": True},
        {"backend": "tma_inline", "tiles": [{**TILE, "block_m": 16}]},
        {"tiles": [{**TILE, "block_n": 192, "split_k": 2}]},
    ],
    "all_to_all_matmul": [{"backend": "copy_engine"}, {"backend": "ldst_dedicated"}],
    "matmul_reduce_scatter": [
        {"stored": 1},
        {"split": 2, "split_axis": 1},
        {"one_step": True, "kernel_sums": True, "backend": "tma_inline"},
    ],
    "matmul_all_reduce": [{"split": 2}, {"one_step": True, "backend": "tma_inline"}],
    "matmul_all_to_all": [{}, {"backend": "tma_inline"}],
    "feed_forward": [{"tiles": [TILE, TILE], "chunking": {"rows": 2}, "split": 2}],
}


FP8 = {"dtype": torch.float8_e4m3fn, "scales": "row", "w_transposed": True}


def fused(name: str, extents: tuple[int, ...], ranks: int, strategy: Strategy, options: dict) -> dict:
    group = SimpleNamespace(
        device="cuda", ordinal=0, process_group=object(), rendezvous=None, size=ranks, rank=0, nodes=1, machine="",
        multiprocessors=lambda _: SMS, calling=lambda _: nullcontext(),
    )  # fmt: skip
    product.members_of = block.members_of = lambda *_: group
    operator.complete = lambda _, given, *_of: given  # it is; this machine runs no Gluon kernel
    op = ops.OPERATORS[name](*extents, strategy=strategy, **options)
    op.device = torch.device("meta")
    calls = op.calls_of_stand_ins()
    taken = [stages.launch_of(stage, call) for stage, call in zip(op.fused.stages, calls, strict=True)]
    whole = {tensor: (list(shape), dtype) for tensor, shape, dtype in op.plan.tensors}
    for stage, one in zip(op.fused.stages, taken, strict=True):
        for parameter, tensor in stage.bind.items():
            shape, dtype = whole[tensor]
            one.tensors[parameter] = (shape, [], dtype, one.tensors[parameter][3])
    artifact = op.fused._fuse(taken, op.fused._texts_on("cuda"), "cuda", SMS)
    return json.loads(artifact.schedule_json)["schedule"]


def schedules(name: str, m: int, ranks: int, way: dict, fp8: bool) -> list:
    """As C++ makes it alone, and as Python has it made; or why not."""
    strategy = from_json(json.dumps(GLUON | way))
    block_f = ",F=128" if name == "feed_forward" else ""
    dtype = "fp8e4m3,out=bf16,scales=row" if fp8 else "bf16"
    problem = f"{name}:M={m},N=384,K=256{block_f},dtype={dtype},ranks={ranks},sms={SMS}"
    extents = (m, 256, 128, 384) if block_f else (m, 384, 256)
    made = []
    for make in (
        lambda: json.loads(_syncopate.ops.schedule(problem, strategy, w_transposed=fp8)),
        lambda: fused(name, extents, ranks, strategy, FP8 if fp8 else {}),
    ):
        try:
            made.append(make())
        except ValueError as error:
            made.append(str(error))
    return made


def main() -> int:
    stages._standing_in = lambda kernel, call: call  # what runs on a GPU is itself
    alike = 0
    for name, ways in WAYS.items():
        for way, (ranks, m) in itertools.product(ways, ((2, 256), (4, 512), (4, 40))):
            for fp8 in (False, True) if name != "feed_forward" else (False,):
                one, other = schedules(name, m, ranks, way, fp8)
                if one != other:
                    print(f"{name}: M={m}, {ranks} ranks, {way}, fp8 {fp8}: the schedules differ")
                    return 1
                alike += isinstance(one, dict)
    print(f"{alike} alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
