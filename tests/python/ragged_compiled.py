"""A user's grouped kernel, fused with rows that only the device counts, and what brings them, compile for sm_90; run by
test_stages.py. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace

import host_ragged
import torch
import triton
from moe_compiled import compile_one
from syncopate import _syncopate
from syncopate.call.arguments import describe
from syncopate.device import jit
from syncopate.face.ragged import RaggedKernel, made_for
from syncopate.kernels import ragged as kernels
from syncopate.strategy import Strategy

SIZE, BOUND, BM, BN, BK = 2, 512, 64, 64, 32


def compile_program(back):
    kernel, plan = host_ragged.by_offsets, host_ragged.plan_of(SIZE, BOUND, back)
    bind = host_ragged.BIND | ({"c_ptr": "C"} if back else {})
    own, n, k = host_ragged.OWN, host_ragged.N, host_ragged.K

    def empty(*shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device="meta")

    items = {
        "a_ptr": empty(100, k), "b_ptr": empty(own, k, n), "c_ptr": empty(BOUND, n),
        "offsets_ptr": empty(own * SIZE, dtype=torch.int32), "N": n, "K": k, "BM": BM, "BN": BN, "BK": BK,
    }  # fmt: skip
    scalars = {name: value for name, value in items.items() if isinstance(value, int)}
    tensors = {name: describe(value) for name, value in items.items() if isinstance(value, torch.Tensor)}
    grid = (own, triton.cdiv(BOUND, BM), triton.cdiv(n, BN))
    path = Path(host_ragged.__file__)
    stage = (path.read_text(), str(path), "by_offsets", bind, scalars, tensors, grid)
    artifact, of = _syncopate.fuse_ragged(stage, plan, "cuda", 132, Strategy(), 32)
    emitted = artifact.stages[3]
    print("\n".join(line for line in emitted.source.splitlines() if "sy_" in line))
    loaded = jit.kernel_in(jit.load_module(emitted.source, emitted.kernel, None), kernel.__name__)
    of_dtype = {"fp32": torch.float32, "int32": torch.int32}
    shapes = {name: empty(1, 1, dtype=of_dtype[dtype]) for name, _, dtype in artifact.plan.tensors}
    op = SimpleNamespace(
        rank=1, heap=SimpleNamespace(stride=1 << 30), table_tensor_of=lambda _: empty(1, dtype=torch.int32)
    )
    prepared = SimpleNamespace(op=op, tensors=shapes, is_on_gpu=True)
    fused = RaggedKernel.__new__(RaggedKernel)
    fused.plan = plan
    given = fused._given(prepared, made_for(prepared, of, items["a_ptr"].device, ("cuda", 0)), items)
    every = [*kernels.STAGES, loaded, *(kernels.BACK if back else ())]
    for one, arguments in zip(every, given, strict=True):
        compile_one(one, arguments, {"num_warps": 4, "num_stages": 2})


if __name__ == "__main__":
    compile_program(False)
    compile_program(True)
