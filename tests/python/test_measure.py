"""What `syncopate tune --measure-machine` makes of the times that it measures; and on the host, that what it measures runs."""

import json
import sys

import pytest
from conftest import ROOT

pytest.importorskip("triton")
import torch  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate.kernels.gluon_tiles import ranked  # noqa: E402
from syncopate.measure import products as measure_products  # noqa: E402
from syncopate.measure.attention import HEADS, ROWS, Run, runs, tables  # noqa: E402
from syncopate.measure.calls import CALLS, CallRun  # noqa: E402
from syncopate.measure.machine import times_of  # noqa: E402
from syncopate.strategy import Problem, Strategy  # noqa: E402

SIZES = (64, 128, 256)
SMS = 132


class Clock:
    """A progress of which so many steps are in time."""

    def __init__(self, steps: int) -> None:
        self.left, self.names = steps, []

    @property
    def in_time(self) -> bool:
        return self.left > 0

    def step(self, what: str) -> None:
        self.left -= 1
        self.names.append(what)


def by_itself(run):
    """A call that gives what it is of."""
    return [lambda: run]


def times_on(steps: int, gluon: bool) -> dict[Run, float]:
    """On a GPU on which a kernel takes 2 ms without a mask, and 1.1 under one."""
    return times_of(
        runs(gluon, SIZES), by_itself, lambda call: 1100.0 if call()[0].causal else 2000.0, Clock(steps)
    )


def test_rates_are_those_of_one_multiprocessor_and_a_mask_costs_what_it_leaves_undone():
    found = tables(times_on(99, gluon=True), True, SIZES, SMS)
    assert set(found) == {"attention_gluon_tflops", "attention_causal", "attention_tflops"}
    (d, rate), *_ = found["attention_tflops"]["points"]
    assert d == 64
    assert rate * SMS * 2000e-6 == pytest.approx(4 * HEADS * ROWS * ROWS * 64 / 1e12)
    # Half of the pairs in 0.55 of the time.
    assert [round(share, 2) for _, share in found["attention_causal"]["points"]] == [0.91] * 3


def test_a_table_that_time_did_not_suffice_for_is_left_out():
    assert set(tables(times_on(3, gluon=True), True, SIZES, SMS)) == {"attention_gluon_tflops"}
    assert set(tables(times_on(8, gluon=True), True, SIZES, SMS)) == {
        "attention_gluon_tflops",
        "attention_causal",
    }
    clock = Clock(2)
    times_of(runs(True, SIZES), by_itself, lambda call: 1.0, clock)
    assert len(clock.names) == 9, "each step is shown, measured or not"


def test_every_shape_is_timed_before_any_is_timed_again():
    made = measure_products.gluon_runs(SMS)
    shapes = [run.shape for run in made]
    assert set(shapes[: len(measure_products.SHAPES)]) == set(measure_products.SHAPES)
    assert len(made) == len(set(made)) > 4 * len(measure_products.SHAPES)
    sizes = {(run.tiling.block_m, run.tiling.block_n) for run in made}
    assert {(128, 192), (64, 64), (128, 256)} <= sizes and any(run.tiling.split_k > 1 for run in made)


def test_the_gluon_kernels_figures_are_fitted_to_what_was_timed(tmp_path, capsys):
    """On a GPU whose products take twice as long as an H200's."""
    made = measure_products.gluon_runs(SMS)
    known = {
        (shape, tiling): us
        for shape in measure_products.SHAPES
        for tiling, us in ranked(*shape, SMS, machine="h200x1")
    }

    def make(run):
        if run == made[3]:
            raise RuntimeError("out of resource")
        return [lambda: None] * 20

    call_us = 5
    times = iter([20 * (call_us + 2 * known[run.shape, run.tiling]) for run in made if run != made[3]])
    found = times_of(made, make, lambda call: next(times), Clock(len(made)))
    products = [run.timed(us) for run, us in found.items()]
    assert len(products) == len(made) - 1
    assert f"{made[3].name}: out of resource" in capsys.readouterr().err
    path = tmp_path / "machine.json"
    of_h200 = json.loads((ROOT / "share" / "machines" / "h200x1.json").read_text())["figures"]
    memory = {"value": of_h200["memory_gbps"]["value"] / 2, "source": "measured by itself"}
    text = json.dumps({"figures": {"memory_gbps": memory}, "products": products})
    _syncopate.tune.measured_machine("NVIDIA H200", 1, SMS, text, str(path))
    figures = json.loads(path.read_text())["figures"]
    assert f"fitted to the times of {len(products)} tilings" in figures["gluon_load_gbps"]["source"]
    assert figures["gluon_load_gbps"]["value"] == pytest.approx(
        of_h200["gluon_load_gbps"]["value"] / 2, rel=0.1
    )
    timed = {(run.shape, run.tiling) for run in made if run != made[3]}
    off = [
        abs(us / (2 * known[shape, tiling]) - 1)
        for shape in measure_products.SHAPES
        for tiling, us in ranked(*shape, SMS, machine=str(path))
        if (shape, tiling) in timed
    ]
    assert len(off) == len(timed) and sum(off) / len(off) < 0.05
    assert figures["sm_tflops"] == of_h200["sm_tflops"] | {"source": figures["sm_tflops"]["source"]}
    few = times_of(made, by_itself, lambda call: 1.0, Clock(3))
    assert len(few) == 3, "as long as there is time"


