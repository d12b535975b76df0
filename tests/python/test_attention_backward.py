"""The backward of attention over a sharded sequence on host ranks: every kind, mask and sharding."""

import sys
from pathlib import Path

import pytest
from conftest import SWEEP

sy = pytest.importorskip("syncopate")
pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
HERE = Path(__file__).resolve().parent

CASES = {
    2: [
        "parts",
        "ulysses in parts",
        "ulysses deterministic",
        "deterministic zigzag",
        "bounded",
        "deterministic heads of 256",
        "unequal deterministic",
    ],
    3: ["ragged", "documents zigzag", "kept ring"],
    4: ["double_ring", "ulysses_ring"],
}
IN_SWEEP = {
    2: [
        "causal", "full", "window", "documents", "ulysses", "documents of one row", "heads of 40", "heads of 96", "kept",
        "deterministic documents", "bounded ring", "bounded deterministic", "heads of 12", "unequal", "unequal ring",
        "unequal documents", "unequal ulysses", "unequal ulysses deterministic", "unequal kept",
        "deterministic heads of 256, exchanged", "deterministic heads of 256 in passes", "parts deterministic",
    ],
    3: [
        "ring zigzag", "ragged full", "zigzag", "window full", "documents full", "deterministic", "deterministic ring",
        "ulysses zigzag", "ulysses of one head", "bounded", "unequal zigzag", "parts ring",
    ],
    4: ["ring", "double_ring zigzag", "ulysses", "ragged zigzag", "deterministic zigzag", "documents of one row", "bounded ring",
        "unequal double_ring", "unequal", "ulysses in parts", "ulysses in parts deterministic", "ulysses_ring zigzag",
        "ulysses_ring full", "ulysses_ring deterministic", "ulysses_ring of one head", "parts double_ring", "parts kept"],
    5: ["few rows", "ring", "ulysses by five", "documents", "window", "ring zigzag", "deterministic ring"],
}  # fmt: skip


@pytest.mark.parametrize("ranks", CASES if SWEEP else [2, 3])
def test_gradients_are_those_of_the_whole_sequence_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention_backward.py", ranks, *CASES[ranks])
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"{ranks} ranks: {len(CASES[ranks])} cases" in outcome.out


def test_rows_are_prepared_and_finished_in_the_order_of_the_tensor_cores(run):
    outcome = run(sys.executable, HERE / "host_backward_rows.py")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "rows are right" in outcome.out


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", IN_SWEEP)
def test_gradients_of_every_kind_are_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_attention_backward.py", ranks, *IN_SWEEP[ranks])
    assert outcome.code == 0, outcome.out + outcome.err


def taken(name, operand):
    """What the backward says of operands of which one is something else."""
    from syncopate.group import alone

    torch = pytest.importorskip("torch")
    op = sy.ops.AttentionBackward(1, 4, 2, 32, 16, torch.bfloat16, alone("host"))
    of_q, of_k = (torch.zeros(1, heads, 32, 16, dtype=torch.bfloat16) for heads in (4, 2))
    rows = torch.zeros(1, 4, 32)
    given = {"grad": of_q, "grad_lse": rows, "q": of_q, "k": of_k, "v": of_k, "o": of_q, "lse": rows}
    assert len(op._taken(*given.values())) == 7
    assert op._taken(*(given | {"grad_lse": None}).values())[1] is None
    with pytest.raises((ValueError, TypeError)) as refused:
        op(**given | {name: operand(given[name])})
    return str(refused.value)


@pytest.mark.parametrize("name", ["grad", "grad_lse", "q", "k", "v", "o", "lse"])
def test_an_operand_that_does_not_fit_is_named(name):
    assert taken(name, lambda one: one[:, :1]).startswith(f"{name}: expected shape [1, ")
    assert taken(name, lambda one: one[:, :, :-1]).startswith(f"{name}: expected shape [1, ")
    assert taken(name, lambda one: one.half()).startswith(f"{name}: expected dtype torch.")
    assert taken(name, lambda one: one.to("meta")) == f"{name}: expected a tensor on host, got one on meta"
    if name != "grad_lse":
        assert taken(name, lambda one: None) == f"{name}: expected a torch.Tensor, got NoneType"


def test_operands_of_any_strides_are_read_as_they_are():
    torch = pytest.importorskip("torch")
    from syncopate.ops.attention_places import fits_descriptor, for_descriptor

    whole = torch.arange(2 * 4 * 16 * 128).view(2, 4, 16, 128).bfloat16()
    for one in (
        whole[..., ::8],
        whole.transpose(2, 3),
        whole[:1, :1, :1, :1].expand(2, 4, 16, 128),
        whole[..., 1:65],
    ):
        assert not fits_descriptor(one)
        assert fits_descriptor(for_descriptor(one)) and torch.equal(for_descriptor(one), one)
    assert for_descriptor(whole[:, ::2, 3:, :64]).data_ptr() == whole[:, :, 3:].data_ptr()


def test_ranks_without_rows_have_no_backward():
    torch = pytest.importorskip("torch")
    group = sy.Group(0, 4, None, "host")
    with pytest.raises(ValueError, match="takes rows on every rank; of 3 the ranks hold 0, 1, 1, 1"):
        sy.ops.AttentionBackward(1, 4, 2, 3, 16, torch.bfloat16, group, kind="ring", even=True)


@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses_ring", "ulysses"])
def test_parts_of_heads_are_of_the_backward_but_where_groups_exchange_them(kind):
    torch = pytest.importorskip("torch")
    options = {"kind": kind, "inner": 2 if kind == "ulysses_ring" else 0, "even": True}
    shape = (1, 16, 16, 256, 16, torch.bfloat16, sy.Group(0, 4, None, "host"))
    whole, made = (
        sy.ops.AttentionBackward(*shape, **options, parts=parts).plan.to_json() for parts in (1, 2)
    )
    assert (whole == made) == (kind == "ulysses_ring")
    with pytest.raises(ValueError, match="parts: of a kind that you name"):
        sy.ops.AttentionBackward(*shape, even=True, parts=2)


def test_a_backward_does_not_rank_the_kinds_of_the_forward(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(
        sy._syncopate, "choose_attention", lambda *_: pytest.fail("ranks the forward's kinds")
    )
    op = sy.ops.AttentionBackward(1, 4, 4, 256, 16, torch.bfloat16, sy.Group(0, 4, None, "host"), causal=True)
    assert op.kind in ("all_gather", "ring", "double_ring", "ulysses") and op.why_kind


def train(run, ranks: int, *checks: str, steps: int = 3) -> None:
    outcome = run(sys.executable, HERE / "host_training.py", ranks, *checks, SYNCOPATE_STEPS=str(steps))
    assert outcome.code == 0, outcome.out + outcome.err
    assert f"ok: {len(checks)} checks" in outcome.out


def test_a_model_of_torchs_attention_trains_on_sharded_sequences(run):
    train(run, 2, "losses", "options", "evaluated", "unequal")


def test_torchs_attention_is_taken_by_whatever_name_it_is_called(run):
    train(run, 2, "named")


def test_what_the_call_in_torchs_place_is_given_is_taken_as_torch_takes_it(run):
    train(run, 2, "arguments")


def test_a_backward_of_another_kind_than_the_forward_says_so(run):
    train(run, 2, "chosen")


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
