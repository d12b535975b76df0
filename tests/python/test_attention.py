"""Attention over a sharded sequence on host ranks: every kind, mask and sharding, and kernels in other styles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HUNG, ROOT, SWEEP, warm_python

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent

CASES = {
    2: [
        "all_gather causal",
        "ulysses",
        "documents",
        "window",
        "other documents",
        "bounded causal",
        "function",
        "documents filled up",
        "heads of 96",
        "parts",
    ],
    3: [
        "function",
        "heads of 5",
        "places",
        "all_gather ragged",
        "ring causal",
        "queued",
        "bounded documents",
        "very short",
    ],
    4: ["ulysses_ring", "double_ring causal", "short documents", "short ulysses_ring", "heap"],
    5: ["even", "short"],
    6: ["short ulysses", "even ulysses_ring"],
    7: ["short ring"],
    8: ["bounded", "short double_ring"],
}
IN_SWEEP = {
    2: [
        "all_gather causal contiguous",
        "all_gather full",
        "ring",
        "ulysses causal",
        "documents full",
        "documents window",
        "window full",
        "bounded window",
        "even",
        "heads of 24",
        "heads of 80 bounded",
        "parts ulysses",
    ],
    3: [
        "parts ring",
        "parts ulysses",
        "all_gather causal",
        "all_gather ragged full",
        "ring",
        "documents",
        "documents by many",
    ],
    4: [
        "parts double_ring",
        "parts ulysses_ring",
        "double_ring",
        "ulysses",
        "all_gather causal",
        "contiguous by many",
    ],
    5: [
        "zigzag by many",
        "contiguous by many",
        "documents by many",
        "full by many",
        "ring by many",
        "ulysses by five",
    ],
    6: ["ulysses by many", "ring by many", "zigzag by many", "ulysses_ring by many", "window by many"],
    7: ["zigzag by many", "contiguous by many", "window by many", "ring by many", "queued"],
    8: ["double_ring by many", "documents by many", "ulysses_ring by many", "window by many", "queued"],
}
KINDS = ["all_gather", "ring", "double_ring", "ulysses", "ulysses_ring"]


def grid_of(ranks: int, kind: str) -> list[str]:
    """Every sharding of a kind, as host_attention.py names them."""
    if kind == "ulysses_ring" and ranks in (2, 3):  # which have no groups of some ranks
        return []
    names = [f"{kind} {sharding} causal" for sharding in ("contiguous", "zigzag", "documents")]
    if not kind.startswith("ulysses"):
        names += [f"{name} bounded" for name in names]
    return [*names, f"{kind} contiguous full"]


@pytest.mark.parametrize("ranks", sorted(CASES) if SWEEP else [2, 3, 4])
def test_tagged_rows_are_each_taken_once_and_results_are_those_of_fp64_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention.py", ranks, *CASES[ranks])
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: {len(CASES[ranks])} cases, exact" in outcome.out


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", sorted(IN_SWEEP))
def test_more_of_them_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention.py", ranks, *IN_SWEEP[ranks])
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("ranks", "kind"),
    # Three ranks make no groups of several heads and several ranks.
    [(ranks, kind) for ranks in (3, 4, 8) for kind in KINDS if grid_of(ranks, kind)],
)
def test_every_kind_takes_every_sharding_on(ranks, kind, run):
    names = grid_of(ranks, kind)
    outcome = run(sys.executable, HERE / "host_attention.py", ranks, *names)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: {len(names)} cases, exact" in outcome.out


@pytest.mark.parametrize("ranks", [2])
def test_kernels_of_every_style_are_fused_on(ranks, run):
    from syncopate.device.versions import triton_before

    outcome = run(sys.executable, HERE / "host_attention_styles.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{6 if triton_before(3, 9) else 5} styles" in outcome.out  # 3.9 has no block pointers


def test_kinds_are_ranked_with_the_reason_for_what_heads_do_not_allow(syncopate):
    spec = "attention:S=8192,H=30,HKV=30,D=128,causal=1"
    outcome = syncopate("tune", spec, "--explain", "--ranks", 4, "--json")
    assert outcome.code == 0, outcome.err
    ranked = json.loads(outcome.out)["strategies"]
    possible = [entry for entry in ranked if entry["pruned"] is None]
    assert ranked[: len(possible)] == possible
    assert [entry["us"] for entry in possible] == sorted(entry["us"] for entry in possible)
    names = {entry["name"] for entry in possible}
    assert names == {"all_gather", "ring", "double_ring", "ulysses_ring,inner=2", "unfused"}
    (refused,) = [entry for entry in ranked if entry["pruned"] is not None]
    assert (refused["name"], refused["pruned"]) == ("ulysses", "30 heads cannot be shared out over 4 ranks")


def test_the_command_runs_documents_with_the_usual_extents_and_refuses_what_it_cannot(run):
    def command(spec):
        return run(sys.executable, "-m", "syncopate.command.run", spec, "--ranks=2", "--check")

    shape = "attention:H=2,HKV=1,D=16"
    outcome = command(f"{shape},S=96,cu_seqlens=0:37:96")  # B is 1, and it is causal
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("relative error") == 2
    outcome = command("attention:H=2,HKV=1,D=24,S=64,cu_seqlens=0:37:37:64:64,sharding=documents")
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("relative error") == 2
    outcome = command(f"{shape},S=23,kind=ring,bounded=12")
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("relative error") == 2
    outcome = command("attention:H=2,HKV=2,D=16,S=64,causal=1,kind=ring")
    assert outcome.code == 0 and "nothing orders" not in outcome.err, outcome.out + outcome.err
    for more, why in (
        ("", "attention needs S"),
        (",S=96,cu_seqlens=0:x", "cu_seqlens: expected whole numbers with : between them"),
        (",S=96,cu_seqlens=0:37:90", "cu_seqlens: expected offsets that rise from 0 to 96, got [0, 37, 90]"),
        (",S=96,sharding=auto", 'sharding: expected one of contiguous, zigzag, documents, not "auto"'),
        (",S=96,bounded=1", "attention: K and V of 1 rows at once are too few"),
        (",S=96,kind=ulysses_ring", "ulysses_ring needs inner, a number of ranks between 1 and 2"),
    ):
        outcome = command(shape + more)
        assert outcome.code == 2 and why in outcome.err, outcome.err


COMPILED = """
import importlib.util, json, re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from syncopate import _syncopate, plans
from syncopate.kernels import attention as library
from syncopate.ops.attention_rules import attention_tiling
from syncopate.ops.attention_places import place_table

