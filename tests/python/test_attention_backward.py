"""The backward of attention over a sharded sequence on host ranks: every kind, mask and sharding."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
HERE = Path(__file__).resolve().parent

CASES = {
    2: ["ulysses deterministic", "deterministic zigzag", "heads of 40"],
    3: ["ragged", "documents zigzag", "kept ring", "deterministic ring"],
    4: ["double_ring"],
    5: ["few rows"],
}
IN_SWEEP = {
    2: ["causal", "full", "window", "documents", "ulysses", "documents of one row", "heads of 96", "kept", "deterministic documents"],
    3: ["ring zigzag", "ragged full", "zigzag", "window full", "documents full", "deterministic", "ulysses zigzag", "ulysses of one head"],
    4: ["ring", "double_ring zigzag", "ulysses", "ragged zigzag", "deterministic zigzag", "documents of one row"],
    5: ["ring", "ulysses by five", "documents", "window", "ring zigzag", "deterministic ring"],
}  # fmt: skip


@pytest.mark.parametrize("ranks", CASES)
def test_gradients_are_those_of_the_whole_sequence_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention_backward.py", ranks, *CASES[ranks])
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: {len(CASES[ranks])} cases" in outcome.out


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", IN_SWEEP)
def test_gradients_of_every_kind_are_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention_backward.py", ranks, *IN_SWEEP[ranks])
    assert outcome.code == 0, outcome.out + outcome.err
