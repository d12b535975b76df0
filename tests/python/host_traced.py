"""Functions and objects of sy.ops, and fused kernels, within torch.compile and torch.export, on host ranks; run by test_traced.py.

    host_traced.py RANKS [CHECK…]

Exits 1 with the first thing that is wrong.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("python", "tests", "examples")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from matmul_pointers import matmul_kernel  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

K, N = 32, 48
ops = sy.ops


def cases(size: int) -> dict:
    """A call of each function, and its operands with so many rows."""
    x, w, b = (lambda m: torch.randn(m, K)), torch.randn(K, N), torch.randn(N)
    q = lambda m: torch.randn(1, 2, m, 16).bfloat16()  # noqa: E731
    ids, w1, w2 = (
        (lambda m: torch.zeros(m, 2, dtype=torch.int32)),
        torch.randn(1, K, 64),
        torch.randn(1, 32, K),
    )
    return {
        "gather": (lambda x: ops.all_gather_matmul(x, w, bias=b, activation="relu"), x),
        "columns": (lambda x: ops.all_gather_matmul(x, torch.cat([w] * size), axis=1), x),
        "transposed": (lambda x: ops.all_gather_matmul(x, w.t().contiguous().t()), x),
        "scatter": (lambda x: ops.matmul_reduce_scatter(x, w), x),
        "reduce": (lambda x: ops.matmul_all_reduce(x, w) * 2, x),
        "into": (lambda x: ops.matmul_all_reduce(x, w, out=torch.empty(x.shape[0], N)), x),
        "sent": (lambda x: ops.matmul_all_to_all(x, w), x),
        "came": (lambda x: ops.all_to_all_matmul(x, w), x),
        "block": (lambda x: ops.feed_forward(x, w, w.t().contiguous(), activation="silu"), x),
        "attention": (lambda q: ops.attention(q, q, q, causal=True)[0], q),
        "bounded": (lambda q: ops.attention(q, q, q, kind="ring", bounded=True)[0], q),
        "documents": (lambda q: ops.attention(q, q, q, cu_seqlens=[0, 5, q.shape[2] * size])[0], q),
        "moe": (lambda x: ops.moe(x, ids(x.shape[0]), torch.ones(x.shape[0], 2), w1, w2), x),
    }


def check_functions(_name: str, size: int) -> None:
    """In a graph without breaks, of a fixed number of rows, as outside of it; with gradients, too."""
    for name, (call, drawn) in cases(size).items():
        given = drawn(16)
        right = call(given)
        made = torch.compile(call, backend="aot_eager", fullgraph=True)(given)
        torch.testing.assert_close(made, right, rtol=1e-2, atol=1e-2)
        torch._dynamo.reset()
        if name == "into":
            continue
        leaf, other = given.clone().requires_grad_(), given.clone().requires_grad_()
        call(leaf).float().square().sum().backward()
        torch.compile(call, backend="aot_eager", fullgraph=True)(other).float().square().sum().backward()
        torch.testing.assert_close(other.grad, leaf.grad, rtol=3e-2, atol=3e-2)
        torch._dynamo.reset()


def check_exported(_name: str, size: int) -> None:
    class Module(torch.nn.Module):
        def __init__(self, call) -> None:
            super().__init__()
            self.call = call

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return self.call(given)

    for name, (call, drawn) in cases(size).items():
        if name in ("documents", "moe"):  # of which the number of rows says more
            continue
        rows = torch.export.Dim("rows", min=4, max=64) * size * 2
        axis = 2 if name in ("attention", "bounded") else 0
        with torch.no_grad():
            made = torch.export.export(
                Module(call), (drawn(16),), dynamic_shapes={"given": {axis: rows}}
            ).module()
            for m in (16, 24):
                given = drawn(m)
                torch.testing.assert_close(
                    made(given),
                    call(given),
                    rtol=1e-2,
                    atol=1e-2,
                    msg=lambda said, name=name: f"{name}: {said}",
                )


def check_by_itself(_name: str, size: int) -> None:
    """A function that is compiled itself, or is called behind a break, is an op of a graph; what no op does is left to run."""
    x, w, graphs = torch.randn(16, K), torch.randn(K, N), []
    back, strategy = w.t().contiguous(), sy.Strategy(split=1)

    def noting(graph, _inputs):
        graphs.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return ops.matmul_all_reduce(y, w)

    def given_up(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1):  # a break in a loop, behind which torch compiles nothing of this frame
            torch._dynamo.graph_break()
            y = ops.matmul_all_reduce(x, w)
        return y

    for name, function, given, options in (
        ("feed_forward", ops.feed_forward, (x, w, back), {"activation": "silu"}),
        ("all_gather_matmul", ops.all_gather_matmul, (x, w), {}),
        ("matmul_all_reduce", ops.matmul_all_reduce, (x, w), {}),
        ("matmul_all_reduce", broken, (x,), {}),
        ("matmul_all_reduce", given_up, (x,), {}),
    ):
        torch._dynamo.reset()
        graphs.clear()
        whole = function not in (broken, given_up)
        made = torch.compile(function, backend=noting, fullgraph=whole)(*given, **options)
        torch.testing.assert_close(made, function(*given, **options), rtol=1e-2, atol=1e-2)
        expect(f"syncopate.{name}" in graphs, f"{function.__name__}: {graphs}")
    torch._dynamo.reset()
    graphs.clear()
    for _ in range(2):
        made = torch.compile(ops.matmul_all_reduce, backend=noting)(x, w, strategy=strategy)
        torch.testing.assert_close(made, ops.matmul_all_reduce(x, w), rtol=1e-2, atol=1e-2)
    rows, handle = torch.compile(ops.dispatch, backend=noting)(x, torch.zeros(16, 2, dtype=torch.int32), size)
    torch.compile(ops.combine, backend=noting)(rows, torch.ones(16, 2), handle)
    expect(not graphs, f"of what is to be left: {graphs}")
    torch._dynamo.reset()


def check_wrong(_name: str, size: int) -> None:
    """What an eager call refuses raises the same where it is compiled, and ends a whole graph."""
    x, w, leaf = torch.randn(16, K), torch.randn(K, N), torch.randn(K, N).requires_grad_()
    mesh = init_device_mesh("cpu", (size,))
    for what, call in {
        "a broadcast": lambda x: ops.matmul_all_reduce(x, w, out=torch.empty(2, 16, N)),
        "another dtype": lambda x: ops.matmul_all_reduce(x, w, out=torch.empty(16, N, dtype=torch.float64)),
        "a gradient of w": lambda x: ops.matmul_all_reduce(x, leaf, out=torch.empty(16, N)),
        "a gradient of out": lambda x: ops.matmul_all_reduce(x, w, out=torch.empty(16, N).requires_grad_()),
        "a mesh": lambda x: ops.matmul_all_reduce(x, w, mesh),
    }.items():
        said = []
        for compiled in (False, True):
            try:
                (torch.compile(call, backend="aot_eager") if compiled else call)(x)
            except (RuntimeError, ValueError, TypeError) as error:
                said.append(f"{type(error).__name__}: {error}")
            else:
                expect(False, f"{what}: not refused, {compiled=}")
        expect(said[0] == said[1], f"{what}: {said}")
        torch._dynamo.reset()
        try:
            torch.compile(call, backend="aot_eager", fullgraph=True)(x)
        except Exception:
            pass
        else:
            expect(False, f"{what}: not refused in a whole graph")
        torch._dynamo.reset()


def check_derivatives(_name: str, size: int) -> None:
    """Fused kernels of all kinds refuse tensors that ask for a derivative, which would be missing, and take them without one and
    within an autograd function."""
    x, w, m = torch.randn(16, K), torch.randn(K, N), 16 * size
    plan = sy.plans.all_gather(sy.Mesh(gpu=size), sy.Tensor("A", (m, K), "fp32"), axis=0)
    blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 1}
    grid, chain = (
        (size * N // 16,),
        sy.fuse([matmul_kernel, matmul_kernel], bind=[{"c_ptr": "H"}, {"a_ptr": "H"}]),
    )

    def launched(fused):
        def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            c = torch.empty(m, N)
            fused[grid](x, w, c, m, N, K, K, 1, N, 1, N, 1, **blocks)
            return c

        return call

    def chained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h, y = torch.empty(16, N), torch.empty(16, N)
        up = chain.call(0, (N // 16,), x, w, h, 16, N, K, K, 1, N, 1, N, 1, **blocks)
        chain.run([up, chain.call(1, (N // 16,), h, torch.eye(N), y, 16, N, N, N, 1, N, 1, N, 1, **blocks)])
        return y

    of_plan = launched(sy.fuse(matmul_kernel, plan, bind={"a_ptr": "A"}))
    for what, call in {
        "a kernel": of_plan,
        "one that is chosen": launched(sy.fuse(matmul_kernel, plan, bind={"a_ptr": "A"}, strategy="auto")),
        "a chain": chained,
    }.items():
        right = call(x, w)
        for asked in range(2):
            given = [x, w]
            given[asked] = given[asked].clone().requires_grad_()
            try:
                call(*given)
            except ValueError as error:
                expect(f"{'ab'[asked]}_ptr requires a gradient" in str(error), f"{what}: {error}")
            else:
                expect(False, f"{what}: a gradient is left out")
            with torch.no_grad():
                expect(torch.equal(call(*given), right), what)
        try:
            torch.func.jvp(lambda w, call=call: call(x, w), (w,), (w,))
        except RuntimeError as error:
            expect("a derivative in forward mode" in str(error), f"{what}: {error}")
        else:
            expect(False, f"{what}: a tangent is left out")

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w)
            return of_plan(x, w)

        @staticmethod
        def backward(ctx, grad):
            return grad.new_zeros(16, K), grad.new_ones(K, N)

    leaf = w.clone().requires_grad_()
    Gathered.apply(x, leaf).sum().backward()
    expect(bool((leaf.grad == 1).all()), "an autograd function around it")


def check_refused(_name: str, size: int) -> None:
    """What no op does is refused by name in a whole graph, and left out of one that may break."""
    x, w = torch.randn(16, K), torch.randn(K, N)
    object_, q = ops.MatmulAllReduce(16, N, K, torch.float32), torch.randn(1, 2, 16, 16).bfloat16()
    attends = ops.Attention(1, 2, 2, 16 * size, 16, even=True)
    backward, (o, lse) = ops.AttentionBackward(1, 2, 2, 16 * size, 16, even=True), ops.attention(q, q, q)
    plan = sy.plans.all_gather(sy.Mesh(gpu=size), sy.Tensor("A", (16 * size, K), "fp32"), axis=0)
    fused = sy.fuse(matmul_kernel, plan, bind={"a_ptr": "A"})
    experts, ids = ops.Moe(16, size, 2, K, 32, torch.float32), torch.zeros(16, 2, dtype=torch.int32)
    w1, w2 = torch.randn(1, K, 64), torch.randn(1, 32, K)
    m, grid, strategy, ring = 16 * size, (size * 2,), sy.Strategy(split=1), sy.Strategy(kind="ring")

    def by_kernel(x: torch.Tensor) -> torch.Tensor:
        c = torch.empty(m, N)
        fused[grid](x, w, c, m, N, K, K, 1, N, 1, N, 1, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, GROUP_M=1)
        return c

    c = torch.zeros(m, N)
    made_before = fused.call(0, grid, x, w, c, m, N, K, K, 1, N, 1, N, 1, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, GROUP_M=1)  # fmt: skip

    def by_calls(_: torch.Tensor) -> torch.Tensor:
        fused.run([made_before])
        return c.clone()

    def by_kind_of_program(program, ready) -> object:
        def call(_: torch.Tensor) -> torch.Tensor:
            program.run(ready)
            return c.clone()

        return call

    chain = sy.fuse([matmul_kernel, matmul_kernel], bind=[{"c_ptr": "H"}, {"a_ptr": "H"}])
    h, w2_of_h, y, blocks = torch.empty(16, N), torch.randn(N, N), torch.empty(16, N), {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP_M": 1}  # fmt: skip
    links = [
        chain.call(0, (N // 16,), x, w, h, 16, N, K, K, 1, N, 1, N, 1, **blocks),
        chain.call(1, (N // 16,), h, w2_of_h, y, 16, N, N, N, 1, N, 1, N, 1, **blocks),
    ]
    chosen = sy.fuse(matmul_kernel, plan, bind={"a_ptr": "A"}, strategy="auto")

    for call, given, said in (
        (by_kind_of_program(chain, links), x, "a fused kernel"),
        (by_kind_of_program(chosen, [made_before]), x, "a fused kernel"),
        (
            lambda x: ops.matmul_all_reduce(x, w, strategy=strategy),
            x,
            "sy.ops.matmul_all_reduce with a strategy",
        ),
        (
            lambda x: ops.feed_forward(x, w, w.t().contiguous(), strategy=strategy),
            x,
            "sy.ops.feed_forward with a strategy",
        ),
        (
            lambda q: ops.attention(q, q, q, strategy=ring)[0],
            q,
            "sy.ops.attention with a strategy",
        ),
        (lambda x: ops.dispatch(x, torch.zeros(16, 2, dtype=torch.int32), size)[0], x, "sy.ops.dispatch"),
        (lambda x: object_(x, w), x, "MatmulAllReduce"),
        (lambda q: attends(q, q, q)[0], q, "Attention"),
        (lambda q: backward(q, None, q, q, q, o, lse)[0], q, "AttentionBackward"),
        (by_kernel, x, "a fused kernel"),
        (by_calls, x, "a fused kernel"),
        (lambda x: experts.run(x, ids, torch.ones(16, 2), w1, w2)[0], x, "Moe"),
    ):
        with torch.no_grad():
            right = call(given)
            try:
                torch.compile(call, backend="aot_eager", fullgraph=True)(given)
            except Exception as error:
                expect(f"{said}: no op that a graph can hold" in str(error), f"{said}: {error}")
            else:
                expect(False, f"{said}: not refused")
            torch._dynamo.reset()
            made = torch.compile(call, backend="aot_eager")(given)
            torch.testing.assert_close(made, right, rtol=1e-2, atol=1e-2)
            torch._dynamo.reset()
    (
        fused.close(),
        chain.close(),
        chosen.close(),
        object_.close(),
        attends.close(),
        backward.close(),
        experts.close(),
    )


if __name__ == "__main__":
    run_checks(globals())
