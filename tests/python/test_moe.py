"""Mixture of experts: exact on host ranks whatever the routing, and kernels that compile for sm_90."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import HUNG, ROOT, SWEEP

pytest.importorskip("triton")

import syncopate as sy  # noqa: E402
from syncopate._syncopate import tune  # noqa: E402
from syncopate.strategy import Strategy  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("ranks", "calls"), [(1, 2), (2, 3), (3, 3), (4, 2), (5, 1), (8, 1)] if SWEEP else [(2, 1)]
)
def test_routings_bounds_and_parts_are_exact_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_moe.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: exact" in outcome.out


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 4), (2, 6), (3, 6), (4, 4), (4, 16)] if SWEEP else [(2, 4)])
def test_mixtures_over_nodes_are_exact_on(nodes, ranks, run):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    outcome = run(*launch, HERE / "host_moe_nodes.py", nodes)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{nodes} nodes of {ranks // nodes}: mixtures are exact" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 3, 5] if SWEEP else [2])
def test_edges_of_routings_bounds_ids_and_dtypes_are_exact_or_refused_by_name_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_moe_cases.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: exact at the edges" in outcome.out


@pytest.mark.parametrize(("ranks", "calls"), [(1, 2), (2, 3), (3, 2), (5, 1), (8, 1)] if SWEEP else [(2, 1)])
def test_tensor_parallel_experts_are_exact_on(ranks, calls, run):
    outcome = run(sys.executable, HERE / "host_moe_tensor.py", ranks, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: exact" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 3] if SWEEP else [2])
def test_experts_of_fp8_agree_with_torch_and_others_are_refused_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_moe_scaled.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: agree" in outcome.out


@pytest.mark.parametrize("ranks", [1, 2, 4] if SWEEP else [2])
def test_gradients_are_those_of_the_layer_in_torch_eager_and_compiled_on(ranks, run):
    outcome = run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", HERE / "host_moe_torch.py"
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("gradients agree") == 1


@pytest.mark.parametrize("ranks", [1, 2, 3] if SWEEP else [2])
def test_products_of_the_users_own_make_a_mixture_on(ranks, run):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "python")}
    outcome = run(*command, ROOT / "examples" / "own_experts.py", **environment)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "experts of its own agree with torch" in outcome.out


def test_products_of_one_name_that_differ_between_ranks_are_told(run):
    outcome = run(sys.executable, HERE / "host_moe_own.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "2 ranks: told" in outcome.out


def test_what_products_of_the_users_own_cannot_be_is_refused_by_name():
    from syncopate.ops.mixture_own import PARAMETERS, own_products

    def function(name, parameters):
        return SimpleNamespace(__name__=name, arg_names=parameters.split(", "))

    right = function("right", PARAMETERS)
    assert own_products(None, "relu", "kept", "row") is None
    assert own_products((right, right), "silu", "whole", "") == (right, right)
    for given, asked, why in (
        ([right, right], {}, "expected two functions"),
        ((right,), {}, "expected two functions"),
        ((right, len), {}, "expected functions of @triton.jit"),
        (
            (right, function("short", "a_ptr, w_ptr")),
            {},
            "short takes a_ptr, w_ptr; it is called with a_ptr, ",
        ),
        ((right, right), {"activation": "relu"}, "the first of yours has its own"),
        ((right, right), {"part": "kept"}, "part=kept"),
        ((right, right), {"scales": "row"}, "mixtures of fp8"),
    ):
        options = {"activation": "silu", "part": "whole", "scales": ""} | asked
        with pytest.raises(ValueError, match=re.escape(why)):
            own_products(given, **options)


def test_the_estimate_tells_a_measured_routing_from_a_balanced_one(syncopate):
    spec = "moe:T=512,E=8,topk=2,H=1024,F=4096,ranks=2"
    random = tune.estimate(spec, Strategy(), "h200x2")
    balanced = tune.estimate(spec, Strategy(), "h200x2", [256] * 8)
    assert balanced["compute"] < random["compute"] and balanced["exposed"] == random["exposed"]
    skewed = tune.estimate(spec, Strategy(), "h200x2", [1024, 1024, 0, 0, 0, 0, 0, 0])
    assert skewed["compute"] > balanced["compute"] and skewed["exposed"] > balanced["exposed"]
    for rows in ([1] * 7, [1] * 7 + [-1]):
        with pytest.raises(sy.UsageError, match="each of 8 experts"):
            tune.estimate(spec, Strategy(), "h200x2", rows)
    with pytest.raises(sy.UsageError, match="each of 0 experts"):
        tune.estimate("all_gather_matmul:M=64,N=64,K=64,ranks=2", Strategy(), "h200x2", [1])
    told = syncopate("tune", "--explain", spec, "--machine", "h200x2", "--json")
    assert told.code == 0, told.err
    first = json.loads(told.out)["strategies"][0]
    assert first["us"] == pytest.approx(random["us"])
    assert first["strategy"]["tiles"][0]["block_m"] == 128


LAYERS = ("128,8,2048,768,2", "8,2,4096,14336,2", "64,8,7168,2048,2")
#: Few rows an expert, extents that are no multiple of a tile's, and ones whose rows are not whole 16 bytes.
FEW = ["64,128,8,2048,768,2", "1,8,1,96,200,2", "512,4,1,90,202,2"]
ALL = [f"{tokens},{layer}" for layer in LAYERS for tokens in (64, 512, 4096)]
ALL += ["512,8,2,96,200,2", "4096,8,2,512,512,2,float32", "1,8,2,512,512,2,float32", "64,6,3,24,20,3,float16"]


def test_the_kernels_compile_for_sm_90_with_the_tiles_that_are_chosen():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    environment.pop("TRITON_INTERPRET", None)
    specs = FEW + ALL if SWEEP else FEW
    outcome = subprocess.run(
        [sys.executable, HERE / "moe_compiled.py", *specs],
        capture_output=True, text=True, timeout=HUNG, env=environment, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("moe_down: ") == len(specs) + 2
    assert outcome.stdout.count("moe_up_scaled: ") == 4
    assert "moe_spread: " in outcome.stdout and outcome.stdout.count("moe_reduce: ") == 4
    assert "moe_return: " in outcome.stdout and "moe_backward_weights: " in outcome.stdout
    of = dict(re.findall(r"(\S+) expert whole : (\w+), tiles .*?block_m=(?:\d+)", outcome.stdout))
    assert [of[spec] for spec in FEW] == ["descriptors", "descriptors", "pointers"]


def test_a_search_tries_a_mixture_with_the_programs_of_its_gpu(monkeypatch):
    from syncopate.bench import moe_case
    from syncopate.command.spec import Spec
    from syncopate.measure import search

    extents = (64, 8, 2, 256, 512)
    monkeypatch.setattr(moe_case, "MoeCase", lambda spec, group: SimpleNamespace(extents=extents))
    monkeypatch.setattr(search, "search_case", lambda problem, *given: problem)
    group = SimpleNamespace(size=2, device="cuda", multiprocessors=lambda on_host: 78)
    problem = search.search_spec(Spec("moe:T=64,E=8,topk=2,H=256,F=512", 2), group)
    tried = [Strategy.from_json(json) for _, json, _, _ in tune.contenders(problem)]
    assert {one.programs for one in tried if one.fused} == {78}


def test_more_rows_than_a_bound_are_named_in_a_search():
    """On a GPU no call says so, but `check`."""
    from syncopate.bench.moe_case import MoeCase
    from syncopate.measure.search import Measurer

    torch = pytest.importorskip("torch")

    def check():
        raise ValueError("bound: as many as 3 rows more than 8 come to a rank")

    op = SimpleNamespace(check=check)
    case = SimpleNamespace(
        operators=lambda **how: [op], called=lambda made: lambda i: torch.zeros(1), tolerance=1.0, device="cpu",
        right=[torch.ones(1)], _operators=[op],
    )  # fmt: skip
    case.error = lambda call: MoeCase.error(case, call)
    contender = SimpleNamespace(json=Strategy().to_json())
    measurer = Measurer(case, [contender], None)
    assert "3 rows more than 8" in measurer.prepare(0)
    measurer._on_host = lambda which: [1.0]
    assert measurer.measure([0]) == [float("inf")]
