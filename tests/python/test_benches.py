"""`syncopate bench` runs on two host ranks, small: its rows are right, and what fails does not lose the rest."""

import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
from csv import DictReader
from pathlib import Path

import pytest
from conftest import BINARY, HUNG, SWEEP, warm_python

pytest.importorskip("triton")

from syncopate import InputError  # noqa: E402
from syncopate.bench import table  # noqa: E402

BENCH = Path(__file__).resolve().parents[2] / "bench"
PARTS = {"cublas", "collective", "triton", "unfused", "unfused_eager", "ours", "ours_eager", "ours_elsewhere"}


@pytest.mark.parametrize(
    ("operator", "vary", "more"),
    [
        ("all_gather_matmul", "chunking.rows=2", {"async_tp"}),
        ("matmul_reduce_scatter", "split=2", {"async_tp"}),
        ("matmul_all_reduce", "split=2", {"one_shot", "two_shot"}),
        ("all_to_all_matmul", "chunking.rows=2", set()),
        ("matmul_all_to_all", "split=2", set()),
        ("feed_forward", "split=2", set()),
        ("mlp_chain", "tiles.stages=3", set()),
    ],
)
def test_bench_measures_its_rows_and_names_what_it_leaves_out(operator, vary, more, syncopate, tmp_path):
    report, csv, page = tmp_path / "report.json", tmp_path / "lines.csv", tmp_path / "page.md"
    outcome = syncopate(
        "bench", operator, "--shapes", "8B", "--tokens", "1024", "--vary", vary,
        "--json", report, "--csv", csv, "--markdown", page,
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    (entry,) = json.loads(report.read_text())["table"]
    known = PARTS - ({"triton"} if operator == "feed_forward" else set())
    if operator == "mlp_chain":
        known = PARTS - {"triton", "collective"} | {"stream"}
    assert set(entry["rows"]) == known | {vary}
    assert {"alone", *more} == set(
        entry["left_out"]
    )  # host ranks have no compiled kernel, and no symmetric memory
    rows = {name: row["hidden_us"] for name, row in entry["rows"].items()}
    assert entry["best"] == "unfused"
    assert entry["vs_best"] == pytest.approx(rows["unfused"] / rows["ours"], abs=1e-3)
    (line,) = list(DictReader(csv.open()))
    assert float(line["ours"]) == pytest.approx(rows["ours"], abs=0.06)
    assert f"{vary}=" in line["other"]
    assert json.loads(line["strategies"]) == entry["strategies"]
    assert set(entry["strategies"]) == {"ours", vary}
    assert all(strategy["tiles"] for strategy in entry["strategies"].values()), "they can be taken again"
    assert f"| 8B | {entry['M']} |" in page.read_text()
    assert "without alone: there is no compiled kernel on the host" in outcome.out


def test_bench_measures_calls_in_a_row_as_graphs_of_one_operator(syncopate, tmp_path):
    report = tmp_path / "report.json"
    words = [
        "matmul_reduce_scatter",
        "--shapes",
        "8B",
        "--tokens",
        "1024",
        "--back-to-back",
        "--json",
        report,
    ]
    outcome = syncopate("bench", *words)
    assert outcome.code == 0, outcome.out + outcome.err
    (entry,) = json.loads(report.read_text())["table"]
    assert set(entry["rows"]) == {"cublas", "unfused", "ours"}, "no eager rows and no parts"


def test_bench_measures_calls_in_a_row_from_the_host_by_torchs_op(syncopate, tmp_path):
    report = tmp_path / "report.json"
    words = ["matmul_all_reduce", "all_gather_matmul", "--shapes", "8B", "--tokens", "1024"]
    outcome = syncopate("bench", *words, "--eager", "--json", report)
    assert outcome.code == 0, outcome.out + outcome.err
    for entry in json.loads(report.read_text())["table"]:
        assert set(entry["rows"]) == {"unfused", "ours"}, "no parts"
        assert all(set(row) == {"visible_us"} for row in entry["rows"].values()), "nothing hides the host"
        rows = {name: row["visible_us"] for name, row in entry["rows"].items()}
        assert entry["vs_best"] == pytest.approx(rows["unfused"] / rows["ours"], abs=1e-3)
    outcome = syncopate("bench", *words, "--eager", "--few")
    assert (outcome.code, "--eager" in outcome.err) == (2, True)


@pytest.mark.parametrize("lines", [0, 1])
def test_a_bench_that_nobody_reads_ends_quietly(lines):
    """Its rank 0 prints lines while it measures, the command the tables; whichever is the next."""
    words = ["bench", "all_gather_matmul", "--shapes", "8B", "--tokens", "64,128", "--few"]
    process = subprocess.Popen(
        [str(BINARY), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SYNCOPATE_PYTHON": warm_python()},
    )  # fmt: skip
    for _ in range(lines):
        assert process.stdout.readline().startswith("all_gather_matmul")
    process.stdout.close()
    assert (process.stderr.read(), process.wait(HUNG)) == ("", 128 + signal.SIGPIPE)


def test_bench_of_attention_finds_ours_and_its_peers_right_and_says_what_it_leaves_out(syncopate, tmp_path):
    report, lines, page, plot = (tmp_path / f"attention.{end}" for end in ("json", "csv", "md", "svg"))
    command = ["bench", "attention", "--rows=2048", "--heads=4", "--kv-heads=2", "--vary=kind=ring"]
    outcome = syncopate(
        *command, "--masks=full,causal,documents", f"--json={report}", f"--csv={lines}", f"--markdown={page}",
        f"--plot={plot}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    full, causal, documents = json.loads(report.read_text())["table"]
    for entry in (full, causal, documents):
        assert set(entry["rows"]) == {
            "ours", "ours_eager", "sdpa", "gather", "nccl_sdpa", "ulysses_sdpa", "kind=ring",
        }  # fmt: skip
        assert entry["best"] in ("nccl_sdpa", "ulysses_sdpa")
        left_out = {
            "kernel", "ours_gluon", "cp_allgather", "cp_alltoall", "fa4", "nccl_cudnn", "nccl_ours",
        }  # fmt: skip
        assert set(entry["left_out"]) - {"fa4"} == left_out - {"fa4"}
        assert entry["sdpa"] == "math on the host"
    shardings = [entry["sharding"] for entry in (full, causal, documents)]
    assert shardings == ["contiguous", "zigzag", "documents"]
    read = list(DictReader(lines.open()))
    assert [line["mask"] for line in read] == ["full", "causal", "documents"]
    for line, entry in zip(read, (full, causal, documents), strict=True):
        times = dict(item.rsplit("=", 1) for item in line["times"].split())
        assert set(times) == set(entry["rows"]) and line["best"] == entry["best"]
        assert float(times["ours"]) == pytest.approx(entry["rows"]["ours"]["hidden_us"], abs=0.1)
    assert "## Attention, documents" in page.read_text()
    assert "without kernel: there is no compiled kernel on the host" in page.read_text()
    assert plot.read_text().lstrip().startswith("<?xml")
    for told in (plot, page):
        assert "these times mean nothing" in told.read_text()
    assert "FAILED" not in outcome.out and "is wrong" not in outcome.out


def test_bench_of_attention_refuses_what_it_does_not_know(syncopate):
    for wrong, why in (
        ("--masks=half", "expected some of full, causal, documents"),
        ("--vary=split=2", "expected kind=K1,K2"),
        ("--rows=1k", "expected whole numbers"),
        ("--ranks=-1", "--ranks: -1: expected a whole number"),
    ):
        outcome = syncopate("bench", "attention", wrong)
        assert outcome.code == 2 and why in outcome.err, outcome.err


def test_a_peer_is_one_small_file_and_any_width_is_a_shape(syncopate, tmp_path):
    peer = tmp_path / "twice.py"
    peer.write_text(
        "OPERATORS = ('matmul_all_reduce',)\n"
        "def make(case):\n"
        "    def call(i):\n"
        "        case.unfused(i)\n"
        "        return case.unfused(i)\n"
        "    return call\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def make(case):\n    return lambda i: case.unfused(i).mul_(2)\n")
    report, plot = tmp_path / "report.json", tmp_path / "speed.svg"
    outcome = syncopate(
        "bench", "matmul_all_reduce", "--shapes", "2048x5120", "--tokens", "512,1024", "--few",
        "--peer", peer, "--peer", wrong, "--json", report, "--plot", plot,
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    table = json.loads(report.read_text())["table"]
    assert [(entry["M"], entry["N"], entry["K"]) for entry in table] == [(16, 64, 16), (32, 64, 16)]
    for entry in table:
        assert set(entry["rows"]) == {"ours", "cublas", "unfused", "twice"}
        assert set(entry["speed"]) == {"unfused", "twice"}
        assert "relative error" in entry["left_out"]["wrong"]
    assert "<svg" in plot.read_text() and "these times mean nothing" in plot.read_text()


def test_a_backend_that_the_compiler_does_not_take_is_left_out(syncopate, tmp_path):
    report = tmp_path / "report.json"
    outcome = syncopate(
        "bench", "all_gather_matmul", "--shapes", "8B", "--tokens", "1024", "--few",
        "--vary", "backend=host,tma_dedicated,copy_engine", "--vary", "engine_blocks=4", "--json", report,
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    (entry,) = json.loads(report.read_text())["table"]
    assert {"backend=host,engine_blocks=4", "backend=tma_dedicated,engine_blocks=4"} <= set(entry["rows"])
    assert entry["left_out"]["backend=copy_engine,engine_blocks=4"]


@pytest.mark.parametrize("scales", ["", "row", "block"])
def test_bench_of_fp8_finds_ours_right_by_exact_products(scales, syncopate, tmp_path):
    report, csv = tmp_path / "report.json", tmp_path / "lines.csv"
    outcome = syncopate(
        "bench", "all_gather_matmul", "matmul_reduce_scatter", "--dtype", "fp8e4m3", "--scales", scales,
        "--shapes", "8B", "--tokens", "1024", "--few", "--json", report, "--csv", csv,
    )  # fmt: skip
    assert outcome.code == 0, outcome.out + outcome.err
    for entry in json.loads(report.read_text())["table"]:
        missing = {"async_tp"} | ({"cublas", "unfused"} if scales == "block" else set())
        assert set(entry["left_out"]) == missing
        assert set(entry["rows"]) == {"ours", "cublas", "unfused"} - missing
    assert {line["run"] for line in DictReader(csv.open())} == {f"fp8e4m3 {scales}".strip()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "fp4"], "--dtype fp4: expected bf16 or fp8e4m3"),
        (["--scales", "row"], "--scales row: expected row or block, of --dtype fp8e4m3"),
        (["feed_forward", "--dtype", "fp8e4m3"], "feed_forward takes no fp8"),
        (["gemm"], "gemm: no such operator; there are all_gather_matmul"),
        (["matmul_all_reduce", "attention"], "attention: it is measured by itself"),
        (["--json", "-", "--csv", "-"], "--json and --csv: one of them can be the standard output"),
        (["moe", "--plot", "x.svg"], "unrecognized arguments: --plot"),
        (["--shapes", "7B"], "--shapes 7B: expected HIDDENxF"),
        (["--tokens", "many"], "--tokens many: expected whole numbers"),
        (["--ranks", "-1"], "argument --ranks: -1: expected a whole number of at least 1"),
        (["--scale", "0"], "argument --scale: 0: expected a whole number of at least 1"),
        (["--shapes", "0x64"], "--shapes 0x64: expected HIDDENxF"),
        (["--plot", "/tmp"], "--plot /tmp: is a folder"),
        (["--plot", "x.gif"], "--plot x.gif: expected FILE.svg or FILE.png or FILE.pdf"),
        (["--json", "nowhere/x.json"], "--json nowhere/x.json: no such folder"),
        (["--local-ranks", "0"], "argument --local-ranks: 0: expected a whole number of at least 1"),
        (["--vary", "split"], "--vary split: expected KEY=VALUE"),
        (["--vary", "spilt=2"], "--vary spilt=2: the strategy has an unknown key"),
        (["--peer", "nowhere.py"], "--peer nowhere.py: no such Python file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(words, message, syncopate):
    outcome = syncopate("bench", *words)
    assert outcome.code == 2
    assert f"error: {message}" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_shape_that_fails_is_reported_and_the_next_ones_are_tried(syncopate, tmp_path):
    report = tmp_path / "report.json"
    words = ["--shapes", "8B", "--tokens", "512,1024", "--few", "--peer", tmp_path / "broken.py"]
    (tmp_path / "broken.py").write_text("def make(case):\n    raise KeyError('a bug')\n")
    outcome = syncopate("bench", "matmul_all_reduce", *words, "--json", report)
    assert outcome.code == 1
    table = json.loads(report.read_text())["table"]
    assert [entry["M"] for entry in table] == [16, 32], outcome.out + outcome.err
    assert all("a bug" in entry["error"] for entry in table)
    assert outcome.out.count("| FAILED") == 2


def test_the_means_count_what_is_lost():
    entries = [{"M": 16, "vs_best": 2.0}, {"M": 16, "vs_best": 0.5}, {"M": 64, "vs_best": 1.21}]
    assert table.means(entries) == (
        "Over the best peer, geometric means: M = 16: 1.00, M = 64: 1.21; all: 1.07. Lost: 1 of 3.\n"
    )


def test_a_block_gives_the_same_results_each_way(run, tmp_path):
    report = tmp_path / "report.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    small = "--models small --rows 16 --tokens 4 --behind 8 --rounds 1 --losses 2".split()
    ways = "eager,styles,compiled,async-tp,ours" if SWEEP else "eager,styles"
    words = [*small, "--ways", ways, "--json", report]
    outcome = run(*torchrun, BENCH / "layer" / "layer.py", *words, TRITON_INTERPRET="1")
    assert outcome.code == 0, outcome.out + outcome.err
    made = json.loads(report.read_text())
    assert [(row["case"], set(row["us"])) for row in made["blocks"]] == [
        (case, set(ways.split(","))) for case in ("forward", "train", "decode")
    ]
    assert len(made["losses"]["styles"]) == 2
    if SWEEP:  # what is compiled with the pass is rewritten, in all cases
        for made in ("all_gather_matmuls of 3", "sent_matmul_backward", "matmul_all_reduce"):
            assert f"→ {made}" in outcome.out


def test_a_way_that_would_run_eagerly_is_no_compiled_one(run):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = "--models small --rows 16 --tokens= --rounds 1 --ways eager,compiled".split()
    outcome = run(
        *torchrun, BENCH / "layer" / "layer.py", *words, TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1"
    )
    assert outcome.code != 0
    assert "compiled: nothing was compiled, it would run eagerly" in outcome.err


def test_dynamos_limit_of_recompilations_is_an_error(run):
    lines = (
        f"import sys, torch; sys.path[:0] = [{str(BENCH / 'layer')!r}, {str(BENCH.parent / 'python')!r}]",
        "import layer",
        "layer.forget_graphs()",
        "torch._dynamo.config.recompile_limit = 1",
        "class Way(torch.nn.Module):",
        "    def __init__(self, by):",
        "        super().__init__()",
        "        self.by = by",
        "    def forward(self, x):",
        "        return x * self.by",
        "for by in (1.0, 2.0, 3.0):",
        "    torch.compile(Way(by), backend='eager')(torch.ones(2))",
    )
    outcome = run(sys.executable, "-c", "\n".join(lines), TRITON_INTERPRET="1")
    assert outcome.code != 0 and "recompile_limit" in outcome.err, outcome.out + outcome.err


def test_torchs_fused_operators_are_there_in_a_process_that_has_used_none():
    """Torch defines them where its symmetric memory is imported; without that a bench would leave the peer out."""
    program = """
import torch, torch.distributed as dist
from types import SimpleNamespace
from syncopate.bench.peers import async_tp
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for operator, name in (("all_gather_matmul",) * 2, ("matmul_reduce_scatter",) * 2):
    case = SimpleNamespace(device=torch.device("cuda"), dtype_of_x=torch.bfloat16, operator=operator)
    case.x = case.w = lambda i: torch.ones(8, 8, dtype=torch.bfloat16, device="meta")
    try:
        async_tp.make(case)(0)
    except AttributeError as error:
        raise SystemExit(f"{name}: {error}")
    except Exception as error:
        print(name, type(error).__name__)
"""
    # Not the warm Python, which has imported most of torch.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HUNG)
    assert done.returncode == 0, done.stderr


def test_torchs_symmetric_memory_ops_are_compared_with_ours(run, tmp_path):
    report, lines = tmp_path / "report.json", tmp_path / "lines.csv"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    extents = [16, 32] if SWEEP else [16]
    words = ["--models", "small", "--rounds", "1", "--json", report, "--csv", lines]
    words += ["--rows", ",".join(map(str, extents))]
    outcome = run(*torchrun, BENCH / "symm_mem" / "symm_mem.py", *words, TRITON_INTERPRET="1")
    assert outcome.code == 0, outcome.out + outcome.err
    rows = json.loads(report.read_text())["rows"]
    calls = ["qkv", "qkv+A", "w1w3", "w1w3+A", "wo", "w2"]
    assert [(row["call"], row["M"]) for row in rows] == [(call, m) for m in extents for call in calls]
    assert all(row["taken"] and row["torch"] > 0 and row["ours"] > 0 for row in rows)
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    count = len(calls) * len(extents)
    said = f"{count} of {count} calls were taken; torch's time by ours, geometric mean of {count}: {mean:.3f}"
    assert said in outcome.out
    assert [line["call"] for line in DictReader(lines.open())] == calls * len(extents)
    refused = run(*torchrun, BENCH / "symm_mem" / "symm_mem.py", "--calls", "qk", TRITON_INTERPRET="1")
    assert refused.code != 0 and "expected some of qkv" in refused.err


def test_a_table_that_nobody_reads_to_its_end_is_no_error(run, tmp_path):
    saved = BENCH / "results" / "simulate_all_gather_2xH200.json"
    command = [sys.executable, BENCH / "simulate" / "all_gather.py", "--compare"]
    process = subprocess.Popen(
        [*command, *[saved] * 3], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait(HUNG)) == ("", 128 + signal.SIGPIPE)
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*command, saved], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.stderr.count("\n"), ended.returncode) == (1, 1)
    missing = run(*command, tmp_path / "missing.json")
    assert (missing.code, missing.err) == (1, f"error: {tmp_path}/missing.json: No such file or directory\n")


def test_a_report_that_cannot_be_written_names_its_file():
    said = "/dev/full: cannot be written: No space left on device"
    with pytest.raises(InputError, match=said):
        table.write_report({"table": []}, Path("/dev/full"))


@pytest.mark.sweep
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


def test_bench_of_mixtures_finds_ours_and_its_peers_right_forward_and_backward(syncopate, tmp_path):
    lines = tmp_path / "moe.csv"
    words = ["--models", "Qwen3-30B-A3B", "--tokens", "256", "--backward", "--csv", lines, "--json", "-"]
    outcome = syncopate("bench", "moe", *words)
    assert outcome.code == 0, outcome.out + outcome.err
    (entry,) = json.loads(outcome.out)["table"]  # and nothing else there
    assert "| model | tokens |" in outcome.err
    assert [line["row"] for line in DictReader(lines.open())] == list(entry["rows"])
    assert set(entry["rows"]) == {"ours", "nccl"} and entry["passes"] == "forward and backward"
    assert "PEER names no folder" in entry["left_out"]["minimal_async_ep"]
    refused = syncopate("bench", "moe", "--ways", "ours,another")
    assert refused.code == 2 and "--ways another: expected ours, " in refused.err


def test_bench_of_grouped_kernels_of_a_users_finds_ours_and_its_peers_right(syncopate, tmp_path):
    lines = tmp_path / "grouped.csv"
    outcome = syncopate("bench", "grouped", "--tokens", "256", "--csv", lines, "--json", "-")
    assert outcome.code == 0, outcome.out + outcome.err
    table = json.loads(outcome.out)["table"]
    assert [entry["model"] for entry in table] == ["Qwen3-30B-A3B", "Mixtral-8x7B"]
    for entry in table:
        assert set(entry["rows"]) == {"ours", "products", "unfused", "nccl"} and "left_out" not in entry
        products, ours = (entry["rows"][name]["hidden_us"] for name in ("products", "ours"))
        assert entry["exposed"] == round(1 - products / ours, 3)
        assert entry["best"] in ("unfused", "nccl")
    assert len(list(DictReader(lines.open()))) == 8
    refused = syncopate("bench", "grouped", "--models", "another")
    assert refused.code == 2 and "--models another: expected Qwen3-30B-A3B, " in refused.err