def problem_key(run: CallRun) -> str:
    return Problem(run.operator, *run.extents, torch.bfloat16, ranks=2, num_sms=SMS).key


@pytest.mark.parametrize("run", CALLS, ids=lambda run: run.figure)
@pytest.mark.parametrize("machine", ["h100x2", "h200x2"])
def test_a_timed_call_is_legal_and_its_estimate_depends_on_its_figure(run, machine, tmp_path):
    known = json.loads((ROOT / "share" / "machines" / f"{machine}.json").read_text())
    path, took = tmp_path / "machine.json", []
    for times in (1, 2):
        other = known["figures"][run.figure] | {"value": times * known["figures"][run.figure]["value"]}
        path.write_text(json.dumps(known | {"figures": known["figures"] | {run.figure: other}}))
        made = _syncopate.tune.estimate(problem_key(run), run.strategy, str(path))
        assert not made["objection"]
        took.append(made["us"])
    assert abs(took[1] / took[0] - 1) > 0.02


def test_figures_are_set_by_the_calls_that_show_them(tmp_path):
    """On a GPU like an H200, whose calls take what one of H100s is estimated to."""
    calls = [
        [
            run.figure,
            key := problem_key(run),
            _syncopate.tune.complete(key, run.strategy, "h200x2").to_json(),
            _syncopate.tune.estimate(key, run.strategy, "h100x2")["us"],
        ]
        for run in CALLS
    ]
    path = tmp_path / "machine.json"
    _syncopate.tune.measured_machine("NVIDIA H200", 2, SMS, json.dumps({"calls": calls}), str(path))
    figures = json.loads(path.read_text())["figures"]
    for figure, key, strategy, us in calls:
        assert f"measured here: {key} by " in figures[figure]["source"]
        made = _syncopate.tune.estimate(key, Strategy.from_json(strategy), str(path))["us"]
        assert made == pytest.approx(us, rel=0.1) or "off with the nearest one" in figures[figure]["source"]


def test_what_is_between_nodes_goes_into_the_machine_file_that_is_there(tmp_path):
    from syncopate.measure import network

    gbps, us = network.figures(
        7 + network.SMALL / 25e3, 7 + network.LARGE / 25e3
    )  # µs of rounds at 25 GB/s, which take 7 µs without their bytes
    assert (gbps, us) == (pytest.approx(25), pytest.approx(7))
    path = tmp_path / "machine.json"
    _syncopate.tune.measured_machine("NVIDIA H200", 8, SMS, "{}", str(path))
    assert "network" not in json.loads(path.read_text())
    spec = "all_gather_matmul:M=4096,N=1024,K=8192,ranks=4,nodes=2"
    assert 'no "network"' in _syncopate.tune.choose(spec, machine=str(path))[3]
    said = _syncopate.tune.measured_network("NVIDIA H200", 8, SMS, gbps, us, 40.0, "as if", str(path))
    assert said == f"{path}: between nodes 25.0 GB/s, 7.0 us, in an all-gather 40.0 GB/s"
    made = json.loads(path.read_text())
    assert made["network"]["gbps"]["source"] == "measured here: as if"
    assert made["name"] == "measured x8"
    _, us, _, note = _syncopate.tune.choose(spec, machine=str(path))
    assert us > 0
    assert note == "by the estimate on measured x8"


def test_ranks_of_one_node_measure_no_network(monkeypatch):
    from syncopate.measure import network

    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SYNCOPATE_HOST_ID", "NCCL_HOSTID"):
        monkeypatch.delenv(name, raising=False)
    assert not network.is_over_nodes()
    for name, value in {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert not network.is_over_nodes()
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert network.is_over_nodes()


def test_a_kernel_that_does_not_run_costs_its_table_only(capsys):
    def fails(call) -> float:
        (run,) = call()
        if run == Run("triton", 256, False):
            raise RuntimeError("out of shared memory")
        return 1000.0

    times = times_of(runs(True, SIZES), by_itself, fails, Clock(99))
    assert set(tables(times, True, SIZES, SMS)) == {"attention_gluon_tflops", "attention_causal"}
    assert "attention by triton, D = 256: out of shared memory" in capsys.readouterr().err


def test_where_the_gluon_kernel_does_not_run_it_has_no_rate_and_the_plain_one_tells_of_masks():
    found = tables(times_on(99, gluon=False), False, SIZES, SMS)
    assert found["attention_gluon_tflops"]["points"] == [[64, 0], [128, 0], [256, 0]]
    assert "triton" in found["attention_causal"]["source"]
    assert set(found) == {"attention_gluon_tflops", "attention_causal", "attention_tflops"}


ON_HOST = """
from syncopate.host import interpreter
interpreter.repair_bf16()
from syncopate.group import alone
from syncopate.measure.attention import Run, call_of
for causal in (False, True):
    call_of(Run("triton", 16, causal), alone("host"), heads=2, rows=48)()
print("ran")
"""


def test_the_calls_that_are_measured_run(run):
    outcome = run(sys.executable, "-c", ON_HOST, TRITON_INTERPRET="1")
    assert outcome.out == "ran\n", outcome.err
