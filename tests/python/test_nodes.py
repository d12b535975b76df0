"""Ranks of several nodes: each node has a heap of its own, and what goes between them goes by the channel."""

import json
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SWEEP = bool(os.environ.get("SYNCOPATE_SWEEP"))


@pytest.mark.parametrize(
    ("nodes", "places", "calls"), [(2, 2, 3), (2, 3, 2), (4, 4, 2)] if SWEEP else [(2, 2, 2)]
)
def test_operators_over_nodes_are_exact_on(nodes, places, calls, run):
    outcome = run(sys.executable, HERE / "host_nodes.py", nodes, places, calls)
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{nodes} nodes of {places}: 5 operators, {calls} calls, exact" in outcome.out


def test_a_torch_group_of_several_hosts_is_taken_as_its_nodes(run):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    outcome = run(*launch, HERE / "host_nodes.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err


def test_plan_check_says_in_how_many_rounds_sends_between_nodes_meet(syncopate, tmp_path):
    plan = tmp_path / "plan.json"
    spec = "matmul_all_reduce:M=64,N=32,K=32,ranks=4,nodes=2"
    assert syncopate("plan", "make", "--op", spec, "-o", plan).code == 0
    outcome = syncopate("plan", "check", plan)
    assert outcome.code == 0, outcome.err
    assert "8 sends between 2 nodes meet in 2 rounds, no findings" in outcome.out
    plan.write_text(plan.read_text().replace('"peer": 2', '"peer": 2, "backend": "copy_engine"', 1))
    outcome = syncopate("plan", "check", plan)
    assert outcome.code == 1
    assert "copy_engine reaches only what ranks of one node map: use channel or auto" in outcome.err


def test_run_takes_nodes_in_a_spec(syncopate):
    spec = "all_gather_matmul:M=64,N=32,K=32,dtype=fp32,nodes=2"
    outcome = syncopate("run", spec, "--device", "host", "--ranks", 4, "--check")
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.parametrize("op", ["matmul_reduce_scatter", "feed_forward"])
def test_run_judges_sums_over_nodes_by_their_rounding(op, syncopate):
    spec = f"{op}:M=64,N=32,K=32,nodes=2" + (",F=32" if op == "feed_forward" else "")
    outcome = syncopate("run", spec, "--device", "host", "--ranks", 4, "--check")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "each node's sum is rounded" in outcome.out


@pytest.mark.parametrize("op", ["all_gather_matmul", "matmul_all_reduce"])
def test_a_bundle_of_several_nodes_runs_on_host(op, syncopate, tmp_path):
    spec, bundle = f"{op}:N=32,K=32,dtype=fp32,ranks=4,nodes=2", tmp_path / "nodes.bundle"
    made = syncopate("compile", spec, "--rows", 48, "--arch", "host", "-o", bundle)
    assert made.code == 0, made.err
    outcome = syncopate("bundle", "run", bundle, "--check")
    assert outcome.code == 0, outcome.out + outcome.err
    assert outcome.out.count("right") == 2


def test_what_is_of_one_node_says_so(syncopate):
    outcome = syncopate("run", "moe:T=64,E=8,topk=2,H=48,F=80,nodes=2", "--device", "host", "--ranks", 4)
    assert outcome.code in (1, 2)
    assert "one program of moe is of one node's ranks, got 2 nodes: its ranks map" in outcome.err
    assert "sy.ops.moe, dispatch and combine do it by such a program on each node" in outcome.err


def test_the_plan_of_attentions_backward_goes_over_nodes(syncopate):
    spec = "attention_backward:S=256,B=1,H=2,HKV=1,D=64,nodes=2"
    made = syncopate("plan", "make", "--op", spec, "--ranks", 4)
    assert made.code == 0, made.err
    checked = syncopate("plan", "check", "-", stdin=made.out)
    assert checked.code == 0 and "sends between 2 nodes meet" in checked.out, checked.out + checked.err


@pytest.mark.parametrize("kind", ["auto", "ring", "double_ring", "ulysses_ring"])
def test_attention_goes_over_nodes(kind, syncopate):
    spec = f"attention:kind={kind},S=128,H=2,HKV=1,D=16,nodes=2"
    spec += ",inner=2" if kind == "ulysses_ring" else ""
    outcome = syncopate("run", spec, "--device", "host", "--ranks", 4, "--check")
    assert outcome.code == 0, outcome.out + outcome.err


def test_the_estimate_ranks_what_goes_over_nodes(syncopate):
    spec = "matmul_reduce_scatter:M=4096,N=8192,K=3584,ranks=16,nodes=2"
    outcome = syncopate("tune", spec, "--explain", "--json", "--machine", "h200x8")
    assert outcome.code == 0, outcome.err
    made = [one for one in json.loads(outcome.out)["strategies"] if one["pruned"] is None]
    assert "unfused" in [one["name"] for one in made]
    assert all(0 < one["us"] < 1e5 for one in made)
    assert [one["us"] for one in made] == sorted(one["us"] for one in made)


def test_beyond_64_ranks_it_is_said_that_calls_take_the_pair(syncopate):
    spec = "matmul_all_to_all:M=528,N=64,K=64,ranks=66,nodes=33"
    outcome = syncopate("tune", spec, "--explain", "--machine", "h200x8")
    assert outcome.code == 0, outcome.err
    said = "a call takes unfused: the unfused pair: over nodes the estimate chooses for at most 64 ranks"
    assert outcome.out.splitlines()[-1] == said


def test_no_times_are_made_up_for_nodes(syncopate):
    spec = "matmul_reduce_scatter:M=64,N=32,K=32,ranks=4,nodes=2"
    outcome = syncopate("tune", spec, "--explain", "--machine", "h200x2")
    assert outcome.code == 2
    assert 'h200x2 says nothing of a network between 2 nodes: its file has no "network"' in outcome.err
    outcome = syncopate("tune", "attention:S=4096,ranks=16,nodes=2", "--explain", "--machine", "h200x8")
    assert outcome.code == 2
    assert "estimates of attention are of one node" in outcome.err


def test_nodes_that_do_not_divide_the_ranks_are_refused(syncopate):
    spec = "all_gather_matmul:M=64,N=32,K=32,dtype=fp32,nodes=3"
    outcome = syncopate("run", spec, "--device", "host", "--ranks", 4, "--check")
    assert outcome.code in (1, 2)
    assert "nodes" in outcome.err
