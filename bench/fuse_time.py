"""How long fusing takes: reading a kernel, inferring footprints, fusing with a plan, emitting source and tables, in C++.

.venv/bin/python bench/fuse_time.py            all-gather + GEMM, M=8192 N=3584 K=8192, 8 ranks, bf16
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

import syncopate as sy  # noqa: E402
from syncopate import _syncopate  # noqa: E402

RANKS, M, N, K = 8, 8192, 3584, 8192
REPEAT = 15
SIZES = {"M": M, "N": N, "K": K}
BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}


def descriptors(b: list[int], b_block: list[int], c_block: list[int]) -> dict[str, tuple]:
    boxes = {"a_desc": ([M, K], [128, 64]), "b_desc": (b, b_block), "c_desc": ([M, N], c_block)}
    return {name: (shape, [], "bf16", block) for name, (shape, block) in boxes.items()}


def cases() -> dict[str, tuple]:
    """name → (file, kernel, parameter that takes A, scalars, tensors, grid)"""
    library = ROOT / "python" / "syncopate" / "kernels" / "matmul.py"
    constants = {**SIZES, **BLOCKS, "NUM_SMS": 132, "B_TRANSPOSED": False, "PRECISION": "tf32"}
    wide = descriptors([K, N], [64, 256], [128, 128])
    narrow = {"b_narrow_desc": ([K, N], [], "bf16", [64, 128])}
    strides = {"stride_am": K, "stride_ak": 1, "stride_bk": N, "stride_bn": 1, "stride_cm": N, "stride_cn": 1}
    pointers = {f"{n}_ptr": (s, [], "bf16", []) for n, s in (("a", [M, K]), ("b", [K, N]), ("c", [M, N]))}
    examples = ROOT / "examples"
    return {
        "matmul": (library, "matmul", "a_desc", {**constants, "SPLIT_STORE": 2}, wide, [132, 1, 1]),
        "matmul_mixed": (
            library,
            "matmul_mixed",
            "a_desc",
            {**constants, "num_wide": 12},
            wide | narrow,
            [132, 1, 1],
        ),
        "matmul_pointers": (
            examples / "matmul_pointers.py",
            "matmul_kernel",
            "a_ptr",
            {**SIZES, **BLOCKS, **strides},
            pointers,
            [64 * 14, 1, 1],
        ),
    }


def main() -> None:
    print(f"M={M} N={N} K={K}, {RANKS} ranks, bf16; milliseconds, median (minimum) of {REPEAT}")
    for split, slices in ((1, 1), (2, 1), (1, 4)):
        cut = {"minor_axis": 1, "minor_split": slices} if slices > 1 else {}
        tensor = sy.Tensor("A", (M, K), "bf16")
        for name, (file, kernel, parameter, scalars, tensors, grid) in cases().items():
            source = file.read_text()
            times = []
            for _ in range(REPEAT):
                begin = time.perf_counter()
                plan = sy.plans.all_gather(sy.plans.mesh_of(RANKS), tensor, split=split, **cut)
                stage = (source, str(file), kernel, {parameter: "A"}, scalars, tensors, grid)
                artifact = _syncopate.fuse([stage], plan, "cuda", 132)
                times.append((time.perf_counter() - begin) * 1e3)
            size = len(artifact.schedule_json) / 1024
            print(
                f"{name:16} split {split}, slices {slices}: {statistics.median(times):6.1f} ({min(times):.1f})"
                f"   schedule.json {size:,.0f} KiB"
            )


if __name__ == "__main__":
    main()
