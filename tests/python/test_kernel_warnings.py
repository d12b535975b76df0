"""What a kernel surely does and can hardly mean is told in one line, by `kernel show`, `fuse` and sy.fuse; all goes on."""

import json

import pytest
from conftest import BINARY

pytest.importorskip("triton")
if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)

KERNEL = """import triton
import triton.language as tl


@triton.jit
def halves(x_ptr, y_ptr, stride, N: tl.constexpr):
    row, half = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, N)
    x = tl.load(x_ptr + row * stride + at)
    tl.store(y_ptr + row * N + at, x * half)


@triton.jit
def added(x_ptr, y_ptr, stride, N: tl.constexpr):
    row, half = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, N)
    x = tl.load(x_ptr + row * stride + at)
    tl.atomic_add(y_ptr + row * N + at, x * half)
"""
TWICE = (
    "program (0, 0, 0) and program (0, 1, 0) both store y_ptr[0:1, 0:16], and nothing orders them: let one tile "
    "store it, or add to it by tl.atomic_add"
)
OUTSIDE = (
    "program (3, 0, 0) loads from memory outside of x_ptr (shape 6x16, strides 16,1): give the shape and strides "
    "that it has in a launch"
)


@pytest.fixture
def words(tmp_path, syncopate):
    """words(kernel, stride): arguments of `kernel show` and `fuse` for 6 × 16 elements."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    made = syncopate(
        "plan", "make", "all_gather", "--ranks", "2", "--tensor", "X:6x16:fp32", "-o", tmp_path / "plan.json"
    )  # fmt: skip
    assert made.code == 0, made.err
    return lambda kernel, stride=16: [
        f"{tmp_path / 'kernel.py'}:{kernel}", "--args", f"stride={stride},N=16", "--tensor", "y_ptr=6x16:fp32",
        "--grid", "6,2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "stride", "lines"),
    [
        ("halves", 16, [f"10: {TWICE}"]),
        ("added", 16, []),
        ("added", 32, [f"17: {OUTSIDE}"]),
        ("halves", 32, [f"9: {OUTSIDE}", f"10: {TWICE}"]),
    ],
)
def test_both_commands_tell_of_it(kernel, stride, lines, words, syncopate, tmp_path):
    wanted = [f"{tmp_path / 'kernel.py'}:{line}" for line in lines]
    tensor = ["--tensor", "x_ptr=6x16:fp32"]
    shown = syncopate("kernel", "show", *words(kernel, stride), *tensor)
    assert (shown.code, shown.err.splitlines()) == (0, [f"warning: {line}" for line in wanted])
    shown = syncopate("kernel", "show", *words(kernel, stride), *tensor, "--json")
    assert json.loads(shown.out)["warnings"] == wanted
    plan = ["--plan", tmp_path / "plan.json", "--bind", "x_ptr=X"]
    fused = syncopate("fuse", *words(kernel, stride), *plan, "-o", tmp_path / "out")
    assert (fused.code, fused.err.splitlines()) == (0, [f"warning: {line}" for line in wanted])


def test_a_fused_program_brings_it_along(words, tmp_path):
    from syncopate import _syncopate

    words("halves")
    plan = _syncopate.plan_from_json((tmp_path / "plan.json").read_text(), "plan.json")
    artifact = _syncopate.fuse(
        [(KERNEL, "kernel.py", "halves", {"x_ptr": "X"}, {"stride": 16, "N": 16},
          {"y_ptr": ([6, 16], [], "fp32", [])}, (6, 2, 1))],
        plan, "host", 132,
    )  # fmt: skip
    assert artifact.warnings == [f"kernel.py:10: {TWICE}"]


PLACED = """import triton
import triton.language as tl


@triton.jit
def placed(x_ptr, sum_ptr, y_ptr, place_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + at)
    tl.store(sum_ptr + row, tl.sum(x, 0))
    tl.store(y_ptr + tl.load(place_ptr + row) * N + at, x * row)
"""


@pytest.mark.parametrize(
    ("places", "rank", "said"),
    [
        ([0, 1, 2, -1, -1, -1], 0, ""),  # of rank 0, which has rows 0 to 2; so does its y
        ([-1, -1, -1, 0, 1, 2], 1, ""),
        ([0, 1, 1, -1, -1, -1], 0, "tile 1 and tile 2 both store"),
        ([0, 1, 3, -1, -1, -1], 0, "tile 2 stores to memory outside of y_ptr"),
        ([0, 1, 2, -1, -1, -1], None, "tile 3 stores to memory outside of y_ptr"),  # of all ranks
        ([0, 1, 2, 0, 1, 2], None, ""),
        ([0, 1, 2, 1, 1, 2], None, "tile 3 and tile 4 both store"),
    ],
)
def test_tiles_that_ranks_share_by_a_table_are_judged_where_they_run(places, rank, said):
    from syncopate import _syncopate, plans

    plan = json.loads(plans.all_gather(plans.mesh_of(2), plans.Tensor("X", (6, 16), "fp32")).to_json())
    plan["tensors"]["SUM"] = {"shape": [6], "dtype": "fp32"}
    made = [{"rank": rank, "tensor": "SUM", "region": [[3 * rank, 3 * rank + 3]]} for rank in range(2)]
    plan |= {"final": plan["final"] + made, "produced": made}  # so a rank runs the tiles of its rows
    plan = plans.from_json(json.dumps(plan))
    artifact = _syncopate.fuse(
        [(PLACED, "kernel.py", "placed", {"x_ptr": "X", "sum_ptr": "SUM"}, {"N": 16},
          {"y_ptr": ([3, 16], [], "fp32", []), "place_ptr": ([6], [], "int32", [])}, (6, 1, 1))],
        plan, "host", 132, values=[{"place_ptr": places}], rank=rank,
    )  # fmt: skip
    assert len(artifact.warnings) == bool(said), artifact.warnings
    assert said in "".join(artifact.warnings)
