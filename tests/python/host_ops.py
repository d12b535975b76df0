"""`sy.ops.all_gather_matmul` and a user's own kernel on host ranks; run by test_host.py.

    host_ops.py RANKS                                   forked ranks that meet in a folder
    python -m torch.distributed.run … host_ops.py       ranks of a torch process group (gloo)

Exits 1 with the first thing that is wrong.
"""

import dataclasses
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

CALLS_EACH = 3


def check_operator(rank: int, size: int, group) -> None:
    """Fresh data at each call, every dtype, weights as [K, N] and as the transpose of [N, K], the result exact."""
    rows, n, k = 20, 48, 64
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for transposed in (False, True):
            for call in range(CALLS_EACH):
                whole = numbers((rows * size, k), 100 + call, dtype)
                w = numbers((k, n), 3, dtype)
                w = w.t().contiguous().t() if transposed else w
                out = None if call == 0 else torch.full((rows * size, n), float("nan"), dtype=dtype)
                y = ops.all_gather_matmul(whole[rank * rows : (rank + 1) * rows], w, group, out=out)
                expect(out is None or y is out, "the output given is the one returned")
                exact = (whole.float() @ w.float()).to(dtype)
                expect(
                    torch.equal(y, exact),
                    f"all_gather_matmul {dtype} transposed={transposed} call {call} differs",
                )


def check_bias(rank: int, size: int, group) -> None:
    """relu(all_gather(x) @ w + bias), exact; a bias that does not fit is refused, by name."""
    rows, n, k = 20, 48, 64
    for dtype in (torch.float32, torch.bfloat16):
        whole, w = numbers((rows * size, k), 7, dtype), numbers((k, n), 3, dtype)
        for call in range(2):
            bias = numbers((n,), 50 + call, dtype)
            y = ops.all_gather_matmul(
                whole[rank * rows : (rank + 1) * rows], w, group, bias=bias, activation="relu"
            )
            exact = (whole.float() @ w.float() + bias.float()).relu().to(dtype)
            expect(torch.equal(y, exact), f"bias {dtype} call {call} differs")
        check_whole_bias(rank, size, group, dtype)
    whole, w, bias = numbers((rows * size, k), 7, dtype), numbers((k, n), 3, dtype), numbers((n,), 5, dtype)
    tiling = dataclasses.replace(sy.strategy.choose_tiling(rows * size, n, k, dtype, 4), num_wide=-1)
    for slices in (
        2,
        (16, 48),
    ):  # the loop along K in two: the epilogue, which loads the bias, has not to wait
        chosen = ops.Strategy((tiling,), chunking=ops.Chunking(1, slices))
        op = ops.AllGatherMatmul(rows * size, n, k, dtype, group, bias=True, strategy=chosen)
        y = op(whole[rank * rows : (rank + 1) * rows], w, None, bias)
        exact = (whole.float() @ w.float() + bias.float()).to(dtype)
        expect(torch.equal(y, exact), f"bias, K in slices {slices}, differs")
        op.close()
    op = ops.AllGatherMatmul(rows * size, n, k, torch.float32, group, bias=True)
    x, w = torch.zeros(rows, k), torch.zeros(k, n)
    for bias, message in (
        (None, "bias: this op takes one"),
        (torch.zeros(n - 1), "bias: expected shape"),
        (torch.zeros(rows * size, n), "bias: expected shape"),
        (torch.zeros(n, dtype=torch.bfloat16), "bias: expected dtype"),
        (torch.zeros(2 * n)[::2], "bias: it must be contiguous"),
    ):
        try:
            op(x, w, None, bias)
        except ValueError as error:
            expect(message in str(error), f"{message!r} is said as {error}")
        else:
            expect(False, f"{message!r} is not said")
    op.close()


def check_whole_bias(rank: int, size: int, group, dtype: torch.dtype) -> None:
    """An element for each of the product, by every operator around one: exact."""
    rows, n, k = 20, 48, 64
    m = rows * size
    xs = [numbers((m, k), 70 + r, dtype) for r in range(size)]
    ws, biases = ([numbers((a, n), at + r, dtype) for r in range(size)] for a, at in ((k, 80), (m, 90)))
    own = slice(rank * rows, (rank + 1) * rows)
    made = zip(xs, ws, biases, strict=True)
    products = [(x.float() @ w.float() + bias.float()).to(dtype).float() for x, w, bias in made]
    total = sum(products)
    came = torch.cat([x[own] for x in xs]).float()
    right = {
        ops.AllGatherMatmul: xs[0].float() @ ws[rank].float() + biases[rank].float(),
        ops.AllToAllMatmul: came @ ws[rank].float() + biases[rank].float(),
        ops.MatmulReduceScatter: total[own],
        ops.MatmulAllReduce: total,
        ops.MatmulAllToAll: torch.cat([products[r][own] for r in range(size)]),
    }
    for kind, exact in right.items():
        op = kind(m, n, k, dtype, group, bias=2)
        x = xs[0][own] if kind is ops.AllGatherMatmul else xs[rank]
        y = op(x, ws[rank], None, biases[rank])
        expect(torch.equal(y, exact.to(dtype)), f"{kind.name}: a whole bias of {dtype} differs")
        op.close()


