"""How `syncopate bench attention` shows what it has measured: one line a shape, all times in µs.

date, gpus, gpu, ranks, mask, rows, H, HKV, D    `rows` of the sequence on each rank
kind, sharding, sdpa                             what ours chose, and the back end that torch took
best, vs_best                                    the best peer, and how many times as fast ours is
exposed                                          the part of `ours` in which its kernel does not run
times                                            each row, NAME=µs, with spaces between them
"""

from __future__ import annotations

from typing import Any

from .table import Form, machine_words, measured, packed, ratio

COLUMNS = [
    "date", "gpus", "gpu", "ranks", "mask", "rows", "H", "HKV", "D", "kind", "sharding", "sdpa", "best", "vs_best",
    "exposed", "times", "versions",
]  # fmt: skip


def lines_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        machine_words(report)
        | {name: entry[name] for name in ("mask", "H", "HKV", "D", "kind", "sharding", "sdpa")}
        | {name: ratio(name, "{:.3f}")(entry) for name in ("vs_best", "exposed")}
        | {
            "rows": entry["rows_a_rank"],
            "best": entry.get("best", ""),
            "times": packed({name: times["hidden_us"] for name, times in entry["rows"].items()}),
        }
        for entry in measured(report)
    ]


OF_ATTENTION = Form(
    title=lambda entry: f"Attention, {entry['mask']}",
    keys={"rows a rank": "rows_a_rank", "H": "H", "HKV": "HKV", "D": "D"},
    x="rows_a_rank",
    x_label="rows of the sequence a rank",
    series=lambda entry: f"H = {entry['H']}, HKV = {entry['HKV']}, D = {entry['D']}",
    lines=lines_of,
    columns=COLUMNS,
    more={"kind": ratio("kind", "{}"), "SDPA by": ratio("sdpa", "{}"), "exposed": ratio("exposed", "{:.3f}")},
)
