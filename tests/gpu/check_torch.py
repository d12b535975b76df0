"""PyTorch's face on real GPUs, one process each; on one GPU ranks share it:

    torchrun --nproc-per-node 2 tests/gpu/check_torch.py [SECTION …]

What other ranks hold is made anew from seeds, so that nothing is compared with a collective. See SECTIONS at the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
from sections import captures_collectives, expect, rank, run, size  # noqa: E402
from syncopate.call import cache  # noqa: E402
from syncopate.torch import calls, report  # noqa: E402

ops = torch.ops.syncopate
ROWS, K, N = 256, 512, 384  # rows of a shard
DTYPE = torch.bfloat16


def name() -> str:
    return dist.group.WORLD.group_name


def data(*shape: int, seed: int, of: int | None = None) -> torch.Tensor:
    """Of rank `of`; without one, of this rank."""
    generator = torch.Generator("cuda").manual_seed(seed + 1000 * (rank() if of is None else of))
    return (torch.randn(*shape, generator=generator, device="cuda") / shape[-1] ** 0.25).to(DTYPE)


def of_all(*shape: int, seed: int) -> list[torch.Tensor]:
    return [data(*shape, seed=seed, of=one).double() for one in range(size())]


def near(actual: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    error = ((actual.double() - exact).norm() / exact.norm()).item()
    expect(error < 8e-3, f"{what}: relative error {error:.1e}")


def differing() -> None:
    """Ranks that call different operators: all get a ValueError that names each rank's call, long before the deadline, also
    where kernels wait; and the next call works."""
    usual, cache.deadline = cache.deadline, 3600.0
    x, w, more = data(ROWS, K, seed=1), data(K, N, seed=2), data(2 * ROWS, K, seed=3)
    few = data(8 * size(), K, seed=4)

    def differ(call, what: str) -> None:
        said = ""
        try:
            call()
            while not said:  # what waits on the GPU is found by the host's watch
                time.sleep(0.05)
                for entry in list(cache.entries.values()):
                    if getattr(entry.operator, "calls_differ", False):
                        entry.operator.check()
        except ValueError as error:
            said = str(error)
        expect("the ranks' calls differ: " in said, f"{what}: {said}")
        torch.cuda.synchronize()
        dist.barrier()
        near(ops.all_gather_matmul(x, w, name()), gathered, f"after {what}")

    with sy.deterministic(rows=4096):
        gathered = torch.cat(of_all(ROWS, K, seed=1)) @ w.double()
        near(ops.all_gather_matmul(x, w, name()), gathered, "known")
        new = more if rank() == 0 else x
        differ(lambda: ops.all_gather_matmul(new, w, name()), "other rows, new on one rank")
        ops.all_gather_matmul(more, w, name())
        differ(lambda: ops.all_gather_matmul(new, w, name()), "other rows, known on all ranks")
        ops.matmul_all_reduce(few, w, name())
        other = (
            (lambda: ops.matmul_all_reduce(few, w, name()))
            if rank()
            else (lambda: ops.all_gather_matmul(x, w, name()))
        )
        differ(other, "another operator")
        ops.all_gather_matmul(more, w, name())
        graphs = []
        for one in (x, more):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                ops.all_gather_matmul(one, w, name())
            graphs.append(graph)
        differ(lambda: graphs[rank() == 0].replay(), "replays of several graphs")
    cache.deadline = usual
    sy.close()


def mine(whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(size())[rank()]


def gradients() -> None:
    """Of gather and scatter, against fp64 of all ranks' data; nothing runs unfused: the deterministic mode asks for no pair,
    which is estimated to be faster for products as small as these."""
    with sy.deterministic(rows=1024):
        _gradients()


def _gradients() -> None:
    report.clear()
    xs, ws, gs = of_all(ROWS, K, seed=1), of_all(K, N, seed=2), of_all(ROWS * size(), N, seed=3)
    x, w = data(ROWS, K, seed=1).requires_grad_(), data(K, N, seed=2).requires_grad_()
    y = ops.all_gather_matmul(x, w, name())
    y.backward(gs[rank()].to(DTYPE))
    near(y, torch.cat(xs) @ ws[rank()], "all_gather_matmul")
    near(x.grad, mine(sum(g @ one.t() for g, one in zip(gs, ws, strict=True))), "gradient of x")
    near(w.grad, torch.cat(xs).t() @ gs[rank()], "gradient of w")
    bias = data(N, seed=6).requires_grad_()
    y, whole = ops.all_gather_matmuls(x, [w], name(), [bias], return_gathered=True)
    y.backward(gs[rank()].to(DTYPE))
    near(y, torch.cat(xs) @ ws[rank()] + bias.double(), "all_gather_matmuls with a bias")
    near(whole, torch.cat(xs), "what is gathered")
    near(bias.grad, gs[rank()].sum(0), "gradient of a bias")

    xs, gs = of_all(ROWS * size(), K, seed=4), of_all(ROWS, N, seed=5)
    x, w = data(ROWS * size(), K, seed=4).requires_grad_(), data(K, N, seed=2).requires_grad_()
    y = ops.matmul_reduce_scatter(x, w, name())
    y.backward(gs[rank()].to(DTYPE))
    near(y, mine(sum(a @ b for a, b in zip(xs, ws, strict=True))), "matmul_reduce_scatter")
    near(x.grad, torch.cat(gs) @ ws[rank()].t(), "gradient of what is scattered")
    near(w.grad, xs[rank()].t() @ torch.cat(gs), "gradient of its weight")

    xs, gs = of_all(ROWS, K, seed=12), of_all(ROWS, N, seed=13)
    x, w = data(ROWS, K, seed=12).requires_grad_(), data(K, N, seed=2).requires_grad_()
    y = ops.matmul_all_reduce(x, w, name())
    y.backward(gs[rank()].to(DTYPE))
    near(y, sum(a @ b for a, b in zip(xs, ws, strict=True)), "matmul_all_reduce")
    near(x.grad, sum(gs) @ ws[rank()].t(), "gradient of what is summed")
    near(w.grad, xs[rank()].t() @ sum(gs), "gradient of its weight")
    xs, gs = of_all(ROWS * size(), K, seed=14), of_all(ROWS * size(), N, seed=15)
    x, w = data(ROWS * size(), K, seed=14).requires_grad_(), data(K, N, seed=2).requires_grad_()
    block = slice(rank() * ROWS, (rank() + 1) * ROWS)
    come = torch.cat([one[block] for one in xs])
    y, whole = ops.all_to_all_matmuls(x, [w], name(), return_exchanged=True)
    y.backward(gs[rank()].to(DTYPE))
    near(y, come @ ws[rank()], "all_to_all_matmuls")
    near(whole, come, "what is exchanged")
    back = [g @ one.t() for g, one in zip(gs, ws, strict=True)]
    near(x.grad, torch.cat([one[block] for one in back]), "gradient of what is exchanged")
    near(w.grad, come.t() @ gs[rank()], "gradient of its weight")
    left = [key for key in sy.report().calls if key[1] != "fused"]
    expect(not left, f"not fused: {left}")


def functions() -> None:
    """sy.ops.* under grad mode give the results and gradients of the custom ops; objects say that they make none. Without a word
    about a device they are on the GPU."""
    m = ROWS * size()
    cases = {
        "all_gather_matmul": [(ROWS, K), (K, N)],
        "matmul_reduce_scatter": [(m, K), (K, N)],
        "matmul_all_reduce": [(m, K), (K, N)],
        "matmul_all_to_all": [(m, K), (K, N)],
        "all_to_all_matmul": [(m, K), (K, N)],
        "feed_forward": [(ROWS, K), (K, 256), (256, N)],
    }
    for op, shapes in cases.items():
        given = [data(*shape, seed=50 + i).requires_grad_() for i, shape in enumerate(shapes)]
        right = [one.detach().clone().requires_grad_() for one in given]
        y, exact = getattr(sy.ops, op)(*given), getattr(ops, op)(*right, name())
        near(y, exact.double(), op)
        g = data(*y.shape, seed=60)
        y.backward(g)
        exact.backward(g)
        for one, other in zip(given, right, strict=True):
            near(one.grad, other.grad.double(), f"a gradient of {op}")
    made = sy.ops.MatmulAllReduce(m, N, K, DTYPE)
    expect(made.group.device == "cuda", f"an operator on {made.group.device}")
    try:
        made(data(m, K, seed=1).requires_grad_(), data(K, N, seed=2))
        expect(False, "an object under grad mode leaves the gradient out")
    except RuntimeError as error:
        expect("MatmulAllReduce makes none: call sy.ops.matmul_all_reduce" in str(error), str(error))
    made.close()


def streams() -> None:
    """Calls of one shape in flight on two streams, each with memory of its own, fresh data each time."""
    sides = [torch.cuda.Stream() for _ in range(2)]
    given = [[data(ROWS, K, seed=10 * i + s) for s in range(2)] for i in range(4)]
    w = data(K, N, seed=2)
    made: list[list[torch.Tensor]] = []
    torch.cuda.synchronize()
    for pair in given:
        row = []
        for side, x in zip(sides, pair, strict=True):
            with torch.cuda.stream(side):
                row.append(ops.all_gather_matmul(x, w, name()))
        made.append(row)
    torch.cuda.synchronize()
    for i, row in enumerate(made):
        for s, y in enumerate(row):
            near(y, torch.cat(of_all(ROWS, K, seed=10 * i + s)) @ w.double(), f"call {i} on stream {s}")
    used = {key[0] for key, entry in cache.entries.items() if entry.operator is not None}
    expect(len(used) >= 2, f"operators of {len(used)} streams")


def graphs() -> None:
    """A captured call is replayed on fresh data, mixed with eager ones; the first call cannot be a captured one."""
    x, w = data(ROWS, K, seed=20), data(K, N, seed=2)
    ops.all_gather_matmul(x, w, name())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = ops.all_gather_matmul(x, w, name())
    for turn in range(4):
        x.copy_(data(ROWS, K, seed=30 + turn))
        graph.replay()
        near(y, torch.cat(of_all(ROWS, K, seed=30 + turn)) @ w.double(), f"replay {turn}")
        near(ops.all_gather_matmul(x, w, name()), y.double(), f"eager call {turn}")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        try:
            ops.all_gather_matmul(x[:-64], w, name())
        except RuntimeError as error:
            expect("while a CUDA graph is captured" in str(error), str(error))
        else:
            expect(False, "a first call is captured")


def rows() -> None:
    """Batches of different sizes: the same bits a row, in the deterministic mode."""
    w = data(K, N, seed=2, of=0)
    whole = data(512 * size(), K, seed=40, of=0)
    with sy.deterministic(rows=1024):
        made = {}
        for count in (64, 200, 512):
            x = whole[: count * size()]
            made[count] = ops.all_gather_matmul(
                x[rank() * count : (rank() + 1) * count].contiguous(), w, name()
            )
    for count, y in made.items():
        expect(torch.equal(y, made[512][: count * size()]), f"{count} rows have other bits")


def compiled() -> None:
    """A function with collectives, through Inductor: rewritten, right, and the profiler shows the op. The estimate would
    leave products as small as these, so it is not asked."""
    report.clear()
    sy.inductor.enable()
    asked, calls.slower = calls.slower, lambda *_: ""
    w, v = data(K, N, seed=2), data(N, K, seed=6)
    group = dist.group.WORLD

    def function(x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(functional.all_gather_tensor(x, 0, group) @ w)
        return functional.reduce_scatter_tensor(h @ v, "sum", 0, group)

    with torch.no_grad():
        made = torch.compile(function, fullgraph=True)
        made(data(ROWS, K, seed=7))
        with torch.profiler.profile() as profile:
            y = made(data(ROWS, K, seed=7))
            torch.cuda.synchronize()
    sy.inductor.disable()
    calls.slower = asked
    whole, ws, vs = torch.cat(of_all(ROWS, K, seed=7)), of_all(K, N, seed=2), of_all(N, K, seed=6)
    near(y, mine(sum((whole @ a).relu() @ b for a, b in zip(ws, vs, strict=True))), "compiled")
    said = sy.inductor.report()
    expect(
        [row.made for row in said.rewrites] == ["all_gather_matmul relu", "matmul_reduce_scatter"], f"{said}"
    )
    shown = {event.name for event in profile.events()}
    expect("syncopate::all_gather_matmul_raw" in shown, "the profiler does not show the op")


def override() -> None:
    """torch's own fused ops are taken on CUDA, and given back."""
    x, bs = data(2, ROWS // 2, K, seed=8), [data(K, N, seed=2), data(K, N // 2, seed=9)]
    with sy.deterministic(rows=1024), sy.symm_mem.override() as ours:  # the pair is not asked for
        a, ys = torch.ops.symm_mem.fused_all_gather_matmul(x, bs, 1, name(), return_A=True)
        y = torch.ops.symm_mem.fused_matmul_reduce_scatter(a, bs[0], "avg", 1, name())
        tall = [data(K * size(), N, seed=14), data(K * size(), N // 2, seed=15)]
        columns, zs = torch.ops.symm_mem.fused_all_gather_matmul(x, tall, 2, name(), return_A=True)
    whole = torch.cat(of_all(2, ROWS // 2, K, seed=8), 1)
    expect(torch.equal(a.double(), whole), "A has other bits")
    for made, b in zip(ys, bs, strict=True):
        near(made, whole @ b.double(), "a product of A")
    total = sum(whole @ b for b in of_all(K, N, seed=2)) / size()
    near(y, total.chunk(size(), 1)[rank()], "scattered along axis 1")
    whole = torch.cat(of_all(2, ROWS // 2, K, seed=8), 2)
    expect(torch.equal(columns.double(), whole), "A of columns has other bits")
    for made, one in zip(zs, tall, strict=True):
        near(made, whole @ one.double(), "a product of A's columns")
    expect(ours.taken.total() == 3 and not ours.passed_on, str(ours))


def returned() -> None:
    """The gathered A of torch's op: of several products and of one, by both kernels, in 1,000 queued calls each with
    stragglers. Every call's A is judged bit for bit, and again when eight more have been made."""
    with sy.deterministic(rows=2048), sy.symm_mem.override() as ours:
        count = 0
        for rows, k, n, dtype in (
            (32, 4096, 1792, torch.bfloat16),
            (1024, 4096, 1792, torch.bfloat16),
            (1000, K, N, torch.float16),
            (200, K, N, torch.float32),
        ):
            xs = [data(rows, k, seed=70 + turn).to(dtype) for turn in range(4)]
            wholes = [torch.cat(of_all(rows, k, seed=70 + turn)).to(dtype) for turn in range(4)]
            ws = [data(k, n, seed=80 + i).to(dtype) for i in range(2)]
            bad = torch.zeros((), device="cuda", dtype=torch.int64)
            held = []
            for turn in range(1000):
                if turn % 50 == rank():
                    torch.cuda._sleep(3_000_000)
                whole, products = torch.ops.symm_mem.fused_all_gather_matmul(
                    xs[turn % 4], ws[: 1 + turn % 2], 0, name(), return_A=True
                )
                bad += (whole != wholes[turn % 4]).sum()
                held.append((turn, whole))
                if len(held) > 8:
                    before, earlier = held.pop(0)
                    bad += (earlier != wholes[before % 4]).sum()
                if turn < 4:
                    near(products[0], wholes[turn].double() @ ws[0].double(), "a product beside its A")
                count += 1
            expect(bad.item() == 0, f"{rows} rows of {dtype}: {bad.item()} elements of A differ")
        expect(ours.taken.total() == count and not ours.passed_on, str(ours))


def added() -> None:
    """A bias with an element for each of the product, forward and backward, by both kernels."""
    report.clear()
    with sy.deterministic(rows=1024):
        for m, k, n in ((64 * size(), K, N), (512 * size(), K, N), (2048 * size(), 1024, 2048)):
            x, w = data(m, k, seed=50).requires_grad_(), data(k, n, seed=51).requires_grad_()
            bias = data(m, n, seed=52).requires_grad_()
            y = ops.matmul_reduce_scatter(x, w, name(), bias)
            shapes = ((m, k), (k, n), (m, n))
            operands = [of_all(*shape, seed=50 + i) for i, shape in enumerate(shapes)]
            total = sum(a @ b + c for a, b, c in zip(*operands, strict=True))
            near(y, mine(total), f"a sum of {m} rows with a whole bias")
            g = data(m // size(), n, seed=53)
            y.backward(g)
            whole = torch.cat(of_all(m // size(), n, seed=53))
            expect(torch.equal(bias.grad.double(), whole), "the whole bias's gradient has other bits")
            near(x.grad, whole @ w.double().t(), "x's gradient beside a whole bias")
            near(w.grad, x.double().t() @ whole, "w's gradient beside a whole bias")
    left = [outcome for _, outcome in report.current().calls if outcome != report.FUSED]
    expect(not left, f"a whole bias is left to the pair: {left}")


def two_shots() -> None:
    """Few rows by the product's programs, and where fused is slower torch's two-shot after the product, queued with stragglers."""
    reasons = []
    for m, n, k in ((1, 512, 4096), (3, 512, 4096), (64, 512, 4096), (1024, 4096, 1792)):
        w = data(n, k, seed=60).t()
        xs = [data(m, k, seed=61 + turn) for turn in range(4)]
        exact = [
            sum(a @ b.t() for a, b in zip(of_all(m, k, seed=61 + turn), of_all(n, k, seed=60), strict=True))
            for turn in range(4)
        ]
        _, reason = calls.look_up("matmul_all_reduce", xs[0], name(), (m, n, k), w_transposed=True, bias=0)
        reasons.append(reason)
        first = [ops.matmul_all_reduce(x, w, name()) for x in xs]
        for y, right in zip(first, exact, strict=True):
            near(y, right, f"{m} rows: {reason!r}")
        bad = torch.zeros((), device="cuda", dtype=torch.int64)
        for turn in range(1000):
            if turn % 50 == rank():
                torch.cuda._sleep(3_000_000)
            bad += (ops.matmul_all_reduce(xs[turn % 4], w, name()) != first[turn % 4]).sum()
        expect(bad.item() == 0, f"{m} rows: {bad.item()} elements of queued calls differ")
    by_nccl = dist.get_backend() == "nccl"  # ranks that share a GPU have gloo
    expect(not by_nccl or any(r.startswith("by torch's two-shot") for r in reasons), f"two shots: {reasons}")


def pairs() -> None:
    """What no kernel takes runs as the unfused pair, also where ranks share a GPU and gloo sends."""
    x, w = data(ROWS, K, seed=11).double(), data(K, N, seed=2).double()
    y = ops.all_gather_matmul(x, w, name())
    near(y, torch.cat(of_all(ROWS, K, seed=11)) @ w, "a pair in fp64")
    y = ops.matmul_reduce_scatter(x, w, name())
    whole = zip(of_all(ROWS, K, seed=11), of_all(K, N, seed=2), strict=True)
    near(y, mine(sum(a @ b for a, b in whole)), "the other pair in fp64")
    y = functional.all_gather_tensor(x, 0, dist.group.WORLD)
    near(y, torch.cat(of_all(ROWS, K, seed=11)), "torch's gather")


def _sums(m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and w of this rank, and the sum over ranks of x @ w."""
    operands = zip(of_all(m, k, seed=seed), of_all(k, n, seed=seed + 1), strict=True)
    return data(m, k, seed=seed), data(k, n, seed=seed + 1), sum(a @ b for a, b in operands)


#: (M, N, K): by the product's programs, by torch's two-shot, by NCCL or fused, as the estimate has it.
SHAPES = ((8, 512, 1024), (1024, 4096, 1792), (4096, 4096, 1792))


def without_python() -> None:
    """Calls after the first of their kind are C++'s: on tensors elsewhere, with rows apart, transposed, of another stream, and
    counted as Python counts them."""
    report.clear()
    for m, n, k in SHAPES:
        x, w, exact = _sums(m, n, k, 100)
        gathered = torch.cat(of_all(m // size(), k, seed=102)) @ w.double()
        apart = torch.empty(m, k + 64, device="cuda", dtype=DTYPE)[:, :k].copy_(x)
        with torch.no_grad():
            for turn in range(4):
                held = [torch.empty(4096 * (turn + 1), device="cuda")]  # so that results lie elsewhere
                near(ops.matmul_all_reduce(x.clone(), w, name()), exact, f"{m} rows, call {turn}")
                near(ops.matmul_all_reduce(apart, w, name()), exact, f"{m} rows that lie apart, call {turn}")
                turned = w.t().contiguous().t()
                near(
                    ops.matmul_all_reduce(x, turned, name()),
                    exact,
                    f"{m} rows by a transposed w, call {turn}",
                )
                near(ops.matmul_reduce_scatter(x, w, name()), mine(exact), f"{m} rows scattered, call {turn}")
                part = data(m // size(), k, seed=102)
                near(ops.all_gather_matmul(part, w, name()), gathered, f"{m} rows gathered, call {turn}")
                ys = ops.all_gather_matmuls(part, [w, turned], name(), return_gathered=True)
                near(ys[0], gathered, f"{m} rows gathered for two, call {turn}")
                near(ys[1], gathered, f"{m} rows gathered for two, the second, call {turn}")
                del held
    made = sum(sy.report().calls.values())
    expect(made == len(SHAPES) * 4 * 6, f"{made} calls are counted")
    by_cpp = sum(count for *_, count in sy._syncopate.recipe_counts())
    expect(by_cpp >= len(SHAPES) * 3 * 6, f"{by_cpp} calls of {made} were C++'s")


def attention() -> None:
    """Calls after the first of their kind are C++'s: on tensors elsewhere, in a graph of the user's, with heads the other way
    round, against torch's attention of the whole sequence."""
    rows, heads, d = 1024, (8, 8, 8), 128
    for options in (
        {"causal": True},
        {},
        {"causal": True, "kind": "ulysses"},
        {"causal": True, "cu_seqlens": [0, 640, rows * size()]},
    ):
        whole = [
            torch.cat([t.view(1, h, rows, d) for t in of_all(h * rows, d, seed=200 + i)], 2)
            for i, h in enumerate(heads)
        ]
        place = torch.arange(rows * size(), device="cuda")
        seen = (
            place[:, None] >= place
            if options.get("causal")
            else torch.ones(len(place), len(place), device="cuda").bool()
        )
        for cut in options.get("cu_seqlens", []):
            seen &= (place[:, None] >= cut) == (place >= cut)
        exact = torch.nn.functional.scaled_dot_product_attention(
            *(t.float().repeat_interleave(heads[0] // t.shape[1], 1) for t in whole), attn_mask=seen
        )
        exact = exact.chunk(size(), 2)[rank()]
        given = [t.chunk(size(), 2)[rank()].to(DTYPE).contiguous() for t in whole]

        def check(made: tuple[torch.Tensor, torch.Tensor], what: str, exact=exact, options=options) -> None:
            torch.testing.assert_close(made[0].float(), exact, rtol=2e-2, atol=2e-2, msg=f"{options}, {what}")

        with torch.no_grad():
            before = sum(count for *_, count in sy._syncopate.recipe_counts())
            for turn in range(4):
                held = [torch.empty(4096 * (turn + 1), device="cuda")]  # so that results lie elsewhere
                check(ops.attention(*(t.clone() for t in given), name(), **options), f"call {turn}")
                del held
            by_cpp = sum(count for *_, count in sy._syncopate.recipe_counts()) - before
            expect(by_cpp == 3, f"{by_cpp} calls of 4 were C++'s")
            turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in given]
            check(ops.attention(*turned, name(), **options), "heads the other way round")
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                check(ops.attention(*given, name(), **options), "on another stream")
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                made = ops.attention(*given, name(), **options)
            for turn in range(3):
                made[0].fill_(float("nan"))
                graph.replay()
                check(made, f"replay {turn}")
            torch.cuda.synchronize()


@captures_collectives
def captured() -> None:
    """Fused calls and the pairs in their place, in one graph of the user's, among eager calls."""
    with torch.no_grad():
        given = [_sums(*shape, 110 + 2 * i) for i, shape in enumerate(SHAPES)]

        def calls() -> list[torch.Tensor]:
            made = []
            for x, w, _ in given:
                made += [ops.matmul_all_reduce(x, w, name()), ops.matmul_reduce_scatter(x, w, name())]
            return made

        side = torch.cuda.Stream()
        for _ in range(2):
            with torch.cuda.stream(side):
                calls()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            made = calls()
        for turn in range(3):
            for y in made:
                y.fill_(float("nan"))
            graph.replay()
            for index, (_, _, exact) in enumerate(given):
                near(made[2 * index], exact, f"replay {turn}: a sum of {len(exact)} rows")
                near(made[2 * index + 1], mine(exact), f"replay {turn}: a scatter of {len(exact)} rows")
            for y, other in zip(calls(), made, strict=True):
                near(y, other.double(), f"eager call {turn}")


@captures_collectives
def trees() -> None:
    """Compiled with mode="reduce-overhead", whose warm-ups may leave nothing in the memory of their graphs: what the pass makes,
    fallbacks included, for inference and with gradients, and what a user calls."""
    group = dist.group.WORLD

    def reduced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return 2 * functional.all_reduce(torch.relu(x) @ w, "sum", group) + 1

    def called(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return 2 * ops.matmul_all_reduce(torch.relu(x), w, name()) + 1

    sy.inductor.enable()
    try:
        for m, n, k in SHAPES:
            x, w, _ = _sums(m, n, k, 120)
            operands = zip(of_all(m, k, seed=120), of_all(k, n, seed=121), strict=True)
            exact = 2 * sum(a.relu() @ b for a, b in operands) + 1
            ones = torch.ones(m, n, device="cuda", dtype=torch.float64)
            right = (
                2 * size() * x.double().relu().t() @ ones
            )  # w's gradient, of the sum of all ranks' results
            for function in (reduced, called):
                torch._dynamo.reset()
                made = torch.compile(function, mode="reduce-overhead")
                for grads in (False, True):
                    one = w.clone().requires_grad_(grads)
                    with torch.set_grad_enabled(grads):
                        for turn in range(5):
                            torch.compiler.cudagraph_mark_step_begin()
                            y = made(x, one)
                            near(
                                y.detach(),
                                exact,
                                f"{function.__name__}, {m} rows, gradients {grads}, call {turn}",
                            )
                            if grads:
                                grad = torch.autograd.grad(y.sum(), one)[
                                    0
                                ]  # one.grad would be the graph's memory
                                near(grad, right, f"{function.__name__}, {m} rows, w's gradient, call {turn}")
                                del grad
                            del y
    finally:
        sy.inductor.disable()


SECTIONS = {
    "without_python": without_python,
    "attention": attention,
    "captured": captured,
    "trees": trees,
    "pairs": pairs,
    "gradients": gradients,
    "functions": functions,
    "streams": streams,
    "graphs": graphs,
    "rows": rows,
    "compiled": compiled,
    "override": override,
    "returned": returned,
    "added": added,
    "two_shots": two_shots,
    "differing": differing,
}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