def check_x_where_it_is(rank: int, size: int, group) -> None:
    """The own shard is read in x, also where that has rows apart; at an odd address it is copied into the heap, and where tiles
    read two shards, what these read of it."""
    n, k, nan = 32, 64, float("nan")
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    for number, (rows, cut) in enumerate(
        (
            (32, ops.Chunking()),
            (32, ops.Chunking(1, (32, 32))),
            (24, ops.Chunking()),
            (40, ops.Chunking(1, (32, 32))),
            (24, ops.Chunking(2, 1)),
        )
    ):
        chosen = ops.Strategy((tiling,), chunking=cut)
        op = ops.AllGatherMatmul(rows * size, n, k, torch.float32, group, strategy=chosen)
        w = numbers((k, n), 3, torch.float32)
        place = op.shard()
        expect(op.prepared.op.own_place() is not None, f"{rows} rows: tiles of {tiling.block_m}")
        begin, end, tile = rank * rows, (rank + 1) * rows, tiling.block_m
        border = [not begin <= at // tile * tile <= (at // tile + 1) * tile <= end for at in range(begin, end)]
        for call in range(8):
            whole = numbers((rows * size, k), 10 * call + number, torch.float32)
            x, kind = whole[rank * rows : (rank + 1) * rows].clone(), call % 4
            place.fill_(nan)
            if kind == 1:
                x = torch.cat([x, x], 1)[:, :k]
            elif kind == 2:
                x = torch.cat([torch.zeros(1), x.flatten()])[1:].view(rows, k)
            elif kind == 3:
                x = place.copy_(x)
            y = op(x, w)
            expect(torch.equal(y, whole @ w), f"x where it is, {rows} rows, {cut}, call {call} differs")
            copied = [not bool(row.isnan().any()) for row in place]
            wanted = [True] * rows if kind >= 2 else border
            expect(copied == wanted, f"x where it is, {rows} rows, call {call}: copied {copied}")
        op.close()


def check_together(rank: int, size: int, group) -> None:
    """Tiles that all wait for what arrives: of a gather and of an exchange, whole and in slices of K, in one round and in
    several."""
    n, k, dtype = 48, 64, torch.float32
    for rows, slices, programs in ((16, 1, 64), (16, (16, 48), 64), (20, 1, 2)):
        for kind in (ops.AllGatherMatmul, ops.AllToAllMatmul):
            whole, w = numbers((rows * size, k), 7, dtype), numbers((k, n), 3, dtype)
            one = dataclasses.replace(sy.strategy.SMALL, num_wide=-1)
            chosen = ops.Strategy((one,), programs=programs, chunking=ops.Chunking(1, slices), together=True)
            op = kind(rows * size, n, k, dtype, group, strategy=chosen)
            exchanges = kind is ops.AllToAllMatmul
            for call in range(2):
                y = op(whole if exchanges else whole[rank * rows : (rank + 1) * rows], w)
                read = whole[rank * rows : (rank + 1) * rows].repeat(size, 1) if exchanges else whole
                expect(
                    torch.equal(y, read @ w),
                    f"{op.name} together, {rows} rows, {slices}, call {call} differs",
                )
            op.close()
    if size == 1:
        return
    op = ops.MatmulReduceScatter(16 * size, n, k, dtype, group, strategy=ops.Strategy(together=True))
    try:
        op(numbers((16 * size, k), 7, dtype), numbers((k, n), 3, dtype))
        expect(False, "tiles that make what is sent wait for what arrives")
    except ValueError as error:
        expect("some of them make what is sent" in str(error), f"got {error}")
    op.close()


def check_random_data(rank: int, group) -> None:
    """The same bits as the unfused kernel; fp64 agrees to within the dtype's rounding."""
    m, n, k = 50, 40, 96
    for dtype, limit in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 4e-3)):
        chosen = ops.Strategy(chunking=ops.Chunking(2, 3), pull=dtype == torch.float16)
        op = ops.AllGatherMatmul(m, n, k, dtype, group, strategy=chosen)
        torch.manual_seed(5)
        whole, w = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        first = sum(m // group.size + (r < m % group.size) for r in range(rank))
        y = op(whole[first : first + op.shard_rows], w)
        alone = op.unfused(whole, w, torch.full_like(y, float("nan")))
        expect(torch.equal(y, alone), f"AllGatherMatmul {dtype} differs from the unfused kernel")
        exact = whole.double() @ w.double()
        error = ((y.double() - exact).norm() / exact.norm()).item()
        expect(error < limit, f"AllGatherMatmul {dtype}: relative error {error:.1e}")
        op.close()


def check_bf16_kernel(rank: int, size: int, group) -> None:
    m, n, k = 24 * size, 32, 48
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("A", (m, k), "bf16"), split=2)
    whole, w = numbers((m, k), 1, torch.bfloat16), numbers((k, n), 2, torch.bfloat16)
    for name, example in CALLS.items():
        fused = example.fuse(plan, group=group)
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
        example.launch(fused, whole[24 * rank : 24 * (rank + 1)], w, out, Blocks(16, 16, 16, 2, 3))
        expect(torch.equal(out, (whole.float() @ w.float()).bfloat16()), f"{name} in bf16 differs")
        fused.close()


