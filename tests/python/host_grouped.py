"""A user's own grouped products, as those are usually written, fused with the way of a mixture's rows to their experts and back, whose
counts the host knows (Plan.counted); run by test_stages.py.

    host_grouped.py RANKS [CHECK …]
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from corpus.moe import grouped_by_tiles  # noqa: E402
from host_script import expect, run_checks  # noqa: E402

OWN, N, K, BM, BN, BK = 2, 24, 20, 16, 16, 16  # OWN experts of a rank


@triton.jit
def by_offsets(
    a_ptr, b_ptr, c_ptr, start_ptr, expert_ptr, tile_group_ptr, tile_ptr, N, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of each tile its group and its number there; offsets say where groups begin."""
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    pid_m, pid_n = pid // columns, pid % columns
    group = tl.load(tile_group_ptr + pid_m)
    end = tl.load(start_ptr + group + 1)
    rows = tl.load(start_ptr + group) + tl.load(tile_ptr + pid_m) * BM + tl.arange(0, BM)
    cols = pid_n * BN + tl.arange(0, BN)
    b_of = b_ptr + tl.load(expert_ptr + group) * K * N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_of + rk[:, None] * N + cols[None, :], mask=(rk[:, None] < K) & (cols[None, :] < N), other=0.0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < end) & (cols[None, :] < N))


def plan_of(size, bound):
    """Rows of A from their ranks to those of their experts, rows of C back."""
    experts = OWN * size

    def chunk(tensor, rank, first, last):
        return {"tensor": tensor, "region": [{"rows_from_rank": rank, "expert": [first, last]}, [0, K if tensor == "A" else N]]}  # fmt: skip

    def holding(rank, *of):
        return {"rank": rank, **chunk(*of)}

    initial = [holding(r, "A", r, 0, experts) for r in range(size)]
    produced = [holding(r, "C", s, r * OWN, (r + 1) * OWN) for r in range(size) for s in range(size)]
    final = [holding(r, "C", r, 0, experts) for r in range(size)]
    ranks = []
    for rank in range(size):
        others = [(rank + step) % size for step in range(1, size)]
        sent = [(other, chunk("A", rank, other * OWN, (other + 1) * OWN)) for other in others]
        back = [(other, chunk("C", other, rank * OWN, (rank + 1) * OWN)) for other in others]
        ops = [{"op": "push", "peer": peer, "src": of, "dst": of} for peer, of in sent + back]
        ranks.append({"rank": rank, "ops": ops})
    groups = {"axis": 0, "groups": "rows_from_rank × expert", "sizes": [size, experts], "bound": bound}
    tensors = {
        name: {"shape": [bound, columns], "dtype": "fp32", "ragged": groups}
        for name, columns in (("A", K), ("C", N))
    }
    text = {
        "schema": "syncopate.plan/1", "mesh": [["gpu", size]], "tensors": tensors, "initial": initial, "final": final,
        "produced": produced, "ranks": ranks,
    }  # fmt: skip
    import json

    return sy.plans.from_json(json.dumps(text))


def routings(size, seed):
    """Rows of each rank for each expert, by name."""
    shape = (size, OWN * size)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(0, 22, shape, generator=generator)
    one = torch.zeros(shape, dtype=torch.int64)
    one[:, -1] = 19
    silent = random.clone()
    silent[0] = 0  # a rank without tokens
    return {"random": random, "all to one expert": one, "nothing of a rank": silent, "one row": (random * 0).index_fill(0, torch.tensor([size - 1]), 1)}  # fmt: skip


def tables_of(counts):
    """row_ptr, end_ptr, expert_ptr of grouped_by_tiles; and start_ptr, expert_ptr, tile_group_ptr, tile_ptr of by_offsets."""
    flat = counts.flatten().tolist()
    starts = [0, *torch.tensor(flat).cumsum(0).tolist()]
    tiles = [(group, tile) for group, rows in enumerate(flat) for tile in range(-(-rows // BM))]
    experts = [group % counts.shape[1] for group in range(len(flat))]
    numbers = {
        "row_ptr": [starts[group] + tile * BM for group, tile in tiles],
        "end_ptr": [starts[group + 1] for group, _ in tiles],
        "expert_ptr": [experts[group] for group, _ in tiles],
    }
    by_group = {
        "start_ptr": starts, "expert_ptr": experts, "tile_group_ptr": [group for group, _ in tiles],
        "tile_ptr": [tile for _, tile in tiles],
    }  # fmt: skip
    return [
        {name: torch.tensor(of, dtype=torch.int32) for name, of in one.items()} for one in (numbers, by_group)
    ]


def check_grouped(_, size):
    rank = dist.get_rank()
    plan = plan_of(size, 4096)
    expect(not plan.check(), "the plan of all counts")
    for name, counts in routings(size, 5).items():
        total = int(counts.sum())
        if total == 0:
            continue
        everything = torch.randint(-2, 3, (total, K), generator=torch.Generator().manual_seed(1)).float()
        b = torch.randint(-2, 3, (OWN * size, K, N), generator=torch.Generator().manual_seed(2)).float()
        groups = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
        wanted = torch.einsum("rk,rkn->rn", everything, b[groups % counts.shape[1]])
        first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
        kernels = (grouped_by_tiles, by_offsets) if name == "random" else (grouped_by_tiles,)
        for kernel, tables in zip(kernels, tables_of(counts), strict=False):
            fused = sy.fuse(kernel, plan.counted(counts), {"a_ptr": "A", "c_ptr": "C"}, values=tables, host_delay=1e-3, seed=rank)  # fmt: skip
            tiles, columns = len(next(iter(reversed(tables.values())))), triton.cdiv(N, BN)
            grid = (tiles, columns) if kernel is grouped_by_tiles else (tiles * columns,)
            for _ in range(2):
                c = torch.full((last - first, N), float("nan"))
                fused[grid](everything[first:last], b, c, *tables.values(), N, K, BM, BN, BK)
                expect(torch.equal(c, wanted[first:last]), f"{name}, {kernel.__name__}: rank {rank} differs")


def check_refused(_, size):
    """Without counts a kernel that is read cannot find its rows; and what counts cannot be is told by tensor and rank."""
    plan = plan_of(size, OWN * size * size)
    counts = torch.ones(size, OWN * size, dtype=torch.int64)
    tables, _ = tables_of(counts)
    c = torch.empty(OWN * size, N)
    try:
        fused = sy.fuse(grouped_by_tiles, plan, {"a_ptr": "A", "c_ptr": "C"}, values=tables)
        fused[(2, 2)](
            torch.ones(OWN * size, K), torch.ones(OWN * size, K, N), c, *tables.values(), N, K, BM, BN, BK
        )
        raise RuntimeError("not refused: groups of which only a call knows")
    except ValueError as error:
        expect("fuse plan.counted(counts)" in str(error), str(error))
    over = counts * 9
    for given, message in ((counts[:, 1:], "groups"), (-counts, "group 0 has -1 rows"), (over, f"its bound is {OWN * size * size}"), ("ab", "whole numbers")):  # fmt: skip
        try:
            plan.counted(given)
            raise RuntimeError(f"not refused: {message}")
        except (ValueError, TypeError) as error:
            expect(message in str(error), f"expected {message!r}, got {error}")


if __name__ == "__main__":
    run_checks(globals())
    print(f"{sys.argv[1]} ranks: grouped")
