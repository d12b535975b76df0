"""Chains of plain Triton kernels as one program without a plan, in Triton's interpreter; run by test_chain.py. What a stage
reads before it is made would be NaN. Exits 1 with the first thing that is wrong.

    host_chain.py FILE     writes the emitted first kernel of one of them to FILE
"""

import os
import sys
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from syncopate.host.bounds import KernelError  # noqa: E402

BLOCKS = Blocks(16, 16, 16, 2, 3)


@triton.jit
def gate(g_ptr, h_ptr, F, BLOCK: tl.constexpr):
    """h = relu(first half of g) * second half: a tile reads two of the producer's."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    up = tl.load(g_ptr + row * 2 * F + columns)
    half = tl.load(g_ptr + row * 2 * F + F + columns)
    tl.store(h_ptr + row * F + columns, tl.maximum(up, 0.0) * half)


@triton.jit
def total(h_ptr, s_ptr, N: tl.constexpr):
    """s = the sum of h, by one program, which need not ask which it is."""
    tl.store(s_ptr, tl.sum(tl.load(h_ptr + tl.arange(0, N))))


@triton.jit
def scaled(h_ptr, s_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(h_ptr + at) * tl.load(s_ptr))


def fresh(*shape):
    return torch.full(shape, float("nan"))


def run_two(fused, example, *tensors):
    """Both products, of a, b and c each."""
    fused.run(example.stages(fused, *tensors, blocks=BLOCKS))
    fused.check()


def two_products(name, m, k, f, n, calls):
    example = CALLS[name]
    a, c = example.parameter, example.parameter.replace("a_", "c_")
    fused = sy.fuse([example.kernel] * 2, bind=[{a: "X", c: "H"}, {a: "H", c: "Y"}], deadline=5)
    w1, w2 = numbers((k, f), 1, torch.float32), numbers((f, n), 2, torch.float32)
    h, y = fresh(m, f), fresh(m, n)
    for call in range(calls):
        x = numbers((m, k), 3 + call, torch.float32)
        h.fill_(float("nan"))
        run_two(fused, example, (x, w1, h), (h, w2, y))
        if not torch.equal(y, x @ w1 @ w2) or not torch.equal(h, x @ w1):
            raise RuntimeError(f"{name}, call {call}: the result differs")
    prepared = fused.prepared[0]
    if name == "matmul_pointers":
        Path(sys.argv[1]).write_text(prepared.source)
    if "sy_start_next()" not in prepared.source or not prepared.schedule.chunks(0):
        raise RuntimeError(f"{name}: the stages do not overlap")
    fused.close()


def three_stages():
    """Products with gate and up halves: fan-in of two tiles, and a pointwise kernel between two products."""
    example = CALLS["matmul_pointers"]
    m, k, f, n = 48, 32, 32, 32
    fused = sy.fuse(
        [example.kernel, gate, example.kernel],
        bind=[{"c_ptr": "G"}, {"g_ptr": "G", "h_ptr": "H"}, {"a_ptr": "H"}],
        deadline=5,
    )
    w1, w2 = numbers((k, 2 * f), 1, torch.float32), numbers((f, n), 2, torch.float32)
    x, g, h, y = numbers((m, k), 3, torch.float32), fresh(m, 2 * f), fresh(m, f), fresh(m, n)
    up = example.arguments(x, w1, g, BLOCKS)
    down = example.arguments(h, w2, y, BLOCKS)
    calls = [
        fused.call(0, up[0], **up[1]),
        fused.call(1, (f // 16, m), g, h, f, BLOCK=16),
        fused.call(2, down[0], **down[1]),
    ]
    fused.run(calls)
    fused.check()
    both = x @ w1
    if not torch.equal(y, (both[:, :f].relu() * both[:, f:]) @ w2):
        raise RuntimeError("three stages: the result differs")
    fused.close()


def one_program():
    """A stage of one program between two others, which makes a tensor without axes."""
    bind = [{"h_ptr": "H"}, {"h_ptr": "H", "s_ptr": "S"}, {"h_ptr": "H", "s_ptr": "S"}]
    fused = sy.fuse([gate, total, scaled], bind=bind, deadline=5)
    g, h, s, y = numbers((2, 64), 1, torch.float32), fresh(2, 32), fresh(), fresh(64)
    fused.run(
        [
            fused.call(0, (2, 2), g, h, 32, BLOCK=16),
            fused.call(1, (1,), h, s, N=64),
            fused.call(2, (4,), h, s, y, BLOCK=16),
        ]
    )
    wanted = (g[:, :32].relu() * g[:, 32:]).flatten()
    if not torch.equal(y, wanted * wanted.sum()) or s.item() != wanted.sum().item():
        raise RuntimeError("one program: the result differs")
    fused.close()


def one_weight():
    """Both stages read the same array, a transposed view that has no name in common."""
    example = CALLS["matmul_pointers"]
    fused = sy.fuse([example.kernel] * 2, bind=[{"c_ptr": "H"}, {"a_ptr": "H"}], deadline=5)
    x, w = (numbers((32, 32), i, torch.float32) for i in (1, 2))
    w, h, y = w.t(), fresh(32, 32), fresh(32, 32)
    run_two(fused, example, (x, w, h), (h, w, y))
    if not torch.equal(y, x @ w @ w):
        raise RuntimeError("one weight of two stages: the result differs")
    fused.close()


@triton.jit
def halves(x_ptr, h_ptr, N: tl.constexpr):
    """Both programs along y store the row, each its own multiple."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(h_ptr + at, tl.load(x_ptr + at) * tl.program_id(1))


