"""Operators of the library as programs: what the command prints of them, and whose statements the kernels take."""

import json
import sys
from pathlib import Path

import pytest
from conftest import BINARY
from syncopate import _syncopate

SPECS = [
    "all_gather_matmul:M=512,N=384,K=256",
    "all_to_all_matmul:M=512,N=384,K=256,dtype=fp16",
    "matmul_reduce_scatter:M=500,N=384,K=256",
    "matmul_all_reduce:M=512,N=384,K=256,dtype=fp8e4m3,scales=row",
    "matmul_all_to_all:M=512,N=384,K=256,dtype=fp32",
    "feed_forward:M=512,K=256,F=128,N=256",
    "attention:S=2048,H=4,HKV=2,causal=1,kind=ring,sharding=zigzag",
    "attention:S=2048,H=4,HKV=4,causal=0,kind=ulysses",
    "attention:S=250,H=4,HKV=2",
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_plan_of_an_operator_is_sound(syncopate, spec, tmp_path):
    made = syncopate("plan", "make", "--op", spec, "--ranks=4", "-o", tmp_path / "plan.json")
    assert made.code == 0, made.err
    assert made.err.splitlines()[-1].startswith("strategy: {")  # the one that was chosen
    checked = syncopate("plan", "check", tmp_path / "plan.json")
    assert checked.code == 0 and "4 ranks" in checked.out, checked.out


@pytest.mark.parametrize("spec", SPECS)
def test_the_work_graph_of_an_operator_is_printed(syncopate, spec, tmp_path):
    shown = syncopate("fuse", "--op", spec, "--ranks=2", "--show=graph")
    assert shown.code == 0, shown.err
    assert "tile" in shown.out and "rank 1" in shown.out


def test_a_strategy_says_what_an_operator_sends(syncopate, tmp_path):
    spec = "matmul_reduce_scatter:M=256,N=256,K=256,ranks=2"
    file = tmp_path / "strategy.json"
    file.write_text('{"split": 2, "split_axis": 1, "stored": 1}')
    plans = []
    for strategy in ("{}", f"@{file}"):
        made = syncopate("plan", "make", "--op", spec, "--strategy", strategy)
        assert made.code == 0, made.err
        plans.append(json.loads(made.out))
    backends = [[op.get("backend") for op in plan["ranks"][0]["ops"]] for plan in plans]
    assert "tma_inline" not in backends[0] and backends[1] == ["tma_inline"] * 2


def test_a_chain_on_one_gpu_is_an_operator_too(syncopate):
    strategy = '{"kernel": "gluon", "tiles": [{"block_m": 128, "block_n": 128, "block_k": 64, "stages": 4}]}'
    words = ("--op", "mlp_chain:M=256,H=512,F=384,ranks=1", "--strategy", strategy)
    shown = syncopate("fuse", *words, "--show=graph")
    assert shown.code == 0 and "tile" in shown.out, shown.err
    several = syncopate("plan", "make", *words, "--ranks=2")
    assert several.code == 2 and "mlp_chain: it is of one GPU" in several.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "make"], "name a template, or an operator by --op SPEC"),
        (["plan", "make", "all_gather", "--op", SPECS[0]], "excludes"),
        (["plan", "make", "--op", SPECS[0], "--split=2"], "excludes"),
        (["plan", "make", "--op", "all_gather:M=1,N=8,K=8"], "there is no operator"),
        (["plan", "make", "--op", "all_gather_matmul:M=1,N=7,K=8"], "N must be a multiple of 8"),
        (["plan", "make", "--op", "all_gather_matmul:M=1,N=8"], "needs K"),
        (["plan", "make", "--strategy", "{}"], "--op"),
        (["plan", "make", "--op", SPECS[2], "--strategy", '{"stored": 9}'], "7 contributions"),
        (["plan", "make", "--op", SPECS[0], "--strategy", '{"splt": 9}'], "splt"),
        (["plan", "make", "--op", SPECS[0], "--strategy", "@none.json"], "none.json"),
        (["fuse"], "give FILE.py:NAME and --plan, or an operator by --op SPEC"),
        (["fuse", "--op", SPECS[0]], "give -o DIR, --show graph or --svg FILE"),
        (["fuse", "--op", SPECS[0], "-o", "made"], "print its graph"),
        (["fuse", "--op", SPECS[0], "--plan", "a.json"], "excludes"),
        (["fuse", "--op", SPECS[0], "--show=graph", "--together"], "excludes"),
    ],
)
def test_what_is_wrong_of_an_operator_is_named(syncopate, words, message, tmp_path):
    refused = syncopate(*(tmp_path / "made" if word == "made" else word for word in words))
    assert refused.code in (1, 2) and refused.out == "" and message in refused.err, refused.err
    assert not list(tmp_path.iterdir())


def test_the_example_in_cpp_says_what_tiles_of_an_operator_wait_for(run):
    example = BINARY.parent / "example_operator"
    if not example.exists():
        pytest.skip(f"{example} is not built")
    said = run(example, "all_gather_matmul:M=1024,N=512,K=512,ranks=4")
    assert said.code == 0, said.err
    assert "stage 0, tile" in said.out and "after op" in said.out
    refused = run(example, "all_gather_matmul:M=1024,N=512")
    assert refused.code == 1 and "needs K" in refused.err


def test_programs_made_in_cpp_have_the_schedules_that_operators_have(run):
    compared = run(sys.executable, Path(__file__).resolve().parent / "operator_schedules.py")
    assert compared.code == 0, compared.out + compared.err
    assert int(compared.out.split()[0]) > 30


def test_the_gluon_kernels_have_all_parameters_that_their_statements_name():
    from syncopate.kernels.stated_attention import stated_attention
    from syncopate.kernels.stated_matmul import stated_matmul

    for kernel, said in (
        (stated_matmul(scales="row"), _syncopate.ops.matmul_statement(scales="row")),
        (stated_attention(), _syncopate.ops.attention_statement()),
    ):
        named = {
            *said["reads"],
            *said["writes"],
            *said["placed"],
            *filter(None, (said["sums"], said["head_start"])),
        }
        assert named <= set(kernel.parameters)
