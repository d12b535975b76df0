"""What JAX prints today is imported: collectives, the products beside them, rings by hand, and the user's lines."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import HUNG, ROOT

if (ROOT / ".venv" / ".borrowed").exists():
    pytest.importorskip("jax", reason="no jax among the borrowed packages: no network is asked for it")

pytestmark = pytest.mark.xdist_group("jax")  # which prints for all of them at once

SCRIPT = Path(__file__).with_name("jax_programs.py")


@dataclass
class Found:
    """A collective: its kind ("… (loop)" for a ring that amounts to one), its operator, one line for each dot, what it says
    of why it has none, and lines of jax_programs.py that it names, by their comments."""

    kind: str
    operator: str = ""
    dots: list[str] = field(default_factory=list)
    why: str = ""
    at: str = ""
    dot_at: str = ""


AG, RS, AR, A2A = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"


def rows_of_a_ring(rows: int = 128, width: int = 64, columns: int = 64) -> Found:
    dot = f"feeds lhs axis 0 rows M={rows} N={columns} K={width}"
    return Found(f"{AG} (loop)", "AG-GEMM", [dot], at="passed on")


RING = rows_of_a_ring()
RING_AT = Found(RING.kind, RING.operator, RING.dots, at="passed on", dot_at="product of the ring")

# What the partitioner makes; the text before it, StableHLO, says only how things are sharded.
PARTITIONED = {
    "mlp_tensor_parallel": [
        Found(AR, "GEMM-AR", ["drains result axis -1 unknown M=128 N=64 K=64"], dot_at="out of"),
    ],
    "mlp_sequence_parallel": [
        Found(AG, "AG-GEMM", ["feeds lhs axis 0 rows M=128 N=64 K=64"], dot_at="into"),
        Found(AR, "GEMM-AR", ["drains result axis -1 unknown M=128 N=64 K=64"], dot_at="out of"),
    ],
    "mlp_weights_gathered": [
        Found(AG, "AG-GEMM", ["feeds rhs axis 0 contracted M=32 N=256 K=64"], at="into", dot_at="into"),
        Found(AG, "AG-GEMM", ["feeds rhs axis 0 contracted M=32 N=64 K=256"], at="out of", dot_at="out of"),
    ],
    "attention_by_heads": [
        Found(AR, "GEMM-AR", ["drains result axis -1 unknown M=64 N=64 K=16"], dot_at="out of attention"),
    ],
}
# In both texts.
BY_HAND = {
    "gathered": Found(
        AG, "AG-GEMM", ["feeds lhs axis 0 rows M=128 N=64 K=64"], at="gather", dot_at="product"
    ),
    "scattered": Found(
        RS, "GEMM-RS", ["drains result axis 0 rows M=128 N=256 K=16"], at="scatter", dot_at="product"
    ),
    "reduced": Found(AR, "GEMM-AR", ["drains result axis -1 unknown M=128 N=256 K=16"]),
    "biased": Found(AR, why="drains no dot: "),
    "permuted_nowhere": Found("collective-permute", why="moves nothing: it has no pairs"),
    "ring_forward": RING_AT,
    "ring_backward": RING_AT,
    "ring_masked": RING_AT,
    "ring_wrapped": RING_AT,
    "ring_of_a_table": RING_AT,
    "ring_of_a_scan": RING,
    "ring_that_counts_along": RING,
    "ring_contracted": Found(
        f"{AG} (loop)", "AG-GEMM", ["feeds lhs axis 1 contracted M=128 N=64 K=64"], at="passed on"
    ),
    "ring_scattered": Found(f"{RS} (loop)", "GEMM-RS", ["drains result axis 0 rows M=128 N=256 K=16"]),
    "ring_unfinished": Found(
        "collective-permute", why="is no gather or reduce-scatter: its 3 steps are no whole"
    ),
    "ring_by_data": Found("collective-permute", why="puts a product where "),
}


def printed(folder: Path, names: list[str], devices: int = 4) -> Path:
    words = [sys.executable, SCRIPT, str(devices), folder, *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HUNG)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    names = [*PARTITIONED, *BY_HAND, "exchanged", "recomputed", "training_step"]
    return printed(tmp_path_factory.mktemp("jax"), names)


def listed(syncopate, file: Path) -> list[dict]:
    """Its candidates, of each of which a plan is made and checked if one can be."""
    outcome = syncopate("plan", "import", file, "--list", "--json")
    assert outcome.code == 0, outcome.err
    candidates = json.loads(outcome.out)["candidates"]
    for candidate in candidates:
        assert candidate["problem"] == "", candidate
        made = syncopate(
            "plan", "import", file, "--pick", candidate["number"], "-o", file.parent / "plan.json"
        )
        assert (made.code, made.err) == (0, "") or "warning" in made.err, made.err
        assert "no findings" in made.out
    return candidates


def text_of(dot: dict) -> str:
    verb = "feeds" if dot["feeds"] else "drains"
    sizes = f"M={dot['M']} N={dot['N']} K={dot['K']}"
    return f"{verb} {dot['side']} axis {dot['axis']} {dot['role']} {sizes}"


def lines_of(comment: str) -> list[str]:
    lines = SCRIPT.read_text().splitlines()
    return [f"{SCRIPT}:{at}" for at, line in enumerate(lines, 1) if line.endswith(f"  # {comment}")]


def check(candidate: dict, expected: Found, has_lines: bool) -> None:
    dots = candidate["exchanges"][0]["dots"]
    assert candidate["kind"] + (" (loop)" if candidate["windowed"] else "") == expected.kind
    assert candidate["operator"] == expected.operator, candidate
    assert [text_of(dot) for dot in dots] == expected.dots
    why = " ".join(candidate["why"])
    assert expected.why in why and bool(why) == bool(expected.why), why
    if has_lines and expected.at:
        assert candidate["source"] in lines_of(expected.at)
    if has_lines and expected.dot_at:
        assert dots[0]["source"] in lines_of(expected.dot_at)


@pytest.mark.parametrize("name", PARTITIONED)
def test_what_the_partitioner_makes_of_shardings_is_listed(texts, syncopate, name):
    candidates = listed(syncopate, texts / f"{name}.hlo")
    assert len(candidates) == len(PARTITIONED[name])
    for candidate, expected in zip(candidates, PARTITIONED[name], strict=True):
        check(candidate, expected, has_lines=True)
    assert listed(syncopate, texts / f"{name}.mlir") == []


@pytest.mark.parametrize("text", ["hlo", "mlir", "debug.mlir"])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_collective_or_ring_by_hand_is_seen_in_both_texts(texts, syncopate, name, text):
    (candidate,) = [
        c for c in listed(syncopate, texts / f"{name}.{text}") if c["exchanges"][0]["before"][-2:] != "[]"
    ]
    check(candidate, BY_HAND[name], has_lines=text != "mlir")


def test_an_exchange_feeds_its_product_and_says_what_is_between(texts, syncopate):
    (stable,) = listed(syncopate, texts / "exchanged.mlir")
    check(stable, Found(A2A, "A2A-GEMM", ["feeds lhs axis 0 rows M=128 N=256 K=16"]), has_lines=False)
    (compiled,) = listed(syncopate, texts / "exchanged.hlo")
    assert (compiled["kind"], compiled["operator"]) == (A2A, "A2A-GEMM")


def test_what_a_backward_pass_computes_again_is_seen_behind_its_barrier(texts, syncopate):
    for text in ("hlo", "mlir"):
        candidates = listed(syncopate, texts / f"recomputed.{text}")
        assert {c["operator"] for c in candidates} >= {"AG-GEMM", "GEMM-RS"}, text
    assert "optimization_barrier" in (texts / "recomputed.mlir").read_text()


def test_the_collectives_of_a_training_step_run_in_groups_of_the_mesh(texts, syncopate):
    candidates = listed(syncopate, texts / "training_step.hlo")
    operators = [c["operator"] for c in candidates]
    assert operators.count("GEMM-AR") >= 2, operators
    assert {tuple(map(tuple, c["groups"])) for c in candidates} >= {((0, 1), (2, 3)), ((0, 2), (1, 3))}


def test_a_run_of_the_listed_operator_is_named(texts, syncopate):
    (candidate,) = listed(syncopate, texts / "ring_forward.hlo")
    assert candidate["spec"] == "all_gather_matmul:M=128,N=64,K=64,dtype=fp32"


@pytest.mark.sweep
@pytest.mark.parametrize("devices", [2, 8])
def test_rings_of_other_sizes_are_seen(tmp_path, syncopate, devices):
    names = [name for name, found in BY_HAND.items() if found.kind.endswith("(loop)")]
    folder = printed(tmp_path, names, devices)
    for name in names:
        expected = BY_HAND.get(name, RING)
        for text in ("hlo", "mlir"):
            kinds = [
                c["kind"] + (" (loop)" if c["windowed"] else "")
                for c in listed(syncopate, folder / f"{name}.{text}")
            ]
            assert expected.kind in kinds, (name, text)
