"""How good the estimate is (bench/tune): of searches on real GPUs, and how the figures of a machine file are fitted."""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "tune")]

import estimate  # noqa: E402
import fit  # noqa: E402

#: Of several GPUs: their topology is a file of its own.
MACHINES = sorted((ROOT / "share" / "machines").glob("h?00x[248].json"))


def test_the_estimate_chooses_what_searches_found_to_be_nearly_the_fastest():
    lines = estimate.searched()
    assert len(lines) >= 18
    assert statistics.mean(line.regret for line in lines) < 1.05
    off = [abs(guess / us - 1) for line in lines for us, guess in line.times.values()]
    assert statistics.median(off) < 0.05


def test_of_strategies_that_took_turns_the_estimate_prefers_the_quicker_or_nearly_so():
    regrets = sorted(pair.regret for pair in estimate.compared())
    assert len(regrets) >= 80
    assert statistics.mean(regrets) < 1.016
    assert regrets[-3] < 1.1


def test_a_line_of_the_table_says_which_strategy_was_measured():
    ours = [line for line in estimate.tabled() if "ours" in line.times]
    assert len(ours) >= 300
    assert {line.machine for line in ours} >= {"h100x4", "h200x4"}
    for line in ours:
        us, guess = line.times["ours"]
        assert abs(math.log(us / guess)) < 0.4, f"{line}: {us} for {guess}"


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: file.stem)
def test_a_machine_file_is_written_as_it_is_laid_out(file):
    assert fit.to_text(json.loads(file.read_text())) == file.read_text()


def test_a_figure_that_is_off_is_found_again():
    known = json.loads((ROOT / "share" / "machines" / "h200x4.json").read_text())
    wrong = fit.scaled(known, {"sum_us": 1.3, "engine_sum_gbps": 0.8, "beside_sums": 2})
    right = {"sum_us": 1 / 1.3, "engine_sum_gbps": 1 / 0.8, "beside_sums": 0.5}

    def loss(factors):
        made = fit.scaled(wrong, factors)
        return sum(
            abs(math.log(made["figures"][name]["value"] / known["figures"][name]["value"]))
            for name in ("sum_us", "beside_sums")
        ) + abs(
            math.log(
                made["tables"]["engine_sum_gbps"]["points"][0][1]
                / known["tables"]["engine_sum_gbps"]["points"][0][1]
            )
        )

    factors, left = fit.descend(loss, dict.fromkeys(right, 1.0))
    assert left < 0.05
    assert factors == pytest.approx(right, rel=0.3)
    written = fit.write_fitted(wrong, factors, "a test")
    assert (
        written["figures"]["sum_us"]["source"] == written["tables"]["engine_sum_gbps"]["source"] == "a test"
    )
    assert written["figures"]["tile_us"] == known["figures"]["tile_us"]
