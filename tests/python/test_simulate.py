"""Simulation and synthesis from Python, and the commands around them."""

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import HUNG

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("SYNCOPATE_BIN", ROOT / "build" / "bin" / "syncopate"))

plans = pytest.importorskip("syncopate.plans")


def gather(ranks: int, rows: int = 4096):
    return plans.all_gather(plans.mesh_of(ranks), plans.Tensor("A", (rows, 1024)))


def test_a_plan_is_simulated_on_a_named_machine():
    run = plans.simulate(gather(4), "h200x4")
    assert run.topology == "h200x4"
    assert run.makespan_us >= run.bound_us > 0
    assert "rank" in run.bound_reason
    name, share = run.busiest_link
    assert "nvswitch" in name and 0 < share <= 1
    assert [len(ops) for ops in run.ops] == [3, 3, 3, 3]
    assert max(end for ops in run.ops for _, end in ops) == pytest.approx(run.makespan_us)


def test_without_flags_it_is_faster_and_the_machine_has_a_default():
    assert plans.simulate(gather(8), posts=False).makespan_us < plans.simulate(gather(8)).makespan_us
    assert plans.simulate(gather(8)).topology == "h200x8"
    assert plans.simulate(gather(24)).topology == "switch:24"


def test_an_unknown_machine_is_an_error_with_the_one_meant():
    with pytest.raises(ValueError, match='did you mean "torus"'):
        plans.simulate(gather(4), "toruss")


def test_a_plan_is_synthesised_and_sound():
    plan = plans.synthesise(
        "all_reduce", plans.Mesh(y=2, x=3), plans.Tensor("A", (96, 8)), "mesh:2x3", chunks=2
    )
    assert plan.check() == []
    assert plan.mesh == [("y", 2), ("x", 3)]
    assert plans.simulate(plan, "mesh:2x3").makespan_us > 0
    with pytest.raises(ValueError, match="there is no collective"):
        plans.synthesise("all_gahter", plans.Mesh(gpu=2), plans.Tensor("A", (4,)), "ring:2")


def test_a_synthesised_broadcast_leaves_the_sms_alone_when_told_to():
    def made(sms):
        tensor = plans.Tensor("A", (8 * 4096, 65536), "int8")
        return plans.synthesise("broadcast", plans.Mesh(gpu=8), tensor, "h200x8", chunks=0, sms=sms)

    assert "tma_dedicated" in made(True).to_json()
    assert "tma_dedicated" not in made(False).to_json()


def test_pictures_and_traces_are_well_formed():
    run = plans.simulate(gather(4))
    root = ElementTree.fromstring(run.svg())
    assert root.tag.endswith("svg")
    events = json.loads(run.trace())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 12


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")
def test_the_commands_from_synthesis_to_picture(tmp_path):
    def syncopate(*arguments, expect: int = 0) -> str:
        result = subprocess.run(
            [str(COMMAND), *map(str, arguments)], capture_output=True, text=True, timeout=HUNG
        )
        assert result.returncode == expect, result.stdout + result.stderr
        return result.stdout + result.stderr

    plan, svg, trace = tmp_path / "plan.json", tmp_path / "plan.svg", tmp_path / "trace.json"
    machine = tmp_path / "machine.json"
    syncopate("plan", "topology", "torus:2x3", "-o", machine)
    syncopate("plan", "synth", "reduce_scatter", "--topology", machine, "--tensor", "A:60x8:fp32", "-o", plan)
    assert "no findings" in syncopate("plan", "check", plan)
    text = syncopate("plan", "simulate", plan, "--topology", machine, "--trace", trace)
    assert "makespan" in text and "lower bound" in text and "busiest link" in text
    assert json.loads(trace.read_text())["traceEvents"]
    answer = json.loads(syncopate("plan", "simulate", plan, "--topology", "torus:2x3", "--json"))
    assert answer["makespan_us"] >= answer["bound"]["us"] and len(answer["ranks"]) == 6
    syncopate("plan", "show", plan, "--svg", svg, "--topology", "torus:2x3")
    ElementTree.fromstring(svg.read_text())
    assert "h200x8x2" in syncopate("plan", "topology")
    assert "there is no topology" in syncopate("plan", "simulate", plan, "--topology", "nosuch", expect=2)
    assert "but topology ring:4 has 4 devices" in syncopate(
        "plan", "simulate", plan, "--topology", "ring:4", expect=1
    )
    assert "cannot be synthesised" in syncopate(
        "plan", "synth", "permute", "--topology", "ring:4", "--tensor", "A:8:fp32", expect=2
    )
