"""The backward of attention over a sharded sequence on host ranks: every kind, mask and sharding."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
HERE = Path(__file__).resolve().parent

CASES = {
    2: ["ulysses deterministic", "deterministic zigzag", "bounded"],
    3: ["ragged", "documents zigzag", "kept ring"],
    4: ["double_ring"],
}
IN_SWEEP = {
    2: [
        "causal", "full", "window", "documents", "ulysses", "documents of one row", "heads of 40", "heads of 96", "kept",
        "deterministic documents", "bounded ring", "bounded deterministic",
    ],
    3: [
        "ring zigzag", "ragged full", "zigzag", "window full", "documents full", "deterministic", "deterministic ring",
        "ulysses zigzag", "ulysses of one head", "bounded",
    ],
    4: ["ring", "double_ring zigzag", "ulysses", "ragged zigzag", "deterministic zigzag", "documents of one row", "bounded ring"],
    5: ["few rows", "ring", "ulysses by five", "documents", "window", "ring zigzag", "deterministic ring"],
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


def train(run, ranks: int, *checks: str, steps: int = 3) -> None:
    outcome = run(sys.executable, HERE / "host_training.py", ranks, *checks, SYNCOPATE_STEPS=str(steps))
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"ok: {len(checks)} checks" in outcome.out


def test_a_model_of_torchs_attention_trains_on_sharded_sequences(run):
    train(run, 2, "losses", "options")


@pytest.mark.sweep
def test_its_losses_stay_those_of_torch_over_many_steps(run):
    train(run, 2, "losses", "torchs", steps=50)
    train(run, 3, "losses", steps=10)


@pytest.mark.sweep
def test_dtensors_say_over_which_axis_of_their_mesh_rows_are_sharded(run):
    train(run, 4, "dtensors")


@pytest.mark.sweep
def test_a_sequence_and_its_heads_are_shared_out_at_once(run):
    script = HERE.parents[1] / "examples" / "llama.py"
    asked = ["--device", "cpu", "--small", "--context", "2", "--steps", "3", "--how", "torch,context"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", script, *asked]
    outcome = run(*command, TRITON_INTERPRET="1", PYTHONPATH=str(HERE.parents[1] / "python"))
    assert outcome.code == 0, outcome.out + outcome.err
    assert "the losses are the same" in outcome.out