d, causal, documents = int(sys.argv[1]), bool(int(sys.argv[2])), bool(int(sys.argv[3]))
ranks, h, hkv, s = 2, 8, 2, 4096
t = attention_tiling(d, "cuda")
cuts = [0, 1000, s] if documents else []
rows = plans.shard_rows(s, ranks, block=t.block_m)
attended = [plans.attended_rows(s, own, causal=causal, block=t.block_n, documents=cuts) for own in rows]
plan = plans.attention(plans.mesh_of(ranks), (1, h, hkv, s, d), "bf16", rows, attended, q_o_stay=True)
bind = {"k_desc": "K", "v_desc": "V", "l_ptr": "L"}
blocks = {"q_desc": t.block_m, "k_desc": t.block_n, "v_desc": t.block_n, "o_desc": t.block_m}
constants = dict(CAUSAL=causal, DOCUMENTS=documents, PLACED=True, D=d, BM=t.block_m, BN=t.block_n)
scalars = dict(scale=0.1, H=h, HKV=hkv, S=s, WINDOW=0)
shapes = {name: (shape, dtype) for name, shape, dtype in plan.tensors}
tensors = {p: (*shapes[name][:1], [], shapes[name][1], [1, 1, blocks[p], d] if p in blocks else []) for p, name in bind.items()}
tiles = s // t.block_m
for p in ("q_desc", "o_desc"):
    tensors[p] = ([1, h, s // ranks, d], [], "bf16", [1, 1, t.block_m, d])
tensors["place_ptr"] = ([tiles], [], "int32", [])
tensors["bounds_ptr"] = ([tiles, 4], [], "int32", [])
tensors["seen_ptr"] = ([2, s], [], "int32", [])
bounds = []
for m in range(tiles):
    first, last = m * t.block_m, (m + 1) * t.block_m
    begin = 0 if last <= 1000 else 960
    bounds += [begin, max(begin, first), max(begin, first), last]
stage = (Path(library.__file__).read_text(), library.__file__, "attention", bind, scalars | constants, tensors, (tiles * h, 1, 1))
known = {"place_ptr": place_table(rows[0], s, t.block_m).clamp(min=0).tolist()}
artifact = _syncopate.fuse([stage], plan, "cuda", 132, values=[known | ({"bounds_ptr": bounds} if documents else {})])


def measure(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.attention
    signature, attributes = {}, {}
    for index, parameter in enumerate(kernel.arg_names):
        if parameter in constants:
            signature[parameter] = "constexpr"
        elif parameter in blocks:
            signature[parameter] = "tensordesc<bf16[1,1,%d,%d]>" % (blocks[parameter], d)
        elif parameter == "scale":
            signature[parameter] = "fp32"
        elif parameter == "l_ptr":
            signature[parameter] = "*fp32"
        else:
            signature[parameter] = "*i32" if parameter.startswith("sy_") or parameter.endswith("_ptr") else "i32"
    for index, parameter in enumerate(kernel.arg_names):
        if signature[parameter].startswith("*"):
            attributes[(index,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
                              target=GPUTarget("cuda", 90, 32), options={"num_warps": t.num_warps, "num_stages": t.num_stages})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.ptx").write_text(compiled.asm["ptx"])
        ptxas = get_ptxas(90).path
        log = subprocess.run([ptxas, "-v", "--gpu-name=sm_90a", "k.ptx", "-o", "k.o"], cwd=folder, capture_output=True,
                             text=True).stderr
    return {
        "shared": compiled.metadata.shared,
        "registers": int(re.search(r"Used (\\d+) registers", log).group(1)),
        "spills": sum(int(n) for n in re.findall(r"(\\d+) bytes spill", log)),
        "wgmma": compiled.asm["ptx"].count("wgmma.mma_async"),
    }


with tempfile.TemporaryDirectory() as folder:
    fused = Path(folder) / "fused.py"
    fused.write_text(artifact.kernel_source)
    print(json.dumps({"phased": artifact.schedule.phased, "alone": measure(Path(library.__file__)), "fused": measure(fused)}))
"""


@pytest.mark.parametrize(
    ("head_dim", "causal", "documents"), [(128, True, False), (64, False, False), (256, True, True)]
)
def test_the_kernel_compiles_for_sm90_alone_and_fused(head_dim, causal, documents, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [warm_python(), script, str(head_dim), str(int(causal)), str(int(documents))],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env={**environment, "PYTHONPATH": str(ROOT / "python")},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    answer = json.loads(result.stdout)
    print(answer)
    alone, fused = answer["alone"], answer["fused"]
    assert answer["phased"]
    assert fused["wgmma"] >= alone["wgmma"] > 0
    assert fused["shared"] <= alone["shared"] + 1024
    assert fused["registers"] <= 255 and fused["spills"] <= alone["spills"]


def test_the_kernel_of_a_pass_compiles_for_sm90_fused():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [warm_python(), HERE / "attention_pass_compiled.py", "128"],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env={**environment, "PYTHONPATH": str(ROOT / "python")},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    answer = json.loads(result.stdout)
    assert answer["phased"] and answer["wgmma"] > 0 and answer["spilled"] == 0
    assert answer["constant"] == []  # the first pass compiles for all