def tiles_of_one_place():
    fused = sy.fuse([halves, scaled], bind=[{"h_ptr": "H"}, {"h_ptr": "H", "s_ptr": "S"}], deadline=5)
    x, h, s, y = torch.ones(4, 16), fresh(4, 16), torch.ones(1), fresh(4, 16)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calls = [fused.call(0, (4, 2), x, h, N=16), fused.call(1, (4,), h, s, y, BLOCK=16)]
        fused.run(calls)
    lines = [str(one.message) for one in said]
    if (
        len(lines) != 1
        or "program (0, 0, 0) and program (0, 1, 0) both store h_ptr[0:1, 0:16]" not in lines[0]
    ):
        raise RuntimeError(f"the two tiles that store one row are told as {lines}")
    fused.close()


def refusals():
    example = CALLS["matmul_pointers"]
    x, w, h, y = (numbers((32, 32), i, torch.float32) for i in range(4))

    def run(bind, tensors):
        fused = sy.fuse([example.kernel] * 2, bind=bind, deadline=5)
        try:
            fused.run(example.stages(fused, *tensors, blocks=BLOCKS))
        except ValueError as error:
            return str(error)
        return ""

    chained = [{"c_ptr": "H"}, {"a_ptr": "H"}]
    for message, found in (
        ("bound to H, and are two arrays", run(chained, ((x, w, h), (y, w.clone(), x.clone())))),
        ("share memory: bind both to one name", run([{}, {}], ((x, w, h), (h, w.clone(), y)))),
    ):
        if message not in found:
            raise RuntimeError(f"expected {message!r}, found {found!r}")
    fused = sy.fuse([gate, example.kernel], bind=[{"h_ptr": "H"}, {"a_ptr": "H"}], deadline=5)
    grid, down = example.arguments(h, w, y, BLOCKS)
    for message, g, rows in (
        ("argument F: the int has more than 64 bits", x, 2**70),
        ("expected a tensor of torch's, got an array of NumPy's", x.numpy(), 16),
        ("g_ptr is on meta, and the kernel runs on the host", x.to("meta"), 16),
    ):
        try:
            fused.run([fused.call(0, (2, 32), g, h, rows, BLOCK=16), fused.call(1, grid, **down)])
        except (TypeError, ValueError, KernelError) as error:
            if message in str(error):
                continue
            raise
        raise RuntimeError(f"no error says that {message}")
    for strategy in ("auto", sy.Strategy(backend="copy_engine")):
        try:
            sy.fuse([example.kernel] * 2, bind=chained, strategy=strategy)
        except ValueError as error:
            if "kernels without a plan have a way instead" in str(error):
                continue
            raise
        raise RuntimeError(f"{strategy} of a chain is taken")


if __name__ == "__main__":
    for product in CALLS:
        two_products(product, 48, 32, 64, 32, 3)
        two_products(product, 40, 24, 40, 56, 1)  # ragged
    three_stages()
    one_program()
    one_weight()
    tiles_of_one_place()
    refusals()
    print("chains: ok")
