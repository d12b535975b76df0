"""`syncopate run` of users' kernels on host ranks: what goes wrong in one is told with its line, and what only looks different
is equal."""

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, warm_python
from fused_folder import rewrite

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)

HEAD = "import triton\nimport triton.language as tl\n\n\n"


def syncopate(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "SYNCOPATE_PYTHON": warm_python()}
    return subprocess.run(
        [BINARY, *words], cwd=folder, capture_output=True, text=True, timeout=HUNG, env=environment
    )


def run(folder: Path, kernel: str, *words: str) -> subprocess.CompletedProcess:
    """The kernel, after HEAD, on three ranks that gather x_ptr[30]."""
    (folder / "kernel.py").write_text(HEAD + textwrap.dedent(kernel))
    for line in (
        ["plan", "make", "all_gather", "--ranks", "3", "--tensor", "X:30:fp32", "-o", "plan.json"],
        ["fuse", "kernel.py", "--plan", "plan.json", "--bind", "x_ptr=X", *words, "-o", "fused"],
    ):
        done = syncopate(folder, *line)
        assert done.returncode == 0, done.stderr
    return syncopate(folder, "run", "fused", "--check")


@pytest.mark.parametrize(
    ("at", "what"), [("at + 300000000", "stores to 8 elements"), ("at - 40000000", "stores to 8 elements")]
)
def test_an_access_outside_every_tensor_names_the_line_and_the_program(at, what, tmp_path):
    kernel = f"""
        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            x = tl.load(x_ptr + at, mask=at < n)
            tl.store(y_ptr + {at}, x)
        """
    done = run(tmp_path, kernel, "--args", "n=30,B=8", "--tensor", "y_ptr=30:fp32", "--grid", "4")
    assert done.returncode == 1
    assert f"kernel.py:10: program 0 {what} outside every tensor argument" in done.stderr, done.stderr
    assert "reported a fault" not in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exception_in_a_kernel_is_told_with_its_line(tmp_path):
    kernel = """
        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            x = tl.load(x_ptr + at, mask=at < n)
            y = tl.reshape(x, (3, 5))
            tl.store(y_ptr + at, x + tl.sum(y) * 0, mask=at < n)
        """
    done = run(tmp_path, kernel, "--args", "n=30,B=8", "--tensor", "y_ptr=30:fp32", "--grid", "4")
    assert done.returncode == 1
    assert "kernel.py:10: program 0: " in done.stderr, done.stderr
    assert "reported a fault" not in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exception_in_a_helper_is_told_once_with_its_line_and_the_kernels(tmp_path):
    kernel = """
        @triton.jit
        def inner(x):
            return tl.reshape(x, (3, 5))


        @triton.jit
        def outer(x):
            return inner(x)


        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            x = tl.load(x_ptr + at, mask=at < n)
            tl.store(y_ptr + at, x + tl.sum(outer(x)) * 0, mask=at < n)
        """
    done = run(
        tmp_path, kernel.lstrip("\n"), "--args", "n=30,B=8", "--tensor", "y_ptr=30:fp32", "--grid", "4"
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "program 0: " in line]
    assert "kernel.py:7: program 0: " in line, line
    assert line.endswith("kernel.py:19)"), line
    assert "(called at " in line and "InterpreterError" not in done.stderr, done.stderr


def test_results_that_are_nan_at_the_same_places_are_identical(tmp_path):
    kernel = """
        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            x = tl.load(x_ptr + at, mask=at < n)
            tl.store(y_ptr + at, tl.sqrt(x - 1), mask=at < n)
        """
    done = run(tmp_path, kernel, "--args", "n=30,B=8", "--tensor", "y_ptr=30:fp32", "--grid", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("identical to the unfused kernel") == 3


def test_the_values_of_a_folder_are_those_of_its_run(tmp_path):
    kernel = """
        @triton.jit
        def k(x_ptr, i_ptr, y_ptr, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            i = tl.load(i_ptr + at, mask=at < n, other=0)
            tl.store(y_ptr + at, tl.load(x_ptr + i), mask=at < n)
        """
    done = run(
        tmp_path, kernel, "--args", "n=6,B=4", "--tensor", "y_ptr=6:fp32", "--values", "i_ptr=29,0,7,7,13,21",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("identical to the unfused kernel") == 3


def sums(load: str, order: str = "  # @sy.any_order") -> str:
    """A kernel of one tile that adds up what `load` makes of some elements, as they arrive."""
    return f"""
        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            total = tl.zeros((B,), tl.float32)
            for i in range(0, n, B):{order}
                x = tl.load(x_ptr + i + tl.arange(0, B)).to(tl.float32)
                total += {load}
            tl.store(y_ptr + tl.arange(0, B), total)
        """


ATOMICS = """
        @triton.jit
        def k(x_ptr, y_ptr, n, B: tl.constexpr):
            x = tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))
            tl.{call}(y_ptr + tl.arange(0, B), {value})
        """
BY_ARRIVAL = "ranges of a loop run as they arrive, @sy.any_order"
BY_ATOMICS = "it adds floats with atomics"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (
            sums("tl.exp(x * 0.3)"),
            f"within rounding of the unfused kernel in higher precision ({BY_ARRIVAL})",
        ),
        (sums("tl.exp(x * 0.3)", ""), "identical to the unfused kernel"),
        (sums("x"), "identical to the unfused kernel"),  # of small integers, in any order
        (
            ATOMICS.format(call="atomic_add", value="tl.exp(x * 0.3)"),
            f"within rounding of the unfused kernel in higher precision ({BY_ATOMICS})",
        ),
        (ATOMICS.format(call="atomic_max", value="tl.exp(x * 0.3)"), "identical to the unfused kernel"),
    ],
)
def test_additions_in_another_order_are_judged_by_higher_precision_and_others_by_bits(kernel, said, tmp_path):
    words = ("--args", "n=30,B=2", "--tensor", "y_ptr=2:fp32", "--grid", "15" if "atomic" in kernel else "1")
    done = run(tmp_path, kernel, *words)
    assert done.returncode == 0, done.stderr
    same = "identical to the unfused kernel"  # as a rank's order may happen to be
    assert done.stdout.count(said) + done.stdout.count(same) * (said != same) == 3, done.stdout
    if "within" in said:  # and what is wrong stays wrong
        fused = tmp_path / "fused" / "kernel.py"
        rewrite(fused, fused.read_text().replace("x * 0.3", "x * 0.3001"))
        done = syncopate(tmp_path, "run", "fused", "--check")
        assert done.returncode == 1 and "DIFFERENT" in done.stdout, done.stdout
