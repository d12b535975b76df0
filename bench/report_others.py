"""The tables of bench/report.py that come from files of their own in bench/results: attention, layers, chains, ablations."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

import results
from syncopate.bench.table import TITLES, markdown_table, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

PEERS = ("unfused", "async_tp", "two_shot", "one_shot")


def lines_of(name: str) -> list[dict[str, str]]:
    """Of a file in bench/results, without its comments."""
    text = (results.RESULTS / name).read_text().splitlines()
    return list(csv.DictReader(line for line in text if not line.startswith("#")))


def last(lines: Iterable[dict[str, str]], *keys: str) -> dict[tuple[str, ...], dict[str, str]]:
    """The last line of each key."""
    return {tuple(line[key] for key in keys): line for line in lines}


def other_shapes(_: object, gpus: str, run: str = "unknown shapes") -> str:
    """Geometric means, over the best peer, of the shapes that set no figure of the machine files when they were measured."""
    groups: dict[tuple[str, str], dict[tuple[str, str, str], float]] = defaultdict(dict)
    count, _, gpu = gpus.partition("x")
    for line in results.read():
        if line["run"] == run.replace("_", " ") and line["gpus"] == count and line["gpu"].startswith(gpu):
            best = min(float(line[peer]) for peer in PEERS if line[peer])
            rows = "M ≤ 512" if int(line["M"]) <= 512 else "M > 512"
            key = (line["model"], line["M"], line["commit"])
            groups[line["operator"], rows][key] = best / float(line["ours"])
    rows = [
        [TITLES[operator], size, str(len(speeds)), f"{statistics.geometric_mean(speeds.values()):.2f}",
         f"{min(speeds.values()):.2f}"]
        for (operator, size), speeds in sorted(groups.items())
    ]  # fmt: skip
    return markdown_table(["operator", "rows", "calls", "mean", "least"], rows)


def attention(_: object, gpus: str) -> str:
    """µs of a call, and how many times as long the best peer takes."""
    found = last(lines_of(f"attention_{gpus}.csv"), "rows", "H", "HKV", "mask")
    masks = list(dict.fromkeys(mask for *_, mask in found))
    rows = []
    for size, h, hkv in sorted({key[:3] for key in found}, key=lambda key: tuple(map(int, key))):
        cells = [found.get((size, h, hkv, mask)) for mask in masks]
        shown = [
            f"{unpacked(c['times'])['ours']:.0f} ({float(c['vs_best']):.2f})" if c else "" for c in cells
        ]
        rows.append([size, f"{h}, {hkv}", *shown])
    return markdown_table(["rows a rank", "H, HKV", *masks], rows)


def layer(_: object, gpus: str) -> str:
    """A whole block compiled, over compiled with sy.inductor."""
    found = last(lines_of(f"layer_{gpus}.csv"), "model", "case", "rows")
    rows = []
    for (model, case, size), line in found.items():
        times = [line["compiled"], line["async_tp"], line["ours"]]
        gain = f"{float(line['compiled']) / float(line['ours']):.2f}" if line["compiled"] else ""
        rows.append([model, case, size, *times, gain])
    return markdown_table(["model", "case", "rows", "compiled", "async-TP", "ours", "compiled / ours"], rows)


def symm_mem(_: object, gpus: str) -> str:
    """torch's own fused operators over ours, for torchtitan's calls."""
    found = last(lines_of(f"symm_mem_{gpus}.csv"), "model", "call", "M")
    sizes = sorted({int(m) for *_, m in found})
    rows = []
    for model, call in dict.fromkeys((model, call) for model, call, _ in found):
        cells = [found.get((model, call, str(m))) for m in sizes]
        rows.append([model, f"`{call}`", *(f"{float(c['ratio']):.2f}" if c else "" for c in cells)])
    return markdown_table(["model", "call", *(f"M = {m}" for m in sizes)], rows)


def chains(_: object, gpus: str, run: str = "") -> str:
    """Two products, µs; gain: the fastest of cuBLAS, programmatic launch and Stream-K over the way that sy.fuse took."""
    lines = [line for line in lines_of(f"sync_products_{gpus}.csv") if line.get("run", "") == run]
    found = last(lines, "work", "M")
    ways = ("cublas", "stream", "programmatic", "tiles")
    rows = [
        [work, m, *(f"{float(line[way]):.0f}" if line[way] else "" for way in ways), line["way"],
         f"{float(line['gain']):.2f}"]
        for (work, m), line in sorted(found.items(), key=lambda entry: (entry[0][0], int(entry[0][1])))
    ]  # fmt: skip
    return markdown_table(
        ["work", "M", "cuBLAS", "stream order", "programmatic", "tiles", "taken", "gain"], rows
    )


def ablation(_: object, gpus: str, name: str) -> str:
    """One choice of the strategy varied, all else as chosen; µs."""
    lines = [line for line in lines_of(f"ablations_{gpus}.csv") if line["ablation"] == name]
    cases: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for line in lines:
        cases[line["operator"], line["model"], line["M"]][line["row"]] = float(line["us"])
    varied = list(dict.fromkeys(row for case in cases.values() for row in case if "=" in row))
    rows = []
    for (operator, model, m), case in cases.items():
        peer = min(us for row, us in case.items() if row in PEERS)
        cells = [f"{case[row]:.0f}" if row in case else "-" for row in varied]
        rows.append([f"`{operator}`", model, m, *cells, f"{case['ours']:.0f}", f"{peer:.0f}"])
    heads = [row.replace("kernel=gluon ", "").replace("chunking.", "") for row in varied]
    return markdown_table(["operator", "model", "M", *heads, "default", "best peer"], rows)


def nodes(_: object) -> str:
    """Estimates over nodes, µs; in brackets how many times as long NCCL and cuBLAS take, and what bounds the call."""
    found = last(lines_of("nodes.csv"), "operator", "nodes")
    counts = sorted({int(count) for _, count in found})
    rows = []
    for operator in dict.fromkeys(operator for operator, _ in found):
        cells = [found.get((operator, str(count))) for count in counts]
        shown = [
            f"{c['us']} ({float(c['pair_us']) / float(c['us']):.2f}), {c['limit']}" if c else ""
            for c in cells
        ]
        rows.append([f"`{operator}`", *shown])
    return markdown_table(["operator", *(f"{count} nodes" for count in counts)], rows)


def nodes_set_up(_: object) -> str:
    """What `fuse` takes: CPU seconds, and GB at the most."""
    found = last(lines_of("nodes_set_up.csv"), "operator", "ranks")
    counts = sorted({int(count) for _, count in found})
    rows = []
    for operator in dict.fromkeys(operator for operator, _ in found):
        cells = [found.get((operator, str(count))) for count in counts]
        shown = [f"{c['seconds']} s, {c['gb']} GB" if c else "" for c in cells]
        rows.append([f"`{operator}`", *shown])
    return markdown_table(["operator", *(f"{count} ranks" for count in counts)], rows)


KINDS = {
    "ablation": ablation,
    "attention": attention,
    "chains": chains,
    "layer": layer,
    "nodes": nodes,
    "nodes_set_up": nodes_set_up,
    "other_shapes": other_shapes,
    "symm_mem": symm_mem,
}
