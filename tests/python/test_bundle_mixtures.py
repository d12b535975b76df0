"""Mixtures of experts in bundles: compiled for host and for GPUs, checked, and run by the command and by a C program."""

import json
from pathlib import Path

import pytest
from conftest import BINARY

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "build" / "fake_driver"
MIXTURE = "moe:E=8,topk=2,H=24,F=20"
FP8 = "dtype=fp8e4m3"


@pytest.mark.parametrize(("ranks", "words", "more"), [(1, [], ",dtype=fp16"), (2, [], ""), (2, ["--activation", "none"], ",dtype=fp32"),
                                                      (4, ["--drop"], ",bound=3,dtype=fp32"), (8, ["--int32-ids"], ",bound=40"),
                                                      (2, ["--activation", "none"], ",parallel=tensor,dtype=fp32"), (4, ["--int32-ids"], ",parallel=tensor"),
                                                      (2, [], f",{FP8},scales=row"), (4, ["--drop"], f",bound=9,{FP8},scales=row,out=fp16"),
                                                      (2, ["--int32-ids"], f",{FP8},scales=row,parallel=tensor")])  # fmt: skip
def test_a_mixture_of_experts_runs_from_a_bundle_and_is_right(ranks, words, more, bundle_of, syncopate):
    file = bundle_of(MIXTURE + more, *words, rows="5,16", ranks=ranks)
    assert syncopate("bundle", "check", file).code == 0
    outcome = syncopate("bundle", "run", file, "--check", "--calls", 3)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("right") == 2, outcome.out
    other = syncopate("bundle", "run", file, "--rows", "7")
    assert other.code == 2 and "7 tokens a rank are not in this bundle, which has 5, 16" in other.err


@pytest.mark.parametrize("parallel", ["expert", "tensor"])
def test_a_mixture_with_scales_of_blocks_runs_from_a_bundle_and_is_right(parallel, bundle_of, syncopate):
    """Blocks that are not whole along K."""
    file = bundle_of(f"moe:E=4,topk=2,H=136,F=512,{FP8},scales=block,parallel={parallel}", rows="3,9")
    assert syncopate("bundle", "check", file).code == 0
    outcome = syncopate("bundle", "run", file, "--check", "--calls", 3)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("right") == 2, outcome.out


def mixtures_sums(ranks, tokens, topk=2, hidden=24, inner=20, experts=8):
    """What run_bundle.c prints of a mixture without an activation, by torch."""
    import torch

    def filled(which, rank, *shape):
        count = torch.arange(torch.Size(shape).numel())
        return ((count * 7 + which * 3 + rank * 5) % 5 - 2).view(shape).double()

    own = experts // ranks
    w1 = torch.cat([filled(3, rank, own, hidden, 2 * inner) for rank in range(ranks)])
    w2 = torch.cat([filled(4, rank, own, inner, hidden) for rank in range(ranks)])
    for rank in range(ranks):
        x, weights = filled(0, rank, tokens, hidden), filled(2, rank, tokens, topk)
        ids = ((torch.arange(tokens * topk) * 7 + rank * 5) % experts).view(tokens, topk)
        gate, up = torch.einsum("th,tkhf->tkf", x, w1[ids]).chunk(2, -1)
        y = (torch.einsum("tkf,tkfh->tkh", gate * up, w2[ids]) * weights[..., None]).sum(1)
        scale = torch.arange(y.numel()) % 11 + 1
        yield f"rank {rank}: {y.numel()} elements, weighted sum {(y.flatten() * scale).sum():.0f}"


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_c_program_runs_a_mixture_of_experts_as_processes_and_as_threads(ranks, bundle_of, run):
    file = bundle_of(f"{MIXTURE},dtype=fp32", "--activation", "none", rows="5", ranks=ranks)
    for how in ("processes", "threads"):
        outcome = run(BINARY.parent / "example_c_run_bundle", file, 5, how)
        assert outcome.code == 0, outcome.err
        assert sorted(outcome.out.splitlines()) == list(mixtures_sums(ranks, 5))


