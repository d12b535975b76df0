"""Writes a bundle of a user's grouped kernels: no rank is there, and no GPU; run by test_bundle_grouped.py.

grouped_bundle.py FILE RANKS host|sm_90 [layer|kept] [drop] [few]        few: the example call's rows are fewer than the plan's
"""

import os
import sys

if __name__ == "__main__" and sys.argv[3] == "host":
    os.environ["TRITON_INTERPRET"] = "1"  # the process may have no Triton that compiles

import host_ragged
import host_ragged_kinds as kinds
import syncopate as sy
import torch
import triton
from host_ragged import BIND, BK, BM, BN, OWN, K, N

BOUND = 24


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def main() -> None:
    file, ranks, arch, *words = sys.argv[1:]
    size, over = int(ranks), "drop" if "drop" in words else "error"
    plan = host_ragged.plan_of(size, BOUND, back="kept" not in words)
    counts = empty(OWN * size, dtype=torch.int32)
    a, b, c = empty(1 if "few" in words else BOUND, K), empty(OWN, K, N), empty(BOUND, N)
    if "layer" in words:
        parts = kinds.kernels_of_layer(True)
        fused = sy.fuse([kernel for kernel, _ in parts], plan, [bind for _, bind in parts], over=over)
        tensors = (a, empty(OWN, K, 2 * kinds.F), empty(OWN, kinds.F, N), empty(BOUND, 2 * kinds.F), c)
        made = kinds.calls_of_layer(*tensors, counts, BOUND)
        calls = [fused.call(index, grid, *arguments) for index, (grid, *arguments) in enumerate(made)]
    else:
        bind = BIND if "kept" in words else BIND | {"c_ptr": "C"}
        fused = sy.fuse(host_ragged.by_offsets, plan, bind, over=over)
        grid = (OWN, triton.cdiv(BOUND, BM), triton.cdiv(N, BN))
        calls = [fused.call(0, grid, a, b, c, counts, N, K, BM, BN, BK)]
    fused.compile_ahead(file, calls, arch=arch)


if __name__ == "__main__":
    main()
