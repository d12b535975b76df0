"""Kernels whose outputs are reduced over host ranks, in Triton's interpreter; run by test_host.py.

Every configuration makes some calls with fresh data; transfers are delayed at random and the results must be identical,
bit for bit, to the contributions added up as fp32 in rank order. Exits 1 with the first thing that is wrong.

    host_reduce.py RANKS [CALLS]
"""

import itertools
import os
import random
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]

import producer_kernels  # noqa: E402
import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from host_script import expect  # noqa: E402
from syncopate import (  # noqa: E402
    ops,
    ranks,  # noqa: E402
)
from syncopate.device.versions import triton_before  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.host import interpreter  # noqa: E402

N, K = 32, 48
SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))
OPERATORS = (ops.MatmulReduceScatter, ops.MatmulAllReduce, ops.MatmulAllToAll, ops.AllToAllMatmul)


def rows_of(size: int) -> int:
    return 7 * size + 3  # uneven shards, tiles that straddle them


def shard_of(rank: int, size: int, m: int) -> slice:
    base, extra = divmod(m, size)
    first = rank * base + min(rank, extra)
    return slice(first, first + base + (rank < extra))


def in_order(parts: list[torch.Tensor], reduce: str = "sum") -> torch.Tensor:
    """What the ranks' parts add up to, in rank order, as the runtime does it."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float() if reduce == "sum" else torch.maximum(total, part.float())
    return total.to(parts[0].dtype)


def times(most: int) -> range:
    """Calls of one configuration: two outside a sweep, so that each follows another."""
    return range(most if SWEEP else 2)


def check_examples(place: ranks.Place, calls: int) -> int:
    """Tagged integers through the three example kernels: split 1 to 4 (each, in a sweep), reduced to shards or everywhere."""
    rng = random.Random(place.rank)
    m = rows_of(place.size)
    mine = shard_of(place.rank, place.size, m)
    count = 0
    for index, ((name, example), everywhere) in enumerate(itertools.product(CALLS.items(), (False, True))):
        for split in (1, 2, 3, 4) if SWEEP else (1 + (index // 2 + 2 * (index % 2)) % 4,):
            group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-{count}", "host")
            plan = sy.plans.push_reduce(
                sy.plans.mesh_of(place.size), sy.Tensor("C", (m, N), "fp32"), split=split, all=everywhere
            )
            fused = sy.fuse(
                example.kernel, plan, bind={example.parameter.replace("a_", "c_"): "C"}, group=group,
                host_delay=1e-3, seed=count * 100 + place.rank, deadline=600,
            )  # fmt: skip
            for call in range(calls):
                inputs = [
                    numbers((m, K), 1000 * count + 10 * call + r, torch.float32) for r in range(place.size)
                ]
                weights = [numbers((K, N), 7 + r, torch.float32) for r in range(place.size)]
                out = torch.full((m, N), float("nan"))
                if rng.random() < 0.3:
                    time.sleep(rng.random() * 3e-3 * (place.rank + 1))
                example.launch(fused, inputs[place.rank], weights[place.rank], out, Blocks(16, 16, 16, 2, 3))
                exact = sum(x @ w for x, w in zip(inputs, weights, strict=True))  # of small integers
                rows = slice(0, m) if everywhere else mine
                expect(
                    torch.equal(out[rows], exact[rows]),
                    f"{name} split={split} all={everywhere} call {call}",
                )
                if not everywhere:
                    rest = torch.cat([out[: mine.start], out[mine.stop :]])
                    expect(bool(rest.isnan().all()), f"{name} split={split}: writes outside the shard")
            fused.close()
            count += 1
    return count


def check_templates(place: ranks.Place) -> None:
    """Every algorithm of `plan make`, which may sum in several rounds, into the caller's tensor: whole, or this rank's part."""
    rank, size = place.rank, place.size
    m = 8 * size
    mine, example, mesh = shard_of(rank, size, m), CALLS["matmul_pointers"], sy.plans.mesh_of(size)
    C = sy.Tensor("C", (m, N), "fp32")
    made = [
        ("direct", {}),
        ("direct", {"pull": True}),
        ("direct", {"split": 2}),
        ("direct", {"reduce": "max"}),
        ("ring", {}),
    ]
    plans = [(algorithm, more, sy.plans.reduce_scatter) for algorithm, more in made]
    plans += [(algorithm, {}, sy.plans.all_reduce) for algorithm in ("two_shot", "one_shot", "ring")]
    for number, (algorithm, more, template) in enumerate(plans):
        what = f"{template.__name__} {algorithm} {more}"
        group = of_folder(place.folder, rank, size, f"{place.run_id}-template-{number}", "host")
        plan = template(mesh, C, algorithm=algorithm, produced=True, **more)
        everywhere = template is sy.plans.all_reduce
        rows = slice(0, m) if everywhere else mine
        fused = sy.fuse(
            example.kernel, plan, bind={"c_ptr": "C"}, group=group, host_delay=1e-3, seed=rank, deadline=600
        )
        for call in range(4):
            inputs = [numbers((m, K), 10 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((K, N), 7 + r, torch.float32) for r in range(size)]
            exact = in_order([x @ w for x, w in zip(inputs, weights, strict=True)], more.get("reduce", "sum"))
            out = torch.full((m, N), float("nan"))
            grid, arguments = example.arguments(inputs[rank], weights[rank], out, Blocks(16, 16, 16, 2, 3))
            part = call % 2 == 1
            fused[grid](**arguments | {"c_ptr": out[rows] if part else out})
            expect(torch.equal(out[rows], exact[rows]), f"{what}, call {call}")
        fused.close()


def check_partial_stores(place: ranks.Place) -> None:
    """A kernel whose mask depends on its data: what it leaves alone is what the caller's tensor held, in each call anew."""
    rank, size = place.rank, place.size
    m, n = 8 * size, 32
    group = of_folder(place.folder, rank, size, f"{place.run_id}-partial", "host")
    plan = sy.plans.push_reduce(sy.plans.mesh_of(size), sy.Tensor("C", (m, n), "fp32"))
    fused = sy.fuse(producer_kernels.positive, plan, bind={"c_ptr": "C"}, group=group, deadline=600)
    launch = fused[(-(-m // 16), 2)]
    mine, blocks = shard_of(rank, size, m), {"BLOCK_M": 16, "BLOCK_N": 16}
    for call, start in enumerate((0.0, 0.0, 5.0)):
        inputs = [numbers((m, n), 10 * call + r, torch.float32) for r in range(size)]
        out = torch.full((m, n), start)
        launch(inputs[rank], out, m, n, **blocks)
        exact = sum(torch.where(x > 0, 2 * x, start) for x in inputs)
        expect(torch.equal(out[mine], exact[mine]), f"what a mask leaves alone, call {call}")
    if size == 1:
        return
    try:
        launch(inputs[rank], out[mine], m, n, **blocks)
    except ValueError as error:
        expect("may leave elements as they are, so give it whole" in str(error), str(error))
    else:
        raise RuntimeError("a shard for what a kernel may leave alone")


def check_bits(place: ranks.Place) -> None:
    """Parts of very different magnitude: the bits of a sum as fp32 in rank order, rounded once, whatever the timing."""
    m, n, k = 11 * place.size + 2, 16, 16
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-bits", "host")
    mine = shard_of(place.rank, place.size, m)
    example = CALLS["matmul_pointers"]
    wide, narrow = (0, 20, 3, 24, 9, 15, 1, 22), (0, 7, 2, 8, 5, 6, 1, 4)
    for dtype, name, shifts in (
        (torch.bfloat16, "bf16", wide), (torch.float16, "fp16", narrow), (torch.float32, "fp32", wide)
    ):  # fmt: skip
        for reduce in ("sum", "max"):
            plan = sy.plans.push_reduce(
                sy.plans.mesh_of(place.size), sy.Tensor("C", (m, n), name), split=2, reduce=reduce
            )
            fused = sy.fuse(
                example.kernel, plan, bind={"c_ptr": "C"}, group=group, host_delay=1e-3, seed=place.rank
            )
            inputs = [numbers((m, k), r, torch.float32) for r in range(place.size)]
            weights = [numbers((k, n), 30 + r, torch.float32) * 2.0 ** shifts[r] for r in range(place.size)]
            expected = in_order([(x @ w).to(dtype) for x, w in zip(inputs, weights, strict=True)], reduce)
            x, w = inputs[place.rank].to(dtype), weights[place.rank].to(dtype)
            for call in times(3):
                out = torch.full((m, n), float("nan"), dtype=dtype)
                example.launch(fused, x, w, out, Blocks(16, 16, 16, 2, 3))
                expect(torch.equal(out[mine], expected[mine]), f"{reduce} of {name}, call {call}: other bits")
            fused.close()


def check_other_kernels(place: ranks.Place) -> None:
    """Split-K by atomics, a store in two halves, block pointers in a grid of two axes with an early return."""
    m, n, k, size = rows_of(place.size), 32, 64, place.size
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-other", "host")
    plan = sy.plans.push_reduce(sy.plans.mesh_of(size), sy.Tensor("C", (m, n), "fp32"), split=2)
    tiles, block = -(-m // 16) * 2, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
    launches = {
        "split_k": ((tiles, 2), {**block, "SPLIT_K": 2}),
        "subtiled": ((3,), {**block, "PROGRAMS": 3}),
        "block_pointers": ((2, -(-m // 16) + 1), block),
    }
    if not triton_before(3, 9):
        del launches["block_pointers"]  # which Triton has no more
    mine = shard_of(place.rank, size, m)
    for name, (grid, constants) in launches.items():
        fused = sy.fuse(
            getattr(producer_kernels, name),
            plan,
            bind={"c_ptr": "C"},
            group=group,
            host_delay=1e-3,
            seed=place.rank,
        )
        for call in times(3):
            inputs = [numbers((m, k), 50 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 9 + r, torch.float32) for r in range(size)]
            out = torch.zeros(m, n)
            fused[grid](inputs[place.rank], weights[place.rank], out, m, n, k, **constants)
            exact = sum(x @ w for x, w in zip(inputs, weights, strict=True))
            expect(torch.equal(out[mine], exact[mine]), f"{name} call {call}")
        fused.close()
    atomics = sy.fuse(producer_kernels.split_k, plan, bind={"c_ptr": "C"}, group=group)
    grid, constants = launches["split_k"]
    try:
        atomics[grid](inputs[0], weights[0], out[mine], m, n, k, **constants)
    except ValueError as error:
        expect("so give it whole" in str(error) or mine == slice(0, m), str(error))
    else:
        expect(size == 1, "a shard for what atomics add to")


def check_operators(place: ranks.Place) -> None:
    """sy.ops: every dtype, weights as [K, N] and as the transpose of [N, K], a new output and one that is given."""
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-ops", "host")
    rank, size = place.rank, place.size
    m, n, k = 12 * size, 48, 64
    block = slice(rank * 12, rank * 12 + 12)
    for dtype in (torch.float32, torch.bfloat16):
        for transposed in (False, True):
            for call in range(2):
                inputs = [numbers((m, k), 10 * call + r, dtype) for r in range(size)]
                weights = [numbers((k, n), 5 + r, dtype) for r in range(size)]
                parts = [(x.float() @ w.float()).to(dtype) for x, w in zip(inputs, weights, strict=True)]
                x, w = inputs[rank], weights[rank]
                w = w.t().contiguous().t() if transposed else w
                total = in_order(parts)
                exchanged = torch.cat([x[block] for x in inputs])
                for function, wanted in (
                    (ops.matmul_reduce_scatter, total[block]),
                    (ops.matmul_all_reduce, total),
                    (ops.matmul_all_to_all, torch.cat([p[block] for p in parts])),
                    (ops.all_to_all_matmul, (exchanged.float() @ weights[rank].float()).to(dtype)),
                ):
                    out = torch.full(wanted.shape, float("nan"), dtype=dtype) if call else None
                    y = function(x, w, group, out)
                    expect(out is None or y is out, "the output given is the one returned")
                    expect(
                        torch.equal(y, wanted),
                        f"{function.__name__} {dtype} transposed={transposed} call {call}",
                    )


def check_inline(place: ranks.Place) -> None:
    """Tiles stored straight into the peers' memory: every operator through a descriptor that spans all heaps, and the
    pointer kernel; whole shards, so that no tile straddles two."""
    rank, size = place.rank, place.size
    group = of_folder(place.folder, rank, size, f"{place.run_id}-inline", "host")
    m, n, k = 64 * size, 48, 64
    block = slice(rank * 64, rank * 64 + 64)
    for number, operator in enumerate(OPERATORS[:3]):
        op = operator(
            m, n, k, torch.float32, group, strategy=ops.Strategy(backend="tma_inline"), host_delay=1e-3
        )
        for call in times(3):
            inputs = [numbers((m, k), 10 * call + r + number, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
            parts = [x @ w for x, w in zip(inputs, weights, strict=True)]
            for buffer in op.prepare().tensors.values():
                buffer.fill_(float("nan"))
            group.barrier(f"poisoned-{number}-{call}")  # a peer that is ahead would store before the poison
            wanted = (sum(parts)[block], sum(parts), torch.cat([p[block] for p in parts]))[number]
            y = op(inputs[rank], weights[rank])
            expect(torch.equal(y, wanted), f"{operator.__name__} inline, call {call}")
        expect(
            op.prepared.schedule.stores is not None or size == 1,
            f"{operator.__name__}: nothing is stored inline",
        )
        op.close()
    for name, example in CALLS.items():
        check_example_inline(group, name, example)


def check_own_block(place: ranks.Place) -> None:
    """What an all-to-all leaves on its rank is read in the user's tensor, wherever that can be done: by an operator with the
    input in slices, apart, at an odd address and in the heap, and by the example kernels."""
    rank, size = place.rank, place.size
    group = of_folder(place.folder, rank, size, f"{place.run_id}-own", "host")
    m, n, k = 32 * size, 32, 64
    mine = slice(rank * 32, rank * 32 + 32)
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
    for number, cut in enumerate((ops.Chunking(), ops.Chunking(1, (32, 32)), ops.Chunking(2, 2, True))):
        chosen = ops.Strategy((tiling,), chunking=cut)
        op = ops.AllToAllMatmul(m, n, k, torch.float32, group, strategy=chosen, host_delay=1e-3)
        loads = op.prepare().schedule.loads
        expect((loads.tensor, loads.by_row, loads.own) == ("A", True, True), f"loads of {loads.tensor}")
        for call in range(8 if SWEEP else 4):
            inputs = [numbers((m, k), 10 * call + r + number, torch.float32) for r in range(size)]
            x, kind = inputs[rank], call % 4
            if kind == 1:
                x = torch.cat([x, x], 1)[:, :k]
            elif kind == 2:
                x = torch.cat([torch.zeros(1), x.flatten()])[1:].view(m, k)
            elif kind == 3:
                x = op.prepared.tensors["X"].copy_(x)
            else:
                op.prepared.tensors["X"].fill_(float("nan"))
            y = op(x, weights[rank])
            expect(
                torch.equal(y, torch.cat([i[mine] for i in inputs]) @ weights[rank]),
                f"own, {cut}, call {call}",
            )
            address, pitch, _ = op.prepared.op.own_place()
            expect((address == x.data_ptr()) == (kind != 2), f"own, kind {kind}: read elsewhere")
            expect(pitch == 4 * (2 * k if kind == 1 else k), f"own, kind {kind}: rows {pitch} bytes apart")
        op.close()
    plan = sy.plans.push_exchange(
        sy.plans.mesh_of(size), sy.Tensor("X", (m, k), "fp32"), "A", produced=False, for_kernel=True
    )
    for name, example in CALLS.items():
        fused = example.fuse(plan, group=group)
        inputs = [numbers((m, k), 3 + r, torch.float32) for r in range(size)]
        out = torch.full((m, n), float("nan"))
        grid, arguments = example.arguments(torch.zeros(m, k), weights[rank], out, Blocks(16, 16, 16, 2, 3))
        prepared = fused.prepare(grid, **arguments)
        own = name != "matmul_persistent_device_tma"  # its descriptor leads to the heap
        expect((prepared.schedule.loads is not None) == own, f"{name}: its own block")
        for odd in (0, 1):  # whose distance from the heap is 16 elements, or not
            memory = torch.empty(m * k + 32)
            begin = -memory.data_ptr() // 4 % 16 + odd
            x = memory[begin : begin + m * k].view(m, k).copy_(inputs[rank])
            prepared.op.set_input("X", x.data_ptr(), [k, 1])
            prepared.interpret([prepared.arguments(0, arguments)])
            expect(
                torch.equal(out, torch.cat([i[mine] for i in inputs]) @ weights[rank]),
                f"{name}, own, odd {odd}",
            )
            expect(not own or (prepared.op.own_place()[0] == x.data_ptr()) == (not odd), name)
        fused.close()


def check_example_inline(group, name: str, example) -> None:
    """One kernel's tiles, two a chunk and two chunks a shard, stored in the peers' memory, and read there."""
    rank, size = group.rank, group.size
    m, n, k = 32 * size, 32, 32
    block = slice(rank * 32, rank * 32 + 32)
    for everywhere in (False, True):
        plan = sy.plans.push_reduce(
            sy.plans.mesh_of(size), sy.Tensor("C", (m, n), "fp32"), split=2, all=everywhere
        )
        bind = {example.parameter.replace("a_", "c_"): "C"}
        fused = sy.fuse(
            example.kernel, plan, bind=bind, group=group, strategy=sy.Strategy(backend=example.inline)
        )
        for call in times(3):
            inputs = [numbers((m, k), 7 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 3 + r, torch.float32) for r in range(size)]
            exact = sum(x @ w for x, w in zip(inputs, weights, strict=True))
            out = torch.full((m, n), float("nan"))
            example.launch(fused, inputs[rank], weights[rank], out, Blocks(16, 16, 16, 2, 3))
            rows = slice(0, m) if everywhere else block
            expect(torch.equal(out[rows], exact[rows]), f"{name} inline all={everywhere} call {call}")
        (prepared,) = fused.prepared
        expect(prepared.schedule.stores is not None or size == 1, f"{name}: nothing is stored inline")
        fused.close()
    plan = sy.plans.all_gather(
        sy.plans.mesh_of(size), sy.Tensor("A", (m, k), "fp32"), split=2, pull=True, transient=True
    )
    fused = example.fuse(plan, group=group, strategy=sy.Strategy(backend=example.inline))
    for call in times(3):
        x, w = numbers((m, k), 5 * call, torch.float32), numbers((k, n), 2 + rank, torch.float32)
        out = torch.full((m, n), float("nan"))
        example.launch(fused, x[block].contiguous(), w, out, Blocks(16, 16, 16, 2, 3))
        expect(torch.equal(out, x @ w), f"{name} fetches, call {call}")
    (prepared,) = fused.prepared
    expect(prepared.schedule.loads is not None or size == 1, f"{name}: nothing is fetched inline")
    fused.close()


def check_pulled(place: ranks.Place) -> None:
    """Owners that pull contributions, beside the kernel: shards in rows, or all of it in columns, in some parts."""
    rank, size = place.rank, place.size
    m, n, k = 8 * size + 3, 64, 32
    mine = shard_of(rank, size, m)
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    for number, (operator, split) in enumerate((o, s) for o in OPERATORS[:2] for s in (1, 2, 3)):
        backend = ("ldst_dedicated", "tma_dedicated")[number % 2]
        group = of_folder(place.folder, rank, size, f"{place.run_id}-pulled-{number}", "host")
        op = operator(
            m, n, k, torch.float32, group, host_delay=1e-3, seed=rank,
            strategy=ops.Strategy((tiling,), pull=True, split=split, backend=backend),
        )  # fmt: skip
        for call in times(4):
            inputs = [numbers((m, k), 10 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
            total = sum(x @ w for x, w in zip(inputs, weights, strict=True))
            op.prepare().tensors["C"].fill_(float("nan"))
            group.barrier(f"poisoned-{call}")
            y = op(inputs[rank], weights[rank])
            wanted = total[mine] if operator is OPERATORS[0] else total
            expect(torch.equal(y, wanted), f"{operator.__name__} pulled, split {split}, call {call}")
        op.close()


def check_sums_that_read(place: ranks.Place) -> None:
    """Sums that read contributions at their ranks: in parts of rows and of columns, of rows that
    are no multiple of the ranks, the output given, in rows that are apart, or in the heap."""
    rank, size = place.rank, place.size
    m, n, k = 8 * size + 3, 64, 32
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    for operator in (ops.MatmulAllReduce, ops.MatmulReduceScatter):
        for split, axis in ((1, 0), (2, 0), (2, 1)):
            what = f"{operator.__name__}, split {split} on {axis}"
            run_id = f"{place.run_id}-read-{operator.__name__}-{split}-{axis}"
            group = of_folder(place.folder, rank, size, run_id, "host")
            chosen = ops.Strategy((tiling,), split=split, split_axis=axis, pull=True, backend="ldst_inline")
            op = operator(m, n, k, torch.float32, group, strategy=chosen, host_delay=1e-3, seed=rank)
            schedule = op.prepare().schedule
            expect(len(schedule.tensors) == 1, f"{what}: {schedule.tensors}")
            sums = [t for t in schedule.transfers(rank) if t.reduce == "sum"]
            expect(len(sums) == (split if size > 1 else 0), f"{what}: {len(sums)} sums")
            for total in sums:
                places = [(source, tensor) for source, (tensor, _) in total.sources]
                expect(len(places) == size - 1, f"{what}: sources {places}")
                expect(all(r != rank for r, tensor in places if tensor == "C"), f"{what}: {places}")
            for call in times(6 if split == 2 else 3):
                inputs = [numbers((m, k), 10 * call + r, torch.float32) for r in range(size)]
                weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
                total = sum(x @ w for x, w in zip(inputs, weights, strict=True))
                if operator is ops.MatmulReduceScatter:
                    total = total[shard_of(rank, size, m)]
                for tensor in op.prepared.tensors.values():
                    tensor.fill_(float("nan"))
                group.barrier(f"poisoned-{call}")
                out = torch.full((op.out_rows, n + 8), float("nan"))[:, :n] if call % 2 else op.result()
                y = op(inputs[rank], weights[rank], out)
                expect(torch.equal(y, total), f"{what}, call {call}")
            op.close()


def check_stored(place: ranks.Place) -> None:
    """The first contributions copied, the last ones stored at their owners tile by tile."""
    rank, size = place.rank, place.size
    m, n, k = 32 * size, 64, 32
    mine = shard_of(rank, size, m)
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    for stored in range(1, size):
        group = of_folder(place.folder, rank, size, f"{place.run_id}-stored-{stored}", "host")
        chosen = ops.Strategy((tiling,), stored=stored)
        op = ops.MatmulReduceScatter(
            m, n, k, torch.float32, group, strategy=chosen, host_delay=1e-3, seed=rank
        )
        places = [chunk for chunk in op.prepare().schedule.chunks(rank) if chunk.stored_elsewhere]
        expect(len(places) == stored, f"{len(places)} of {stored} chunks are stored at their owners")
        for call in times(4):
            inputs = [numbers((m, k), 10 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
            total = sum(x @ w for x, w in zip(inputs, weights, strict=True))
            y = op(inputs[rank], weights[rank])
            expect(torch.equal(y, total[mine]), f"{stored} stored, call {call}")
        op.close()


def check_one_step(place: ranks.Place) -> None:
    """An all-reduce in one step: tiles stored at all ranks, or copied, whole tiles of rows and ragged ones. A reduce-scatter that
    sends as much, of rows that are no multiple of the ranks. Rows that pad what kernels would sum are in nobody's result."""
    rank, size = place.rank, place.size
    n, k = 64, 32
    tiling = ops.Tiling(16, 32, 32, 2, -1, "ieee", 2)
    everywhere, shares = ops.MatmulAllReduce, ops.MatmulReduceScatter
    for number, (operator, m, backend, split, in_kernel) in enumerate(
        (
            (everywhere, 48, "tma_inline", 1, False), (everywhere, 64, "tma_inline", 2, False),
            (everywhere, 48, "copy_engine", 1, False), (everywhere, 50, "tma_inline", 1, False),
            (everywhere, 50, "tma_inline", 1, True), (shares, 48, "tma_inline", 1, False),
            (shares, 50, "copy_engine", 2, False), (shares, 50, "tma_inline", 1, True),
        )
    ):  # fmt: skip
        what = f"{operator.__name__} in one step, {m} rows, {backend}, split {split}, padded {in_kernel}"
        group = of_folder(place.folder, rank, size, f"{place.run_id}-one-step-{number}", "host")
        chosen = ops.Strategy((tiling,), one_step=True, backend=backend, split=split, kernel_sums=in_kernel)
        op = operator(m, n, k, torch.float32, group, strategy=chosen, host_delay=1e-3, seed=rank)
        schedule = op.prepare().schedule
        padded = -(-m // 16) * 16 if in_kernel else m
        expect(op.prepared.tensors["C"].shape[0] == padded, f"{what}: {schedule.tensors}")
        expect(schedule.kernel_summands == 0, f"{what}: kernels sum nothing here")
        inline = backend == "tma_inline" and padded % 16 == 0
        stores = schedule.stores
        expect((stores.copies if stores else 0) == (size if inline else 0), f"{what}: {stores}")
        mine = slice(0, m) if operator is everywhere else shard_of(rank, size, m)
        for call in times(4):
            inputs = [numbers((m, k), 10 * call + r, torch.float32) for r in range(size)]
            weights = [numbers((k, n), 5 + r, torch.float32) for r in range(size)]
            parts = [x @ w for x, w in zip(inputs, weights, strict=True)]
            for tensor in op.prepared.tensors.values():
                tensor.fill_(float("nan"))
            group.barrier(f"poisoned-{call}")
            out = torch.full((op.out_rows, n + 8), float("nan"))[:, :n] if call % 2 else op.result()
            y = op(inputs[rank], weights[rank], out)
            expect(torch.equal(y, in_order(parts)[mine]), f"{what}, call {call}")
        op.close()


def check_places(place: ranks.Place) -> None:
    """The output in the heap, in rows that are apart, and on ranks that get nothing; what does not fit is refused."""
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-places", "host")
    m, n, k = max(1, place.size - 1), 24, 32  # the last rank of several gets no row
    op = ops.MatmulReduceScatter(m, n, k, torch.float32, group, deadline=600, host_delay=1e-3)
    mine = shard_of(place.rank, place.size, m)
    for call in times(4):
        inputs = [numbers((m, k), 3 * call + r, torch.float32) for r in range(place.size)]
        w = numbers((k, n), 2, torch.float32)
        apart = torch.full((op.out_rows, n + 3), float("nan"))
        out = op.result() if call % 2 else apart[:, :n]
        y = op(inputs[place.rank], w, out)
        expect(torch.equal(y, sum(x @ w for x in inputs)[mine]), f"places, call {call}")
        expect(bool(apart[:, n:].isnan().all()), "writes beside its rows")
    x, w = torch.zeros(m, k), torch.zeros(k, n)
    for message, arguments in (
        (f"x: expected shape [{m}, {k}], got [{m + 1}, {k}]", (torch.zeros(m + 1, k), w)),
        (f"out: expected shape [{op.out_rows}, {n}], got [9, {n}]", (x, w, torch.zeros(9, n))),
        ("x: expected dtype torch.float32, got torch.float16", (x.half(), w)),
    ):
        try:
            op(*arguments)
        except ValueError as error:
            expect(message in str(error), f"expected '{message}', got '{error}'")
        else:
            raise RuntimeError(f"no ValueError: {message}")
    if place.size > 1:
        for operator in OPERATORS[2:]:
            try:
                operator(place.size + 1, n, k, torch.float32, group)
            except ValueError as error:
                expect("blocks of equal size" in str(error), str(error))
            else:
                raise RuntimeError("no ValueError for blocks of unequal size")
    op.close()


def check_a_kernel_that_fails(place: ranks.Place) -> None:
    """An exception in one rank's kernel ends the call on all ranks at once, not at the deadline."""
    group = of_folder(place.folder, place.rank, place.size, f"{place.run_id}-fails", "host")
    example = CALLS["matmul_pointers"]
    m = 8 * place.size
    plan = sy.plans.push_reduce(sy.plans.mesh_of(place.size), sy.Tensor("C", (m, N), "fp32"))
    fused = sy.fuse(example.kernel, plan, bind={"c_ptr": "C"}, group=group, deadline=600)
    grid, arguments = example.arguments(
        torch.zeros(m, K), torch.zeros(K, N), torch.zeros(m, N), Blocks(16, 16, 16, 2, 3)
    )
    prepared = fused.prepare(grid, **arguments)
    try:
        prepared.op.begin_call()
        if place.rank == 0:
            prepared.op.end_call(ran=False)
        else:
            interpreter.launch(prepared.stages[0].kernel, prepared.grid, prepared.arguments(0, arguments))
            prepared.op.end_call()
    except Exception as error:  # noqa: BLE001 - what it says is judged
        expect("fault" in str(error) or "not" in str(error), str(error))
        expect(" ms" not in str(error), f"only the deadline ended it: {error}")
    else:
        raise RuntimeError("a call without a kernel ended well")


def work(place: ranks.Place, calls: int) -> int:
    torch.set_num_threads(1)
    count = check_examples(place, calls)
    check_templates(place)
    check_partial_stores(place)
    check_bits(place)
    check_other_kernels(place)
    if place.size <= 3:
        check_operators(place)
        check_inline(place)
        check_own_block(place)
    check_places(place)
    check_pulled(place)
    check_sums_that_read(place)
    check_stored(place)
    check_one_step(place)
    check_a_kernel_that_fails(place)
    return count


if __name__ == "__main__":
    size, calls = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    try:
        counts = ranks.run(size, lambda place: work(place, calls), timeout=1800)
    except ranks.RankError as error:
        print(error)
        sys.exit(1)
    print(f"{size} ranks: {counts[0]} configurations, {calls * counts[0]} calls, identical")
