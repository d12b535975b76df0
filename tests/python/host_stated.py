"""Stated kernels on host ranks, where the kernels that stand in for them run; run by test_stated.py.

host_stated.py RANKS
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python"), str(ROOT / "examples")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from stated_cuda import scale  # noqa: E402
from stated_kernels import stated  # noqa: E402
from syncopate import ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402


def check_gather(place: ranks.Place, kernel: sy.StatedKernel, x_name: str) -> None:
    m, n = 24 * place.size, 40
    mine = slice(24 * place.rank, 24 * (place.rank + 1))
    plan = sy.plans.all_gather(sy.plans.mesh_of(place.size), sy.Tensor("X", (m, n), "fp32"), split=2)
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-{kernel.__name__}", "host")
    fused = sy.fuse(kernel, plan, bind={x_name: "X"}, group=group, host_delay=1e-3, seed=place.rank)
    for call in range(3):
        x = torch.randn(m, n, generator=torch.Generator().manual_seed(call))
        y = torch.full((m, n), float("nan"))
        fused[(5,)](x[mine].contiguous(), y, m, n, 2.0, BLOCK_M=16, BLOCK_N=16)
        alone = torch.full((m, n), float("nan"))
        kernel[(5,)](x, alone, m, n, 2.0, BLOCK_M=16, BLOCK_N=16)
        if not (torch.equal(y, alone) and torch.equal(y, 2 * x)):
            raise ranks.RankError(f"call {call}: not what the kernel alone makes")
    fused.check()
    fused.close()


def check_scatter(place: ranks.Place) -> None:
    m, n = 24 * place.size, 40
    plan = sy.plans.push_reduce(sy.plans.mesh_of(place.size), sy.Tensor("Y", (m, n), "fp32"))
    group = of_folder(place.folder, place.rank, place.size, place.run_id + "-scatter", "host")
    fused = sy.fuse(stated(), plan, bind={"y_ptr": "Y"}, group=group, seed=place.rank)
    mine = slice(24 * place.rank, 24 * (place.rank + 1))
    xs = [
        torch.randint(-3, 4, (m, n), generator=torch.Generator().manual_seed(r)).float()
        for r in range(place.size)
    ]
    y = torch.full((24, n), float("nan"))
    fused[(3,)](xs[place.rank], y, m, n, 3.0, BLOCK_M=16, BLOCK_N=16)
    fused.check()
    if not torch.equal(y, 3 * sum(xs)[mine]):
        raise ranks.RankError("not the sum of what the kernels make")
    fused.close()


def work(place: ranks.Place) -> bool:
    check_gather(place, stated(), "x_ptr")  # in Gluon
    check_gather(place, scale, "x")  # in CUDA C++
    check_scatter(place)
    return True


if __name__ == "__main__":
    size = int(sys.argv[1])
    torch.set_num_threads(1)
    ranks.run(size, work, timeout=1800)
    print(f"{size} ranks: identical")
