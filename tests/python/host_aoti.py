"""A module with an op of ours, exported, compiled ahead by AOTInductor, and run by its package: its calls are the dispatcher's, from
C++, and Python is entered for the first one alone. Run by test_torch.py.

host_aoti.py RANKS
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import _syncopate, ranks  # noqa: E402
from syncopate.torch import unfused  # noqa: E402

N, K = 24, 32
ops = torch.ops.syncopate


class Layer(torch.nn.Module):
    """Ops whose result is a tensor, a list, and a pair."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def forward(
        self, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, q: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        h = torch.relu(ops.all_gather_matmul(x, w, self.group))
        a, b = ops.all_gather_matmuls(x, [v, v.neg()], self.group)
        y = ops.matmul_reduce_scatter(h, v[:N], self.group) + (a + b).sum()
        return y, *ops.attention(q, q, q, self.group, causal=True)


def data(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * dist.get_rank())
    return torch.randint(-3, 4, shape, generator=generator).float()  # sums of which are exact


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{place.folder}/store", place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    group, package = dist.group.WORLD.group_name, f"{place.folder}/layer.pt2"
    w, v, q = data(K, N, seed=1), data(K, N, seed=2), data(1, 2, 16, 64, seed=4).half()
    if place.rank == 0:  # compiling is no call of ours: one rank does it for all
        with torch.no_grad():
            rows = torch.export.Dim("rows", min=2, max=64)
            exported = torch.export.export(
                Layer(group), (data(8, K, seed=3), w, v, q), dynamic_shapes=({0: rows}, None, None, None)
            )
        text = str(exported.run_decompositions().graph)  # as it is compiled
        for op in (
            "all_gather_matmul_raw",
            "all_gather_matmuls_raw",
            "matmul_reduce_scatter_raw",
            "attention_raw",
        ):
            expect(f"syncopate.{op}" in text, f"no {op} in {text}")
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    dist.barrier()
    run = torch._inductor.aoti_load_package(package)
    for rows in (8, 12):
        for turn in range(3):
            x = data(rows, K, seed=10 * rows + turn)
            whole = unfused.gather(x, group)
            right = unfused.scatter(torch.relu(whole @ w) @ v[:N], group)  # the two of the list cancel
            before = sum(count for *_, count in _syncopate.recipe_counts())
            y, o, lse = run(x, w, v, q)
            by_cpp = sum(count for *_, count in _syncopate.recipe_counts()) - before
            expect(torch.equal(y, right), f"{rows} rows, call {turn}")
            expect(
                all(map(torch.equal, (o, lse), ops.attention(q, q, q, group, causal=True))),
                f"attention, call {turn}",
            )
            expect(
                by_cpp == (4 if turn else int(rows != 8)), f"{rows} rows, call {turn}: {by_cpp} by C++ alone"
            )
    sy.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(check)
    print("ok: a package", flush=True)
