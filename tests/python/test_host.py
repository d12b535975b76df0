"""Fused kernels on host ranks give the results of the unfused ones, bit for bit, whatever the order of arrival."""

import os
import sys
from pathlib import Path

import pytest
from conftest import SWEEP

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


# More ranks, fewer calls: a rank is a process that interprets the kernel.
@pytest.mark.parametrize(
    ("ranks", "calls"), [(1, 3), (2, 3), (3, 3), (5, 2), (8, 2)] if SWEEP else [(1, 1), (3, 2)]
)
def test_example_kernels_are_identical_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_matrix.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    count = 36 if SWEEP else 12
    assert f"{ranks} ranks: {count} configurations, {count * calls} calls, identical" in outcome.out


@pytest.mark.parametrize("ranks", [1, 3])
def test_operators_are_exact_and_refuse_what_does_not_fit_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_ops.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize("ranks", [1, 2, 3] if SWEEP else [1, 2])
def test_what_a_kernel_reads_is_this_ranks_shard_and_never_the_whole_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_shards.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize("ranks", [1, 2, 3] if SWEEP else [2])
def test_what_is_gathered_is_stored_where_the_caller_says_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_copied.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize(
    ("ranks", "calls"), [(1, 1), (2, 2), (3, 2), (5, 1), (8, 1)] if SWEEP else [(1, 1), (3, 2)]
)
def test_what_kernels_make_is_reduced_in_rank_order_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_reduce.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    count = 24 if SWEEP else 6
    assert f"{ranks} ranks: {count} configurations, {count * calls} calls, identical" in outcome.out


@pytest.mark.parametrize("ranks", [2, 3] if SWEEP else [3])
def test_every_operator_is_exact_by_every_backend_and_split_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_backends.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{80 if SWEEP else 20} configurations, exact" in outcome.out


@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives_left_direct_are_exact_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_direct.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "4 collectives, exact" in outcome.out


def test_operators_work_in_a_torch_process_group(run):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    outcome = run(*launch, HERE / "host_ops.py")
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("ok") == 2


BF16 = """
import torch, triton, triton.language as tl
from syncopate.host import interpreter

@triton.jit
def kernel(x_ptr, y_ptr, sum_ptr, product_ptr, dot_ptr, less_ptr, fp64_ptr, scaled_ptr, factor,
           N: tl.constexpr):
    rows = tl.arange(0, N)
    at = rows[:, None] * N + rows[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(sum_ptr + at, x + y)
    tl.store(product_ptr + at, x * y)
    tl.store(dot_ptr + at, tl.dot(x, y).to(tl.bfloat16))
    tl.store(less_ptr + at, (x < y).to(tl.int32))
    tl.store(fp64_ptr + at, x.to(tl.float64))
    tl.store(scaled_ptr + at, x * 2 * factor + tl.full((), 1.5, tl.bfloat16))

torch.manual_seed(0)
n = 16
x, y = torch.randn(n, n).bfloat16(), torch.randn(n, n).bfloat16()
x[0, 0], x[0, 1], x[0, 2] = float("nan"), float("inf"), 1e-40
total, product, dot, scaled = (torch.empty(n, n, dtype=torch.bfloat16) for _ in range(4))
less, double = torch.empty(n, n, dtype=torch.int32), torch.empty(n, n, dtype=torch.float64)
interpreter.launch(kernel, (1,), dict(x_ptr=x, y_ptr=y, sum_ptr=total, product_ptr=product, dot_ptr=dot, less_ptr=less,
                                      fp64_ptr=double, scaled_ptr=scaled, factor=0.75, N=n))
same = dict(rtol=0, atol=0, equal_nan=True)
torch.testing.assert_close(total, x + y, **same)
torch.testing.assert_close(product, x * y, **same)
torch.testing.assert_close(less, (x < y).int(), **same)
torch.testing.assert_close(double, x.double(), **same)
torch.testing.assert_close(scaled, x * 2 * 0.75 + 1.5, **same)
torch.testing.assert_close(dot[1:], (x.float() @ y.float()).bfloat16()[1:], rtol=2**-7, atol=1e-6)
"""


def test_the_interpreter_joins_conditions_element_by_element(run):
    outcome = run(sys.executable, HERE / "host_logic.py")
    assert outcome.code == 0, outcome.out + outcome.err


def test_the_interpreter_computes_with_bf16(run, tmp_path):
    script = tmp_path / "bf16.py"  # a kernel's source must be in a file
    script.write_text(BF16)
    outcome = run(sys.executable, script, TRITON_INTERPRET="1", PYTHONPATH=str(HERE.parents[1] / "python"))
    assert outcome.code == 0, outcome.err


UNFUSED_FIRST = """
import torch
from syncopate.ops.product_kernel import Product
from syncopate.strategy import SMALL
a, w = (torch.arange(1024).view(32, 32).mul(step).remainder(7).bfloat16() for step in (3, 5))
c = torch.empty_like(a)
Product(32, 32, 32, SMALL, 1).run(a, w, c)
torch.testing.assert_close(c, (a.float() @ w.float()).bfloat16(), rtol=0, atol=0)
"""


def test_an_unfused_product_of_bf16_is_right_before_anything_is_fused(run):
    path = str(HERE.parents[1] / "python")
    outcome = run(sys.executable, "-c", UNFUSED_FIRST, TRITON_INTERPRET="1", PYTHONPATH=path)
    assert outcome.code == 0, outcome.err


NOT_INTERPRETED = """
import torch, syncopate as sy, sys
sys.path.insert(0, sys.argv[1])
from example_calls import CALLS
from syncopate.host import interpreter
try:
    interpreter.launch(CALLS["matmul_pointers"].kernel, (1,), {})
except RuntimeError as error:
    print(error)
"""


def test_a_compiled_kernel_on_host_says_how_to_interpret_it(run):
    environment = {key: "" for key in ("TRITON_INTERPRET",) if key in os.environ}
    path = str(HERE.parents[1] / "python")
    outcome = run(sys.executable, "-c", NOT_INTERPRETED, HERE.parent, PYTHONPATH=path, **environment)
    assert "set TRITON_INTERPRET=1 before triton is imported" in outcome.out, outcome.out + outcome.err
