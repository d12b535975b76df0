"""Two stages around one plan: the feed-forward block is that of the unfused kernels, and what cannot run is refused."""

import sys
from pathlib import Path

import pytest
from conftest import BINARY, SWEEP

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(("ranks", "calls"), [(1, 2), (2, 2), (3, 2), (5, 1)] if SWEEP else [(1, 1), (3, 2)])
def test_a_feed_forward_block_is_identical_to_the_unfused_kernels_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_stages.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    count = 9 if SWEEP else 5
    assert f"{ranks} ranks: {count} configurations, {count * calls} calls, identical" in outcome.out


def test_plans_are_joined_op_by_op_and_refused_where_they_share_a_tensor():
    import syncopate as sy

    mesh = sy.plans.mesh_of(3)
    gather = sy.plans.all_gather(mesh, sy.Tensor("X", (12, 4), "fp32"))
    reduce = sy.plans.push_reduce(mesh, sy.Tensor("C", (12, 8), "fp32"), split=2, all=True)
    joined = sy.plans.join([gather, reduce], [sy.Tensor("H", (12, 6), "fp32")])
    assert joined.check() == []
    assert [name for name, _, _ in joined.tensors] == ["X", "C", "H"]
    assert joined.num_ranks == 3
    with pytest.raises(ValueError, match="plan 2: tensor X is in an earlier one already"):
        sy.plans.join([gather, gather])
    with pytest.raises(ValueError, match="plan 2: its mesh is not that of plan 1"):
        sy.plans.join([gather, sy.plans.all_gather(sy.plans.mesh_of(2), sy.Tensor("Y", (12, 4), "fp32"))])


def test_run_checks_a_feed_forward_block_by_its_name(run):
    spec = "feed_forward:M=50,K=16,F=32,N=24,dtype=fp32,activation=gelu,rows=2,split=2"
    words = [sys.executable, "-m", "syncopate.command.run", spec, "--ranks=3", "--calls=2"]
    outcome = run(*words, "--check")
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("identical to the unfused kernel") == 3
    apart = run(*words[:3], f"{spec},apart=1", *words[4:], "--check")
    assert apart.code == 0 and apart.out.count("identical to the unfused kernel") == 3, apart.out + apart.err
    refused = run(*words[:3], spec.replace("gelu", "step"), "--ranks=2")
    assert (refused.code, refused.out) == (
        2,
        "",
    ) and 'expected one of relu, gelu, silu, not "step"' in refused.err


@pytest.mark.parametrize("ranks", [2, 3] if SWEEP else [3])
def test_the_example_in_cpp_makes_a_block_that_runs(ranks, run, tmp_path):
    root = HERE.parents[1]
    example = BINARY.parent / "example_feed_forward"
    if not example.exists():
        pytest.skip(f"{example} is not built")
    made = run(example, root / "examples" / "matmul_pointers.py", tmp_path / "block", ranks)
    assert made.code == 0, made.err
    assert "rank 0, stage 1: [tile" in made.out and "rank 0 sums C[0:" in made.out
    ran = run(BINARY, "run", tmp_path / "block", "--check", "--calls=2")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("identical to the unfused kernel") == ranks
    wrong = run(example, root / "README.md", tmp_path / "none", ranks)
    assert wrong.code == 1 and "README.md:" in wrong.err and not (tmp_path / "none").exists()


SIZES = "M=49,stride_ak=1,stride_bn=1,stride_cn=1,BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2"


@pytest.fixture
def stages(run, tmp_path):
    """What `syncopate fuse` is given for gather X, H = X B, C = H B2, reduce-scatter C on two ranks."""
    command = HERE.parents[1] / "build" / "bin" / "syncopate"
    kernel = f"{HERE.parents[1] / 'examples' / 'matmul_pointers.py'}:matmul_kernel"
    made = run(
        command, "plan", "make", "all_gather", "--ranks=2", "--tensor=X:49x32:fp32", "-o", tmp_path / "x.json"
    )
    assert made.code == 0, made.err
    reduce = ["--ranks=2", "--tensor=C:49x24:fp32", "--split=2", "--produced", "-o", tmp_path / "c.json"]
    assert run(command, "plan", "make", "reduce_scatter", *reduce).code == 0
    up = f"{SIZES},N=40,K=32,stride_am=32,stride_bk=40,stride_cm=40"
    down = f"{SIZES},N=24,K=40,stride_am=40,stride_bk=24,stride_cm=24"
    first = ["fuse", kernel, "--plan", tmp_path / "x.json", "--plan", tmp_path / "c.json", "-o", tmp_path / "out",
             "--bind=a_ptr=X,c_ptr=H", "--args", up, "--tensor=b_ptr=32x40:fp32", "--tensor=c_ptr=49x40:fp32"]  # fmt: skip
    then = ["--then", kernel, "--bind=a_ptr=H,c_ptr=C", "--args", down, "--tensor=a_ptr=49x40:fp32",
            "--tensor=b_ptr=40x24:fp32"]  # fmt: skip
    return command, first, then, tmp_path / "out"


def test_the_command_fuses_two_kernels_into_a_folder_that_runs(stages, run):
    command, first, then, out = stages
    fused = run(command, *first, *then)
    assert fused.code == 0, fused.err
    assert "matmul_kernel, then matmul_kernel on 2 ranks" in fused.out
    names = {"kernel_0.py", "kernel_1.py", "original_0.py", "original_1.py", "schedule.json"}
    assert {path.name for path in out.iterdir()} == names
    ran = run(command, "run", out, "--check", "--calls=2")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("identical to the unfused kernel") == 2


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda then: then[:1], 2, "--then: kernel is required"),
        (
            lambda then: [*then, "--device=cuda"],
            2,
            "--then: The following argument was not expected: --device",
        ),
        (lambda then: [w.replace("49x40", "49x44") for w in then], 1, "tensor H"),
        (lambda then: [w.replace("a_ptr=H", "a_ptr=Q") for w in then[:-2]], 1, "no tensor Q"),
    ],
)
def test_a_further_stage_that_makes_no_sense_is_refused(stages, run, change, code, message):
    command, first, then, out = stages
    refused = run(command, *first, *change(then))
    assert (refused.code, refused.out) == (code, ""), refused.err
    assert message in refused.err
    assert not out.exists()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5] if SWEEP else [2])
def test_grouped_products_of_users_run_as_their_groups_arrive_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_grouped.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: grouped" in outcome.out