def check_refusals(rank: int, group) -> None:
    """Shards and weights of another shape, dtype or layout: ValueError with the names, before anything is sent."""
    op = ops.AllGatherMatmul(8 * group.size, 16, 32, torch.float32, group)
    x, w = torch.zeros(8, 32), torch.zeros(32, 16)
    wrong = [
        ("x: expected shape [8, 32], got [9, 32]", (torch.zeros(9, 32), w)),
        ("w: expected shape [32, 16], got [16, 32]", (x, torch.zeros(16, 32))),
        ("x: expected dtype torch.float32, got torch.float16", (x.half(), w)),
        ("x: expected a tensor on host, got one on meta", (x.to("meta"), w)),
        (f"out: expected shape [{8 * group.size}, 16], got [3, 16]", (x, w, torch.zeros(3, 16))),
        ("expected x [rows, K] and w [K, N], got [8, 32] and [31, 16]", None),
    ]
    for message, arguments in wrong:
        try:
            if arguments is None:
                ops.all_gather_matmul(x, torch.zeros(31, 16), group)
            else:
                op(*arguments)
        except ValueError as error:
            expect(message in str(error), f"expected '{message}', got '{error}'")
        else:
            raise RuntimeError(f"no ValueError: {message}")

    size, example = group.size, CALLS["matmul_pointers"]
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("A", (8 * size, 32), "fp32"))
    fused = example.fuse(plan, group=group)
    out, blocks = torch.zeros(8 * size, 16), Blocks(16, 16, 16, 2, 3)
    for message, shard in [
        (f"a_ptr (bound to A, rank {rank}): expected this rank's shard of shape [8, 32], got [7, 32]", x[:7]),
        (f"a_ptr (bound to A, rank {rank}): expected dtype fp32, got fp16", x.half()),
        (f"a_ptr (bound to A, rank {rank}): the last axis must be contiguous", torch.zeros(32, 8).t()),
        (f"a_ptr (bound to A, rank {rank}): expected a tensor on the host, got one on meta", x.to("meta")),
    ]:
        try:
            example.launch(fused, shard, w, out, blocks)
        except ValueError as error:
            expect(message in str(error), f"expected '{message}', got '{error}'")
        else:
            raise RuntimeError(f"no ValueError: {message}")
    for bind, message in (
        ({"a": "A"}, "bind: a is not a tensor parameter of matmul_kernel"),
        ({"a_ptr": "X"}, "bind: the plan has no tensor X"),
    ):
        try:
            example.launch(sy.fuse(example.kernel, plan, bind=bind, group=group), x, w, out, blocks)
        except ValueError as error:
            expect(message in str(error), f"expected '{message}', got '{error}'")
        else:
            raise RuntimeError(f"no ValueError: {message}")
    other = sy.plans.all_gather(sy.plans.mesh_of(size + 1), sy.Tensor("A", (8 * size, 32), "fp32"))
    try:
        example.launch(example.fuse(other, group=group), x, w, out, blocks)
    except ValueError as error:
        expect(f"the plan is for {size + 1} ranks, the group has {size}" in str(error), str(error))
    else:
        raise RuntimeError("no ValueError for a plan of another number of ranks")
    example.launch(fused, x, w, out, blocks)  # and all of this did no harm
    fused.close()
    op.close()


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_operator(place.rank, place.size, group)
    check_bias(place.rank, place.size, group)
    check_x_where_it_is(place.rank, place.size, group)
    check_together(place.rank, place.size, group)
    check_random_data(place.rank, group)
    check_bf16_kernel(place.rank, place.size, group)
    check_refusals(place.rank, group)


def check_in_process_group() -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    check_operator(rank, size, None)
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("A", (7 * size, 48), "fp32"), pull=True)
    for name, example in CALLS.items():  # through sy.fuse, on the default process group
        fused = example.fuse(plan)
        whole, w = numbers((7 * size, 48), 1, torch.float32), numbers((48, 32), 2, torch.float32)
        out = torch.full((7 * size, 32), float("nan"))
        example.launch(fused, whole[7 * rank : 7 * rank + 7], w, out, Blocks(16, 16, 16, 2, 3))
        expect(torch.equal(out, whole @ w), f"{name} in a process group differs")
        fused.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        check_in_process_group()
    else:
        on_ranks(check)
    print("ok", flush=True)
