"""Users' grouped kernels, fused with rows that only the device counts, and what brings them, compile for sm_90; run by
test_ragged.py. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace

import host_ragged
import host_ragged_kinds as kinds
import ragged_kernels
import torch
import triton
from host_ragged import OWN, K, N
from moe_compiled import compile_one
from syncopate import _syncopate
from syncopate.call.arguments import describe, is_tensor
from syncopate.device import jit
from syncopate.face.ragged_made import USERS, given_of, made_for
from syncopate.kernels import ragged as kernels
from syncopate.strategy import Strategy

SIZE, BOUND, BM, BN, BK, PROGRAMS = 2, 512, 64, 64, 32, 132


def empty(*shape, dtype=torch.float32, device="meta"):
    return torch.empty(shape, dtype=dtype, device=device)


def compile_program(kernel, bind, items, grid, back, every=True):
    """`every`: also the stages that are the same for all kernels."""
    scalars = {name: value for name, value in items.items() if isinstance(value, int)}
    tensors = {name: describe(value) for name, value in items.items() if is_tensor(value)}
    path = Path(kernel.fn.__code__.co_filename)
    stage = (path.read_text(), str(path), kernel.__name__, bind, scalars, tensors, grid)
    plan = host_ragged.plan_of(SIZE, BOUND, back)
    artifact, of = _syncopate.fuse_ragged([stage], plan, "cuda", 132, Strategy(), 32)
    emitted = artifact.stages[USERS]
    print("\n".join(line for line in emitted.source.splitlines() if "sy_" in line))
    loaded = jit.kernel_in(jit.load_module(emitted.source, emitted.kernel, None), kernel.__name__)
    of_dtype = {"fp32": torch.float32, "int32": torch.int32}
    shapes = {name: empty(1, 1, dtype=of_dtype[dtype]) for name, _, dtype in artifact.plan.tensors}
    op = SimpleNamespace(
        rank=1, heap=SimpleNamespace(stride=1 << 30), table_tensor_of=lambda _: empty(1, dtype=torch.int32)
    )
    prepared = SimpleNamespace(op=op, tensors=shapes, is_on_gpu=True)
    given = given_of(prepared, made_for(prepared, of, torch.device("meta"), ("cuda", 0)), [items])
    stages = [*kernels.STAGES, loaded, *(kernels.BACK if back else ())]
    for index, (one, arguments) in enumerate(zip(stages, given, strict=True)):
        if every or index in (1, USERS):
            compile_one(one, arguments, {"num_warps": 4, "num_stages": 2})


def compile_first(back):
    items = {
        "a_ptr": empty(100, K), "b_ptr": empty(OWN, K, N), "c_ptr": empty(BOUND, N),
        "offsets_ptr": empty(OWN * SIZE, dtype=torch.int32), "N": N, "K": K, "BM": BM, "BN": BN, "BK": BK,
    }  # fmt: skip
    bind = host_ragged.BIND | ({"c_ptr": "C"} if back else {})
    grid = (OWN, triton.cdiv(BOUND, BM), triton.cdiv(N, BN))
    compile_program(host_ragged.by_offsets, bind, items, grid, back)


def compile_kind(name):
    device = "cpu" if "host" in name else "meta"  # where a descriptor's tensor lies, Triton looks at
    a, b, c = empty(100, K, device=device), empty(OWN, K, N, device=device), empty(BOUND, N)
    counts = empty(OWN * SIZE, dtype=torch.int32)
    items = kinds.arguments_of(name, a, b, c, counts, BOUND, PROGRAMS)
    grid = (*kinds.grid_of(name, BOUND, PROGRAMS), 1, 1)[:3]
    compile_program(getattr(ragged_kernels, name), kinds.bind_of(name, True), items, grid, True, every=False)


if __name__ == "__main__":
    compile_first(False)
    compile_first(True)
    for name in kinds.TOLD:
        compile_kind(name)
