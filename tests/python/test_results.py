"""Reports of benches become lines of one table, and the pages' tables say what it says."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import report  # noqa: E402
import results  # noqa: E402
from syncopate.bench import session, table  # noqa: E402


def entry(model, m, **rows):
    times = {name: {"hidden_us": us, "visible_us": us + 10} for name, us in rows.items()}
    return {"operator": "all_gather_matmul", "model": model, "M": m, "K": 4096, "N": 1792, "rows": times}


def measured(*entries):
    return {
        "machine": "2 x NVIDIA H200",
        "date": "2026-11-23",
        "torch": "2.11",
        "nccl": "2.28",
        "driver": "580",
        "command": "syncopate bench all_gather_matmul",
        "table": list(entries),
    }


def test_a_report_becomes_lines_of_the_table(tmp_path):
    path = tmp_path / "measured.csv"
    made = measured(entry("8B", 1024, cublas=20.04, async_tp=40.0, ours=30.0, variant=35.55))
    made["table"].append(
        {"operator": "all_gather_matmul", "model": "70B", "M": 1024, "error": "out of memory"}
    )
    results.append(table.lines_of(made, commit="abc1234"), path)
    results.append(table.lines_of(made, run="again"), path)
    first, second = results.read(path)
    assert (first["operator"], first["gpus"], first["gpu"], first["commit"]) == (
        "ag_gemm",
        "2",
        "H200",
        "abc1234",
    )
    assert (first["cublas"], first["async_tp"], first["ours"], first["unfused"]) == (
        "20.0",
        "40.0",
        "30.0",
        "",
    )
    assert table.unpacked(first["other"]) == {"variant": 35.5}
    assert table.unpacked(first["visible"])["cublas"] == 30.0
    assert (second["run"], second["command"]) == ("again", "syncopate bench all_gather_matmul")


def test_a_command_is_kept_without_the_files_that_it_writes(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/syncopate/bench/__main__.py"])
    given = ["matmul_all_reduce", "--json", "/tmp/a.json", "--tokens", "64", "--csv=/tmp/a.csv", "--few"]
    assert session.what_was_run(given) == "syncopate bench matmul_all_reduce --tokens 64 --few"


def test_packed_names_may_hold_equals_signs():
    assert table.unpacked(table.packed({"p=16": 2.0, "e4:1": 3.5})) == {"p=16": 2.0, "e4:1": 3.5}


def test_a_written_report_reads_back_with_a_line_for_each_entry(tmp_path):
    path = tmp_path / "report.json"
    made = measured(entry("8B", 1024, cublas=20.0), entry("8B", 4096, cublas=80.12345))
    table.write_report(made, path)
    assert json.loads(path.read_text())["table"][1]["rows"]["cublas"]["hidden_us"] == 80.123
    assert len(path.read_text().splitlines()) < 14


def test_the_last_run_without_a_name_counts(tmp_path):
    path = tmp_path / "measured.csv"
    before, now, other = (
        measured(entry("8B", 1024, unfused=60.0, **rows))
        for rows in ({"ours": 50.0}, {"async_tp": 45.0, "ours": 40.0}, {"ours": 99.0})
    )
    for made, run in ((before, ""), (now, ""), (other, "other cuts")):
        results.append(table.lines_of(made, run=run), path)
    (shape,) = report.latest(results.read(path)).values()
    assert (shape.ours, shape.best, shape.speed) == (40.0, 45.0, 1.125)


@pytest.mark.parametrize("page", report.PAGES)
def test_the_tables_of_a_page_are_those_of_the_data(page):
    text = (ROOT / page).read_text()
    assert report.BLOCK.search(text)
    assert report.rewritten(text, report.latest(results.read())) == text
