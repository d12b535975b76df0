"""A winner of the store that is legal but does not run: the default strategy stands in for it, on all ranks."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent
RANKS = 2
#: Of the product.
COLUMNS = (32, 96, 128)


def test_a_winner_that_does_not_run_gives_way_to_the_default_on_all_ranks(run, syncopate, tmp_path):
    from syncopate.strategy.store_scope import scope

    def winner(columns: int) -> dict:
        tile = {"block_m": 32, "block_n": 32, "block_k": 32, "stages": 2, "precision": "ieee"}
        return {
            **scope("host"),
            "family": f"matmul_reduce_scatter:N={columns},K=32,dtype=fp16",
            "rows": 64,
            "ranks": RANKS,
            "strategy": {"tiles": [tile], "split": 2},
            **dict.fromkeys(("us", "default_us", "unfused_us"), 1.0),
            "when": 1,
            "trials": [],
        }

    file = tmp_path / "winners.json"
    results = [winner(columns) for columns in COLUMNS]
    file.write_text(json.dumps({"schema": "syncopate.tuning/1", "results": results}))
    cache = {"SYNCOPATE_CACHE_DIR": str(tmp_path), "SYNCOPATE_TUNE": "read"}
    assert syncopate("tune", "--import", file, **cache).out == "3 of 3 results are new here\n"
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parents[1] / "python"), **cache}
    outcome = run(sys.executable, HERE / "host_found.py", RANKS, *COLUMNS, **environment)
    assert outcome.code == 0, outcome.out + outcome.err


def test_a_mixtures_winner_that_does_not_run_gives_way_to_the_default_on_all_ranks(run, syncopate, tmp_path):
    from syncopate.strategy.store_scope import scope

    experts = (2, 4, 6, 8)

    def winner(count: int) -> dict:
        tile = {"block_m": 32, "block_n": 32, "block_k": 32, "stages": 1, "precision": "ieee"}
        return {
            **scope("host"),
            "family": f"moe:T=5,E={count},topk=2,H=24,F=20,bound=0,dtype=fp32",
            "rows": 0,
            "ranks": RANKS,
            "strategy": {"tiles": [tile], "programs": 3} | ({"split": 2} if count == experts[-1] else {}),
            **dict.fromkeys(("us", "default_us", "unfused_us"), 1.0),
            "when": 1,
            "trials": [],
        }

    file = tmp_path / "winners.json"
    file.write_text(json.dumps({"schema": "syncopate.tuning/1", "results": [*map(winner, experts)]}))
    cache = {"SYNCOPATE_CACHE_DIR": str(tmp_path), "SYNCOPATE_TUNE": "read"}
    assert syncopate("tune", "--import", file, **cache).out == "4 of 4 results are new here\n"
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parents[1] / "python"), **cache}
    outcome = run(sys.executable, HERE / "host_found_moe.py", RANKS, *experts, **environment)
    assert outcome.code == 0, outcome.out + outcome.err


def test_attentions_winner_that_does_not_run_gives_way_to_another_kind_on_all_ranks(run, syncopate, tmp_path):
    from syncopate.strategy.store_scope import scope

    heads = {2: 128, 4: 128, 6: 128, 8: 128, 10: 16}  # and rows of all ranks

    def winner(count: int) -> dict:
        return {
            **scope("host"),
            "family": f"attention:B=1,H={count},HKV={count},D=16,causal=0,dtype=bf16",
            "rows": heads[count],
            "ranks": RANKS,
            "strategy": {"kind": "ring", "split": 2 if heads[count] == 128 else 1},
            **dict.fromkeys(("us", "default_us", "unfused_us"), 1.0),
            "when": 1,
            "trials": [],
        }

    file = tmp_path / "winners.json"
    file.write_text(json.dumps({"schema": "syncopate.tuning/1", "results": [*map(winner, heads)]}))
    cache = {"SYNCOPATE_CACHE_DIR": str(tmp_path), "SYNCOPATE_TUNE": "read"}
    assert syncopate("tune", "--import", file, **cache).out == "5 of 5 results are new here\n"
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parents[1] / "python"), **cache}
    outcome = run(sys.executable, HERE / "host_found_attention.py", RANKS, *heads, **environment)
    assert outcome.code == 0, outcome.out + outcome.err
