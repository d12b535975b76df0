"""Users' grouped kernels, fused with rows that only the device counts, and what brings them, compile for sm_90; run by
test_ragged.py. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace

import host_ragged
import host_ragged_kinds as kinds
import host_ragged_trained as trained
import torch
import triton
from grouped_training import product, weight_gradient
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


def compile_program(parts, back, every=True, plan=None):
    """`parts`: kernels with what they are bound to, called with, and on which grid. `every`: also the stages that are the same for
    all kernels."""
    stages = []
    for kernel, bind, items, grid in parts:
        scalars = {name: value for name, value in items.items() if isinstance(value, int)}
        tensors = {name: describe(value) for name, value in items.items() if is_tensor(value)}
        path = Path(kernel.fn.__code__.co_filename)
        grid = (*grid, 1, 1)[:3]
        stages.append((path.read_text(), str(path), kernel.__name__, bind, scalars, tensors, grid))
    plan = plan or host_ragged.plan_of(SIZE, BOUND, back)
    artifact, of = _syncopate.fuse_ragged(stages, plan, "cuda", 132, Strategy(), 32)
    loaded = []
    for (kernel, *_), emitted in zip(parts, artifact.stages[USERS:], strict=False):
        print("\n".join(line for line in emitted.source.splitlines() if "sy_" in line))
        module = jit.load_module(emitted.source, emitted.kernel, None)
        loaded.append(jit.kernel_in(module, kernel.__name__))
    of_dtype = {"fp32": torch.float32, "int32": torch.int32}
    shapes = {name: empty(1, 1, dtype=of_dtype[dtype]) for name, _, dtype in artifact.plan.tensors}
    table = torch.zeros(1 << 16, dtype=torch.int32)
    op = SimpleNamespace(rank=1, heap=SimpleNamespace(stride=1 << 30), table_tensor_of=lambda _: table)
    prepared = SimpleNamespace(op=op, tensors=shapes, is_on_gpu=True)
    made = made_for(prepared, of, torch.device("meta"), ("cuda", 0))
    given = given_of(prepared, made, [items for _, _, items, _ in parts])
    own = [*kernels.STAGES, *loaded, *(kernels.BACK if back else ())]
    for index, (one, arguments) in enumerate(zip(own, given, strict=True)):
        if every or index == 1 or USERS <= index < USERS + len(parts):
            compile_one(one, arguments, kernels.options_of(one, of["apart"]))
    if every:  # of many rows, which few programs send
        many = given[2] | {"H": 7168, "LANES": 16, "COLUMNS": 2048}
        compile_one(kernels.ragged_rows, many, kernels.options_of(kernels.ragged_rows, True))


def compile_first(back):
    items = {
        "a_ptr": empty(100, K), "b_ptr": empty(OWN, K, N), "c_ptr": empty(BOUND, N),
        "offsets_ptr": empty(OWN * SIZE, dtype=torch.int32), "N": N, "K": K, "BM": BM, "BN": BN, "BK": BK,
    }  # fmt: skip
    bind = host_ragged.BIND | ({"c_ptr": "C"} if back else {})
    grid = (OWN, triton.cdiv(BOUND, BM), triton.cdiv(N, BN))
    compile_program([(host_ragged.by_offsets, bind, items, grid)], back)


def compile_kind(name):
    device = "cpu" if "host" in name else "meta"  # where a descriptor's tensor lies, Triton looks at
    a, b, c = empty(100, K, device=device), empty(OWN, K, N, device=device), empty(BOUND, N)
    counts = empty(OWN * SIZE, dtype=torch.int32)
    items = kinds.arguments_of(name, a, b, c, counts, BOUND, PROGRAMS)
    part = (
        kinds.kernel_of(name),
        kinds.bind_of(name, True),
        items,
        kinds.grid_of(name, BOUND, PROGRAMS),
    )
    compile_program([part], True, every=False)


def compile_layer():
    tensors = (
        empty(100, K),
        empty(OWN, K, 2 * kinds.F),
        empty(OWN, kinds.F, N),
        empty(BOUND, 2 * kinds.F),
        empty(BOUND, N),
    )
    three = kinds.kernels_of_layer(True)
    calls = kinds.calls_of_layer(*tensors, empty(OWN * SIZE, dtype=torch.int32), BOUND)
    parts = [
        (kernel, bind, dict(zip(kernel.arg_names, arguments, strict=True)), grid)
        for (kernel, bind), (grid, *arguments) in zip(three, calls, strict=True)
    ]
    compile_program(parts, True, every=False)


def compile_backward(bound):
    """Two tensors of the same rows, and a kernel that follows and reads one."""
    dw = {"x_ptr": empty(100, K), "dy_ptr": empty(100, N), "dw_ptr": empty(OWN, K, N)}
    dx = {"a_ptr": empty(100, N), "w_ptr": empty(OWN, K, N), "c_ptr": empty(bound, K)}
    counts, blocks = (
        {"offsets_ptr": empty(OWN * SIZE, dtype=torch.int32)},
        {"BLOCK_M": BM, "BLOCK_N": BN, "BLOCK_K": BK},
    )
    dw |= counts | {"N": N, "K": K} | blocks
    dx |= counts | {"N": K, "K": N, "STRIDE_E": K * N, "STRIDE_K": 1, "STRIDE_N": N} | blocks
    parts = [
        (weight_gradient, trained.BOTH, dw, (OWN, triton.cdiv(K, BK), triton.cdiv(N, BN))),
        (
            product,
            {"a_ptr": "D", "c_ptr": "C", "offsets_ptr": "counts"},
            dx,
            (OWN, triton.cdiv(bound, BM), triton.cdiv(K, BN)),
        ),
    ]
    compile_program(parts, True, plan=trained.plan_of(SIZE, bound, back=True))


if __name__ == "__main__":
    compile_first(False)
    compile_first(True)
    for name in kinds.TOLD:
        compile_kind(name)
    compile_layer()
    compile_backward(BOUND)
