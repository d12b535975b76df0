"""Every benchmark of operators runs on two host ranks, small: its rows are right, and what fails does not lose the rest."""

import gzip
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
BENCH = Path(__file__).resolve().parents[2] / "bench"


def launch(run, name, *arguments):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return run(*torchrun, BENCH / name / f"{name}.py", "--local-ranks", "8", *arguments)


@pytest.mark.parametrize(
    ("name", "operators", "rows"),
    [
        ("ag_gemm", 1, {"mm", "triton", "ag", "nccl+mm", "ours", "ours-x", "graph"}),
        ("gemm_rs", 1, {"mm", "triton", "rs", "mm+nccl", "ours", "graph", "[2]", "after:2", "beside:2:2"}),
        (
            "gemm_ar",
            1,
            {"mm", "triton", "ar", "mm+nccl", "mm+nccl-e", "ours", "graph", "[2]", "after:2", "beside:2:2"},
        ),
        ("a2a_gemm", 2, {"mm", "triton", "a2a", "nccl", "nccl-e", "ours", "graph", "[2]"}),
    ],
)
def test_bench_measures_its_rows_and_names_what_it_leaves_out(name, operators, rows, run, tmp_path):
    report = tmp_path / "report.json"
    more = ["--splits", "2"] if "[2]" in rows else []
    if ways := sorted(row for row in rows if ":" in row):
        more += ["--ways", ",".join(ways)]
    outcome = launch(run, name, "--shapes", "8B", "--tokens", "1024", *more, "--json", report)
    assert outcome.code == 0, outcome.out + outcome.err
    table = json.loads(report.read_text())["table"]
    assert len(table) == operators
    for entry in table:
        copied = {"copied"} if entry["operator"] in ("GEMM + all-to-all", "GEMM + all-reduce") else set()
        assert set(entry["rows"]) == rows | copied
        assert "local" in entry["left_out"]  # there is no compiled kernel on the host
        ratio = entry["rows"][_unfused(rows)]["hidden_us"] / entry["rows"]["graph"]["hidden_us"]
        assert entry["vs_unfused"] == pytest.approx(ratio, abs=1e-3)


def _unfused(rows):
    return next(name for name in ("nccl+mm", "mm+nccl", "nccl") if name in rows)


@pytest.mark.parametrize("ranks", [2, 4])
def test_emulated_ranks_sum_what_as_many_would(ranks, run, tmp_path):
    report = tmp_path / "report.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    bench = [*torchrun, BENCH / "gemm_rs" / "emulated.py", "--ranks", str(ranks), "--local-ranks", "8"]
    ways = ["fused:2", "mixed:1", "pulled_last:1", "inline"]
    outcome = run(*bench, "--shapes", "8B", "--tokens", "8192", "--ways", ",".join(ways), "--json", report)
    assert outcome.code == 0, outcome.out + outcome.err
    (entry,) = json.loads(report.read_text())["table"]
    assert entry.keys() >= {"way", "rows"}
    assert set(entry["rows"]) == {"mm", "default", *ways}
    refused = run(*bench, "--ways", f"mixed:{ranks}")
    assert refused.code != 0
    assert f"there are {ranks - 1} contributions" in refused.err


def test_a_shape_that_fails_is_reported_and_the_next_ones_are_tried(run, tmp_path):
    report = tmp_path / "report.json"
    outcome = launch(run, "ag_gemm", "--shapes", "8B", "--chunkings", "0x1", "--json", report)
    assert outcome.code == 1
    table = json.loads(report.read_text())["table"]
    assert [entry["M"] for entry in table] == [32, 128, 256], outcome.out + outcome.err
    assert all("split" in entry["error"] for entry in table)
    assert outcome.out.count("FAILED") == 3


def test_the_table_of_backends_gives_times_and_reasons(run, tmp_path):
    report = tmp_path / "report.json"
    outcome = launch(
        run, "backends", "--shapes", "8B", "--sms", "8", "--operators", "ag_gemm,gemm_rs", "--json", report
    )
    assert outcome.code == 0, outcome.out + outcome.err
    table = json.loads(report.read_text())["table"]
    measured = {(e["operator"], e["backend"]) for e in table if "us" in e}
    backends = ("unfused", "host", "tma_dedicated", "ldst_dedicated")
    expected = {(o, b) for o in ("ag_gemm", "gemm_rs") for b in backends}
    assert measured == expected | {("ag_gemm", "tma_inline"), ("gemm_rs", "tma_inline")}
    refused = {e["backend"]: e["refused"] for e in table if e["operator"] == "gemm_rs" and "refused" in e}
    assert "instead" in refused["copy_engine"]
    assert "| gemm_rs | 8B 256 |" in outcome.out


def test_schedules_without_gpus_are_compared_with_those_before(run, tmp_path):
    command = [
        sys.executable,
        BENCH / "schedules.py",
        "--operators",
        "gemm_rs,feed_forward",
        "--shapes",
        "8B",
    ]
    command += ["--tokens", "1024", "--ranks", "2"]
    dumped = run(*command, "--dump", tmp_path)
    assert dumped.code == 0, dumped.err
    cases = dumped.out.splitlines()
    assert len(cases) == 2
    assert (tmp_path / "index.txt").read_text().splitlines() == cases
    same = run(*command, "--compare", tmp_path)
    assert same.code == 0, same.out + same.err
    assert same.out.splitlines()[:2] == cases
    file = tmp_path / "gemm_rs_8B_1024x4096x1792_2.json.gz"
    reference = json.loads(gzip.decompress(file.read_bytes()))
    reference["schedule"]["ranks"][1]["transfers"][0]["backend"] = "none_such"
    reference["launch"]["gone"] = 1
    file.write_bytes(gzip.compress(json.dumps(reference).encode()))
    (tmp_path / "feed_forward_8B_1024x1792x4096_2.json.gz").unlink()
    other = run(*command, "--compare", tmp_path, "--ignore", "gone")
    assert other.code == 1
    assert 'schedule.ranks[1].transfers[0].backend: "none_such" -> ' in other.out
    assert "1 cases differ at schedule.ranks[].transfers[].backend" in other.out
    assert other.out.endswith("cases that differ, of 2: schedule 1, launch 0, source 0, missing 1\n")
