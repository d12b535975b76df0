"""Plans whose collectives are left direct, through sy.fuse on host ranks in Triton's interpreter; run by test_host.py.

host_direct.py RANKS
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from host_script import on_ranks  # noqa: E402
from syncopate import ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

N, K, CALLS_EACH = 32, 48, 3
BLOCKS = Blocks(16, 16, 16, 2, 3)
KINDS = ("all_gather", "broadcast", "reduce_scatter", "all_reduce")


def work(place: ranks.Place) -> int:
    torch.set_num_threads(1)
    m, size = 8 * place.size, place.size
    mine = slice(place.rank * 8, place.rank * 8 + 8)
    example = CALLS["matmul_pointers"]
    for kind in KINDS:
        reads = kind in ("all_gather", "broadcast")
        tensor = sy.Tensor("A", (m, K), "fp32") if reads else sy.Tensor("C", (m, N), "fp32")
        plan = getattr(sy.plans, kind)(sy.plans.mesh_of(size), tensor, lower="direct", produced=not reads)
        group = of_folder(place.folder, place.rank, size, f"{place.run_id}-{kind}", "host")
        fused = sy.fuse(
            example.kernel, plan, bind={"a_ptr": "A"} if reads else {"c_ptr": "C"}, group=group, host_delay=1e-3,
            seed=place.rank, deadline=600,
        )  # fmt: skip
        for call in range(CALLS_EACH):
            inputs = [numbers((m, K), 10 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((K, N), 50 + r, torch.float32) for r in range(size)]
            out = torch.full((m, N), float("nan"))
            whole, w = inputs[0] if reads else inputs[place.rank], weights[place.rank]
            holds = {"all_gather": whole[mine], "broadcast": whole if place.rank == 0 else whole[:0]}
            example.launch(fused, holds.get(kind, whole).contiguous(), w, out, BLOCKS)
            exact = whole @ w if reads else sum(x @ v for x, v in zip(inputs, weights, strict=True))
            rows = mine if kind == "reduce_scatter" else slice(0, m)
            if not torch.equal(out[rows], exact[rows]):
                raise RuntimeError(f"{kind}, call {call}: the result differs")
        fused.close()
    return len(KINDS)


if __name__ == "__main__":
    counts = on_ranks(work)
    print(f"{counts[0]} collectives, exact")
