"""A user's own grouped product, fused with the way of rows to their experts' ranks, of which only the device knows how many they
are; run by test_ragged.py.

    host_ragged.py RANKS [CHECK …]
"""

import json
import os
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":  # else its kernels are compiled
    os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate.call.arguments import function_of  # noqa: E402
from syncopate.host import interpreter  # noqa: E402

OWN, N, K, BM, BN, BK = 3, 24, 20, 16, 16, 16  # OWN experts of a rank
BIND = {"a_ptr": "A", "offsets_ptr": "counts"}


@triton.jit
def by_offsets(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of each expert as many tiles as it could have; the offsets say how many it has."""
    expert, pid_m, pid_n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(offsets_ptr + expert + 1)
    row = tl.load(offsets_ptr + expert) + pid_m * BM
    if row >= end:
        return
    rows, cols = row + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < end) & (cols[None, :] < N))


def plan_of(size, bound, back=False):
    """Rows of A from their ranks to those of their experts; `back`: rows of C from there."""
    made = sy.Tensor("C", (bound, N), "fp32") if back else None
    return sy.plans.push_groups(sy.plans.mesh_of(size), sy.Tensor("A", (bound, K), "fp32"), OWN * size, made)


def routings(size, seed, most):
    """Rows of each rank for each expert, by name."""
    shape = (size, OWN * size)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(0, 2 * most // (OWN * size) + 1, shape, generator=generator)
    one = torch.zeros(shape, dtype=torch.int64)
    one[:, -1] = most
    silent = random.clone()
    silent[0] = 0  # a rank without rows
    single = torch.zeros(shape, dtype=torch.int64)
    single[size - 1, 0] = 1
    return {
        "random": random, "other random": random.flip(0, 1), "all to one expert": one, "nothing of a rank": silent,
        "one row": single, "no rows": torch.zeros_like(random), "random again": random,
    }  # fmt: skip


def arrived(counts, rank, bound, size):
    """Of each of the rank's experts the rows that come, as numbers of all ranks' rows, those over the bound left out."""
    starts = counts.flatten().cumsum(0).view_as(counts) - counts
    left, made = bound, []
    for expert in range(rank * OWN, (rank + 1) * OWN):
        rows = [
            int(starts[source, expert]) + i
            for source in range(size)
            for i in range(int(counts[source, expert]))
        ]
        made.append(rows[:left])
        left -= len(made[-1])
    return made


def launch_of(fused, bound):
    """The grid, and the sizes that its kernel takes."""
    columns, rows = triton.cdiv(N, BN), triton.cdiv(bound, BM)
    if fused.stages[0].kernel is searched:
        return (rows + OWN, columns), (N, OWN, K, BM, BN, BK)
    return (OWN, rows, columns), (N, K, BM, BN, BK)


def call_and_compare(fused, counts, bound, name, given=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = torch.randint(
        -2, 3, (max(1, int(counts.sum())), K), generator=torch.Generator().manual_seed(1)
    ).float()
    b = torch.randint(-2, 3, (OWN * size, K, N), generator=torch.Generator().manual_seed(2)).float()
    first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
    own_b = b[rank * OWN : (rank + 1) * OWN].contiguous()
    c = torch.full((bound, N), float("nan"))
    grid, sizes = launch_of(fused, bound)
    a = everything[first:last]
    told = counts[rank].to(torch.int32) if given is None else given
    fused[grid](a if len(a) else torch.empty(1, K), own_b, c, told, *sizes)
    rows = arrived(counts, rank, bound, size)
    offsets = [0]
    for one in rows:
        offsets.append(offsets[-1] + len(one))
    expect(fused.offsets.tolist() == offsets, f"{name}: offsets {fused.offsets.tolist()}, not {offsets}")
    for expert, one in enumerate(rows):
        wanted = everything[one] @ own_b[expert]
        got = c[offsets[expert] : offsets[expert + 1]]
        expect(torch.equal(got, wanted), f"{name}: rank {rank}, expert {expert} differs")
    expect(bool(c[offsets[-1] :].isnan().all()), f"{name}: rank {rank} stored behind the rows that came")


@contextmanager
def late_rows(seconds):
    """This rank's rows leave so much later than its counts."""
    launch = interpreter.launch

    def delayed(kernel, *arguments):
        if function_of(kernel).__name__ == "ragged_rows":
            time.sleep(seconds)
        return launch(kernel, *arguments)

    interpreter.launch = delayed
    try:
        yield
    finally:
        interpreter.launch = launch


def check_ragged(_, size):
    """One set-up for all routings, which change each call."""
    bound = 40 * size
    plan = plan_of(size, bound)
    expect(not plan.check(), "the plan of all counts")
    fused = sy.fuse(by_offsets, plan, BIND)
    for call, (name, counts) in enumerate(routings(size, 5, 30).items()):
        with late_rows(0.2 if call % size == dist.get_rank() else 0):  # the others' tiles wait for its rows
            call_and_compare(fused, counts, bound, name)
    expect(len(fused.prepared) == 1, f"set up {len(fused.prepared)} times")


def call_back_and_compare(fused, counts, bound, name):
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = torch.randint(
        -2, 3, (max(1, int(counts.sum())), K), generator=torch.Generator().manual_seed(1)
    ).float()
    b = torch.randint(-2, 3, (OWN * size, K, N), generator=torch.Generator().manual_seed(2)).float()
    first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
    a = everything[first:last] if last > first else torch.empty(1, K)
    c = torch.full((len(a) + 1, N), float("nan"))
    grid, sizes = launch_of(fused, bound)
    fused[grid](a, b[rank * OWN : (rank + 1) * OWN].contiguous(), c, counts[rank].to(torch.int32), *sizes)
    wanted = torch.zeros(everything.shape[0], N)  # of rows that were left out
    for owner in range(size):
        for expert, rows in enumerate(arrived(counts, owner, bound, size), owner * OWN):
            wanted[rows] = everything[rows] @ b[expert]
    expect(torch.equal(c[: last - first], wanted[first:last]), f"{name}: rank {rank}: what came back differs")
    expect(bool(c[last - first :].isnan().all()), f"{name}: rank {rank} got more than its rows")


def check_back(_, size):
    """What is made of rows goes back to their ranks, in the order in which those gave them."""
    bound, bind = 40 * size, BIND | {"c_ptr": "C"}
    plan = plan_of(size, bound, back=True)
    expect(not plan.check(), "the plan of all counts, there and back")
    fused = sy.fuse(by_offsets, plan, bind)
    for call, (name, counts) in enumerate(routings(size, 7, 30).items()):
        with late_rows(0.2 if call % size == dist.get_rank() else 0):
            call_back_and_compare(fused, counts, bound, name)
    expect(len(fused.prepared) == 1, f"set up {len(fused.prepared)} times")
    drops = sy.fuse(by_offsets, plan_of(size, 24, back=True), bind, over="drop")
    call_back_and_compare(drops, routings(size, 3, 20)["all to one expert"], 24, "dropped")


def check_kept(_, size):
    """Rows that came are there until the next call, where the plan says so."""
    rank, experts = dist.get_rank(), OWN * size
    groups = {"rows_from_rank": [0, size], "expert": [rank * OWN, (rank + 1) * OWN]}

    def keep(text):
        for one in range(size):
            region = [groups | {"expert": [one * OWN, (one + 1) * OWN]}, [0, K]]
            text["final"].append({"rank": one, "tensor": "A", "region": region})

    plan = plan_of(size, 64)
    fused, passing = (sy.fuse(by_offsets, one, BIND) for one in (changed(plan, keep), plan))
    counts = torch.ones(size, experts, dtype=torch.int64)
    for one in (fused, passing):
        call_and_compare(one, counts, 64, "kept")
    everything = torch.randint(-2, 3, (size * experts, K), generator=torch.Generator().manual_seed(1)).float()
    came = fused.result(fused.prepared[0], "A")[: OWN * size]
    expect(torch.equal(came, everything[sum(arrived(counts, rank, 64, size), [])]), "rows that came")
    refused("the plan does not say that it is kept", lambda: passing.result(passing.prepared[0], "A"))


def check_over(_, size):
    """More rows than the bound: all ranks are told, or the last ones are left out."""
    bound = 24
    plan = plan_of(size, bound)
    counts = routings(size, 3, 20)["all to one expert"]
    drops = sy.fuse(by_offsets, plan, BIND, over="drop")
    call_and_compare(drops, counts, bound, "dropped")
    tells = sy.fuse(by_offsets, plan, BIND)
    more = 20 * size - bound
    for _ in range(2):
        try:
            call_and_compare(tells, counts, bound, "told")
            expect(more <= 0, "not told: over the bound")
        except ValueError as error:
            expect(f"as many as {more} rows more than {bound} come to a rank" in str(error), str(error))
        call_and_compare(tells, counts // 20, bound, "after it")


def check_more_than_the_bound(_, size):
    """A rank may give as many rows as there is memory for, and more than can come to one."""
    counts = routings(size, 3, 40)["random"]
    for back in (False, True):

        def fewer(text, back=back):
            for name in ("A", "C") if back else ("A",):
                text["tensors"][name]["ragged"]["bound"] = 24

        plan = changed(plan_of(size, 64, back=back), fewer)
        fused = sy.fuse(by_offsets, plan, BIND | ({"c_ptr": "C"} if back else {}), over="drop")
        (call_back_and_compare if back else call_and_compare)(fused, counts, 24, "more than the bound")


def check_wrong_counts(_, size):
    """Counts below 0, or of more rows than are given, are told to all ranks, and read nothing beyond."""
    plan = plan_of(size, 64)
    fused = sy.fuse(by_offsets, plan, BIND)
    counts = torch.ones(size, OWN * size, dtype=torch.int64)
    least = torch.iinfo(torch.int32).min
    for wrong, everywhere in ((-7, False), (9, False), (least, True), (least, True)):
        told = counts[dist.get_rank()].to(torch.int32)
        if everywhere or dist.get_rank() == size - 1:
            told[-1] = wrong
        try:
            call_and_compare(fused, counts, 64, "wrong counts", told)
            raise RuntimeError(f"not told: a count of {wrong}")
        except ValueError as error:
            expect("counts: counts below 0, or of more rows than were given" in str(error), str(error))
        call_and_compare(fused, counts, 64, "after wrong counts")


def check_recovered(_, size):
    """What a call has seen that failed, as not all ranks have, is no news of those after a recovery, nor after a reset."""
    plan = plan_of(size, 64)
    fused = sy.fuse(by_offsets, plan, BIND)
    counts = torch.ones(size, OWN * size, dtype=torch.int64)
    for go_on in (fused.reset, lambda: sy.recover(deadline=60)):
        call_and_compare(fused, counts, 64, "before")
        (prepared,) = fused.prepared
        fused._made[prepared].scratch["seen"][:] = 5 + dist.get_rank()
        dist.barrier()
        go_on()
        call_and_compare(fused, counts, 64, "after it")
    fused.check()


@triton.jit
def searched(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, E, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tiles of all experts in one row: a program looks for its own among them."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    expert, row, end, before = 0, 0, 0, 0
    for e in range(E):
        begin, last = tl.load(offsets_ptr + e), tl.load(offsets_ptr + e + 1)
        tiles = tl.cdiv(last - begin, BM)
        if pid_m >= before and pid_m < before + tiles:
            expert = e
            row = begin + (pid_m - before) * BM
            end = last
        before += tiles
    if row >= end:
        return
    rows, cols = row + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < end) & (cols[None, :] < N))


@triton.jit
def unmasked(a_ptr, c_ptr, offsets_ptr, K: tl.constexpr, BM: tl.constexpr):
    """It reads whole blocks, and of the next expert what lies behind this one's rows."""
    expert, block = tl.program_id(0), tl.program_id(1) * BM
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    if begin + block >= end:
        return
    rows, cols = begin + block + tl.arange(0, BM), tl.arange(0, BM)
    a = tl.load(a_ptr + rows[:, None] * K + cols[None, :])
    tl.store(c_ptr + rows[:, None] * K + cols[None, :], a, mask=(rows < end)[:, None])


def refused(message, work):
    try:
        work()
    except (ValueError, sy.SyncopateError) as error:
        expect(message in str(error), f"expected {message!r}, got {error}")
        return str(error)
    raise RuntimeError(f"not refused: {message}")


def changed(plan, change):
    text = json.loads(plan.to_json())
    change(text)
    return sy.plans.from_json(json.dumps(text))


def check_searched(_, size):
    """Which expert a program is of hangs on all counts: that they are in order is found, and its tiles wait for their expert's."""
    bound = 40 * size
    for back in (False, True):
        bind = BIND | ({"c_ptr": "C"} if back else {})
        fused = sy.fuse(searched, plan_of(size, bound, back), bind)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as they would wait for all
            for call, (name, counts) in enumerate(routings(size, 9, 30).items()):
                with late_rows(0.2 if call % size == dist.get_rank() else 0):
                    (call_back_and_compare if back else call_and_compare)(fused, counts, bound, name)
    few = sy.fuse(searched, plan_of(size, bound), BIND)
    b, c = torch.ones(OWN, K, N), torch.empty(bound, N)
    told = torch.ones(OWN * size, dtype=torch.int32)
    refused(
        "no tile reads row", lambda: few[(2, 2)](c[:, :K].contiguous(), b, c, told, N, OWN, K, BM, BN, BK)
    )


def check_refused(_, size):
    """What would read rows that may not have come, or that the plan does not bring, is named by line, or by rank and op."""
    plan, experts = plan_of(size, 64), OWN * size
    a, b, c, told = (
        torch.ones(experts, K),
        torch.ones(OWN, K, N),
        torch.empty(64, N),
        torch.ones(experts, dtype=torch.int32),
    )
    grid = (OWN, 4, 2)

    def call(plan=plan, grid=grid, told=told, a=a, c=c, **options):
        fused = sy.fuse(by_offsets, plan, BIND, **options)
        fused[grid](a, b, c, told, N, K, BM, BN, BK)

    line = by_offsets.fn.__code__.co_firstlineno
    said = refused(
        "no tile reads row 48 of expert 0, and an expert may have 64 rows", lambda: call(grid=(OWN, 3, 2))
    )
    expect(f"host_ragged.py:{line + 2}" in said, said)
    blocks = sy.fuse(unmasked, plan, BIND)
    refused(
        "tile 11 is of expert 2, which has rows 16 to 78, and reads 64 to 79",
        lambda: blocks[(OWN, 4)](a, c, told, K, 16),
    )
    refused("expected [rows, 20], of at most 64 rows", lambda: call(a=torch.ones(65, K)))
    refused("expected dtype int32", lambda: call(told=told.long()))
    refused("this rank's counts", lambda: call(told=told[1:].contiguous()))
    refused(
        "no parameter is bound to counts",
        lambda: sy.fuse(by_offsets, plan, {"a_ptr": "A"})[grid](a, b, c, told, N, K, BM, BN, BK),
    )
    refused("over: expected 'error' or 'drop'", lambda: call(over="keep"))
    shared = torch.ones(64 * N)
    rows = shared[: experts * K].view(experts, K)
    refused(
        "c_ptr: the kernel stores into the memory of a_ptr", lambda: call(a=rows, c=shared.view(64, N))
    )  # it would before all of them are sent
    if size > 1:
        refused("do not go to rank", lambda: call(changed(plan, lambda text: text["ranks"][0]["ops"].pop())))

        def waits(text):
            text["ranks"][1]["ops"][0]["after"] = [[0, 0]]

        refused("rank 1 op 0: it waits for another op", lambda: call(changed(plan, waits)))


if __name__ == "__main__":
    run_checks(globals())
    print(f"{sys.argv[1]} ranks: ragged")