def test_a_mixture_for_a_gpu_is_compiled_without_one(syncopate, tmp_path):
    file = tmp_path / "moe.sybundle"
    made = syncopate(
        "compile", "moe:E=4,topk=2,H=128,F=256", "--rows", "64,512", "--ranks", "2", "--int32-ids", "-o", file
    )
    assert made.code == 0, made.err
    assert syncopate("bundle", "check", file).code == 0
    manifest = json.loads(syncopate("bundle", "show", file, "--json").out)
    assert manifest["operator"]["activation"] == "silu"
    assert {p["kind"] for k in manifest["kernels"] for p in k["parameters"] if p["name"] == "ids_ptr"} == {
        "*i32"
    }
    assert [kernel["entry"] for kernel in manifest["kernels"]][:6] == [
        f"moe_{name}" for name in ("count", "layout", "dispatch", "up", "down", "combine")
    ]
    for kernel in manifest["kernels"]:
        kinds = {parameter["name"]: parameter["kind"] for parameter in kernel["parameters"]}
        assert {"rank", "stride"}.isdisjoint(kernel["constants"]), "a kernel is for all ranks and heaps"
        assert kinds.get("rank", "i32") == "i32" and kinds.get("stride", "i64") == "i64"
        assert "rank" not in kernel.get("multiples_of_16", [])
    if STAND_IN.exists():  # for the driver: descriptors, arguments and launches, of kernels that do nothing
        ran = syncopate("bundle", "run", file, "--calls", 3, LD_LIBRARY_PATH=str(STAND_IN))
        assert ran.code == 0 and ran.out.count("3 calls") == 2, ran.out + ran.err


@pytest.mark.parametrize(("more", "up", "operands"), [
    (",parallel=tensor", "moe_up", {"given_ptr": "*bf16", "routes_ptr": "*i32"}),
    (f",{FP8},scales=row", "moe_up_scaled", {"given_ptr": "*fp8e4nv", "given_scale_ptr": "*fp32", "w_scale_ptr": "*fp32"}),
    (f",{FP8},scales=block,parallel=tensor", "gluon_moe_up_scaled", {"given_scale_ptr": "*fp32", "token_scale_ptr": "*fp32"}),
])  # fmt: skip
def test_each_kind_of_mixture_for_a_gpu_is_compiled_without_one(more, up, operands, syncopate, tmp_path):
    file = tmp_path / "moe.sybundle"
    spec = f"moe:E=4,topk=2,H=128,F=256{more}"
    made = syncopate("compile", spec, "--rows", "5,256", "--ranks", "2", "--int32-ids", "-o", file)
    assert made.code == 0, made.err
    assert syncopate("bundle", "check", file).code == 0
    manifest = json.loads(syncopate("bundle", "show", file, "--json").out)
    kinds = {p["name"]: p["kind"] for kernel in manifest["kernels"] for p in kernel["parameters"]}
    assert operands.items() <= kinds.items() and kinds["ids_ptr"] == "*i32"
    assert up in {kernel["entry"] for kernel in manifest["kernels"]}
    for kernel in manifest["kernels"]:
        assert {"rank", "stride", "stride_scales"}.isdisjoint(kernel["constants"]), "for all ranks and heaps"
    if STAND_IN.exists():
        ran = syncopate("bundle", "run", file, "--calls", 3, LD_LIBRARY_PATH=str(STAND_IN))
        assert ran.code == 0 and ran.out.count("3 calls") == 2, ran.out + ran.err


def test_a_mixture_asked_for_gluon_has_its_kernel_where_the_gpu_runs_it(syncopate, tmp_path):
    asked = (
        "moe:E=4,topk=2,H=128,F=256",
        "--rows",
        "512",
        "--ranks",
        "2",
        "--strategy",
        '{"kernel": "gluon"}',
    )
    for arch, first in (("sm_90", "gluon_moe_up"), ("sm_100", "moe_up")):
        file = tmp_path / f"{arch}.sybundle"
        made = syncopate("compile", *asked, "--arch", arch, "-o", file)
        assert made.code == 0, made.err
        assert syncopate("bundle", "check", file).code == 0
        manifest = json.loads(syncopate("bundle", "show", file, "--json").out)
        assert manifest["kernels"][3]["entry"] == first, arch
        assert ("gluon" in manifest["operator"]["buckets"][0]["strategy"]) == (arch == "sm_90")
