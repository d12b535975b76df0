"""Strategies: what tune::choose answers, as the operators use it."""

import dataclasses
import importlib
import sys

import pytest

torch = pytest.importorskip("torch")
strategy = pytest.importorskip("syncopate.strategy")
from syncopate.ops.product_kernel import Product  # noqa: E402
from syncopate.strategy import Chunking, Problem, Strategy, Tiling  # noqa: E402

MODELS = {"8B": (4096, 14336), "70B": (8192, 28672), "GPT-3": (12288, 49152), "405B": (16384, 53248)}
WIDE = Tiling(128, 256, 64, 4, -1)


def all_reduce(model: str, m: int, size: int) -> Strategy:
    hidden, f = MODELS[model]
    return strategy.choose(Problem("matmul_all_reduce", m, hidden, f // 8, torch.bfloat16, size, 132))


@pytest.mark.parametrize(
    "given",
    [
        Strategy(),
        Strategy(tilings=(WIDE, dataclasses.replace(WIDE, split_k=2)), programs=7, split=2, split_axis=1),
        Strategy(chunking=Chunking(2, (384, 640), True), pull=True, backend="tma_dedicated", engine_blocks=3),
        Strategy(chunking=Chunking(1, 4), stored=1),
        Strategy(unfused=True),
        Strategy(apart=True, parts=(Strategy(pull=True), Strategy(unfused=True))),
        Strategy(kernel="gluon"),
        Strategy(tilings=(dataclasses.replace(WIDE, warps=4),)),
    ],
)
def test_a_strategy_is_the_same_after_json(given):
    assert strategy.from_json(strategy.to_json(given)) == given


@pytest.mark.parametrize(
    ("given", "kernel"),
    [
        (Strategy(split=2), "gluon"),
        (Strategy(split=2, kernel="plain"), "plain"),
        (Strategy(split=2, tilings=(WIDE,)), "plain"),
        (Strategy(kernel_sums=True, split=1), "gluon"),
    ],
)
def test_the_quicker_kernel_is_taken_where_it_is_open(monkeypatch, given, kernel):
    """By the estimate: 8192 rows of 405B on four H100s take 2 % less by the Gluon kernel."""
    module = sys.modules[strategy.complete.__module__]
    monkeypatch.setattr(module, "device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(module, "runs_gluon", lambda device: True)
    problem = Problem("matmul_reduce_scatter", 8192, 16384, 6656, torch.bfloat16, 4, 132)
    made = strategy.complete(problem, given)
    assert (made.kernel, made.split) == (kernel, given.split)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_contributions_of_few_rows_are_not_staged(model, size):
    """Copies to staging, and sums beside the product, have fixed costs that are such a call's whole time."""
    chosen = all_reduce(model, 128, size)
    assert chosen.unfused or chosen.pull or chosen.backend in ("ldst_inline", "tma_inline"), chosen


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("model", ["70B", "GPT-3"])
def test_many_rows_on_many_ranks_are_summed_beside_the_product(model, size):
    chosen = all_reduce(model, 4096, size)
    assert not chosen.unfused


def test_a_product_is_launched_with_the_warps_and_stages_of_its_tiles():
    usual = Product(1024, 1024, 64, WIDE, programs=4)
    other = dataclasses.replace(usual, tiling=dataclasses.replace(WIDE, block_n=128, warps=8, stages=5))
    arrays = [torch.empty(shape) for shape in ((1024, 64), (64, 1024), (1024, 1024))]
    assert usual.call(*arrays).options == {"num_warps": 8, "num_stages": 4}
    assert other.call(*arrays).options == {"num_warps": 8, "num_stages": 5}
    narrow = dataclasses.replace(other, tiling=dataclasses.replace(other.tiling, warps=0))
    assert narrow.call(*arrays).options["num_warps"] == 4, "as many as such a tile usually takes"


def test_what_is_chosen_is_complete():
    for operator in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_to_all", "all_to_all_matmul"):
        problem = Problem(operator, 4096, 8192, 3584, torch.bfloat16, 8, 132)
        chosen = strategy.choose(problem)
        assert strategy.complete(problem, chosen) == chosen
        assert chosen.programs <= 132 and len(chosen.tilings) == 1 and chosen.split >= 1


def test_what_arrives_is_multiplied_in_a_second_wave_of_narrow_tiles():
    """Measured: 70B, M = 1024 on two H100s 102 us; one wave of wide tiles in slices of K 118."""
    chosen = strategy.choose(Problem("all_gather_matmul", 1024, 3584, 8192, torch.bfloat16, 2, 132))
    assert chosen.chunking.slices == 1  # by the engine or beside 124 programs: both leave two waves
    assert chosen.tilings[0].block_n == 128


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"pull": True}, (True, "ldst_dedicated", 8, 1)),
        ({"pull": True, "backend": "tma_dedicated"}, (True, "tma_dedicated", 8, 1)),
        ({"stored": 2}, (False, "auto", 8, 1)),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_done_and_the_rest_filled_in(asked, given):
    problem = Problem("matmul_all_reduce", 512, 8192, 3584, torch.bfloat16, 4, 132)
    made = strategy.complete(problem, Strategy(**asked))
    assert (made.pull, made.backend, made.engine_blocks, made.split) == given


def test_on_the_host_nothing_is_chosen_but_tiles():
    problem = Problem("matmul_all_reduce", 512, 8192, 3584, torch.bfloat16, 4, 4, "host")
    chosen = strategy.choose(problem)
    assert chosen == Strategy(tilings=chosen.tilings, programs=4, engine_blocks=8, split=1)


def test_unfused_is_not_chosen_where_torch_cannot_run_it():
    for m in (16, 128, 1024):
        problem = Problem("matmul_all_reduce", m, 2048, 512, torch.bfloat16, 8, 132)
        assert not strategy.choose(problem, unfused=False).unfused


@pytest.mark.parametrize(
    ("options", "why"),
    [({"stored": 4}, "^stored: .* 0 to 3"), ({"stored": -1}, "stored"),
     ({"stored": 1, "pull": True}, "^stored: .*pull"), ({"unfused": True}, "^unfused: .*process group")],
)  # fmt: skip
def test_strategies_that_cannot_be_carried_out_are_refused(options, why):
    from syncopate import Group, ops

    with pytest.raises(ValueError, match=why):
        ops.MatmulReduceScatter(
            512, 64, 64, torch.bfloat16, Group(0, 4, None, "host"), strategy=Strategy(**options)
        )


@pytest.mark.parametrize(
    ("chosen", "recorded"),
    [
        (Strategy(kernel="plain", backend="copy_engine"), None),
        (Strategy(kernel="gluon"), Strategy(kernel="plain")),
    ],
)
def test_what_is_recorded_has_a_kernel_that_notes_times(monkeypatch, chosen, recorded):
    module = sys.modules[strategy.recorded.__module__]
    monkeypatch.setattr(module, "choose", lambda problem, **asked: chosen)
    problem = Problem("all_gather_matmul", 64, 2304, 7168, torch.bfloat16, 4, 132)
    assert strategy.recorded(problem) == recorded


@pytest.mark.parametrize("operator", ["all_gather_matmul", "matmul_all_reduce"])
def test_a_search_begins_with_what_is_taken_untuned_on_this_device(monkeypatch, operator):
    from syncopate.measure import search as tune_search

    choose = importlib.import_module("syncopate.strategy.choose")
    problem = Problem(operator, m=192, n=14336, k=3584, dtype=torch.bfloat16, ranks=2, num_sms=132)
    monkeypatch.setattr(choose, "runs_gluon", lambda device: device == "cuda")
    by_device = {}
    for device, machine in (("NVIDIA H200", "h200x2"), ("NVIDIA H100 80GB HBM3", "h100x2")):
        monkeypatch.setattr(choose, "device_name", lambda name=device: name)
        default, pair, *others = tune_search.contenders_of(problem, problem.device)
        named = tune_search.contenders_of(problem, problem.device, machine=machine)
        assert named == [default, pair, *others]
        unseen = choose._syncopate.tune.choose(problem, **choose.here(problem.device) | {"cuda": True})[0]
        assert Strategy.from_json(default.json) == unseen
        assert default.baseline and pair.baseline and not any(c.baseline for c in others)
        least = min([c.estimate_us for c in others] + [pair.estimate_us])
        assert 0 < default.estimate_us <= 1.04 * least, "within what the estimate takes for equal"
        by_device[machine] = pair.estimate_us
    assert by_device["h200x2"] < by_device["h100x2"]
