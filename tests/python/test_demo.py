"""The demo and the recording of calls: what is printed and traced is what happened. Host ranks; the GPU path compiles."""

import json
import os
import re
import signal
import subprocess
import textwrap
from collections import defaultdict
from pathlib import Path

import goldens
import pytest
from conftest import HUNG, SWEEP, warm_python

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = goldens.folder()
pytestmark = pytest.mark.xdist_group("demo")  # one process: the demo runs once
BINARY = ROOT / "build" / "bin" / "syncopate"

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate")


def run_python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [warm_python(), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        timeout=HUNG,
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo's output and its folder of files."""
    folder = tmp_path_factory.mktemp("demo")
    result = run_python("-m", "syncopate.command.demo", "--device", "host", "--out", "out", cwd=folder)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stderr == ""
    return result.stdout, folder / "out"


def test_the_demo_explains_itself_in_six_sections(shown):
    text, _ = shown
    titles = re.findall(r"^(\d)\. (.+)\n-+$", text, re.MULTILINE)
    assert [number for number, _ in titles] == list("123456")
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text and "\t" not in text


def test_a_demo_that_nobody_reads_ends_quietly(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    command = [warm_python(), "-m", "syncopate.command.demo", "--device", "host"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait(HUNG)) == ("", 128 + signal.SIGPIPE)


def test_the_demo_shows_plan_kernel_order_and_times(shown):
    text, _ = shown
    assert "rank 0 (3 ops, 192 KiB)" in text
    assert "+ tile_id = sy_acquire(sy_schedule, sy_control, tile_id)" in text
    assert re.search(r"64:96 +own +0 ", text), "rank 1 begins with its own rows"
    order = [
        int(n)
        for row in re.findall(r"^  \d+:\d+ +(?:own|rank \d) +([\d ]+)$", text, re.MULTILINE)
        for n in row.split()
    ]
    assert sorted(order) == list(range(48)), "every tile once"
    assert len(re.findall(r"^rank \d, chunks +[\d ]+$", text, re.MULTILINE)) == 4
    assert len(re.findall(r"^        tiles +[\d. ]+$", text, re.MULTILINE)) == 4
    assert len(re.findall(r"rows \d+:\d+ from rank \d +[\d.,]+ (?:ms|µs) +\d+ of 48", text)) == 3


def test_the_demo_is_right_and_says_so(shown):
    text, _ = shown
    assert float(re.search(r"largest error against fp64 +(\S+)", text).group(1)) < 1e-5
    assert re.search(r"same as the unfused kernel +yes, bit for bit, on all ranks", text)
    assert re.search(r"same when recorded +yes, bit for bit, on all ranks", text)


def test_the_demo_leaves_plan_kernel_and_trace(shown):
    _, folder = shown
    assert {path.name for path in folder.iterdir()} == {"plan.json", "kernel.py", "trace.json"}
    assert json.loads((folder / "plan.json").read_text())["schema"] == "syncopate.plan/1"
    compile((folder / "kernel.py").read_text(), "kernel.py", "exec")


def consistent(trace: dict, ranks: int, slots: int, chunks: int) -> None:
    """What must hold in every trace, read from the Perfetto events alone."""
    call, arrivals = {}, defaultdict(dict)
    tiles, threads = defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        rank = event["pid"]
        if event["ph"] == "i":
            assert event["name"] not in arrivals[rank], "a chunk arrives once"
            arrivals[rank][event["name"]] = event["ts"]
        elif event["ph"] == "X" and event["cat"] == "call":
            call[rank] = (event["ts"], event["ts"] + event["dur"])
        elif event["ph"] == "X":
            threads[rank, event["tid"]].append(event)
            if event["cat"] == "tile":
                tiles[rank].append(event)
    assert sorted(call) == list(range(ranks))
    for rank, (begin, end) in call.items():
        assert sorted(e["args"]["slot"] for e in tiles[rank]) == list(range(slots)), "every slot once"
        assert len({e["args"]["tile"] for e in tiles[rank]}) == slots, "every tile once"
        assert len(arrivals[rank]) == chunks
        assert all(begin <= moment <= end for moment in arrivals[rank].values()), "arrivals lie in the call"
        assert all(begin <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-3 for e in tiles[rank])
    slack = 2e-3  # µs; times are ns, printed as µs
    for (rank, _), events in threads.items():
        needed: set[str] = set()
        previous = 0.0
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            if event["cat"] == "wait":
                needed |= set(event["args"]["signals"])
                over = event["ts"] + event["dur"]
                came = [arrivals[rank][name] for name in event["args"]["signals"] if name in arrivals[rank]]
                assert all(moment <= over + slack for moment in came), (
                    "no wait is over before its chunks are there"
                )
            elif event["cat"] == "tile":
                assert all(
                    arrivals[rank][name] <= event["ts"] + slack for name in needed if name in arrivals[rank]
                )
                assert event["ts"] >= previous - slack, "a program runs one tile at a time"
                previous = event["ts"] + event["dur"]
            else:
                assert event["ts"] + event["dur"] <= previous + slack, "a range is a part of its tile"


def test_the_demos_trace_is_consistent(shown):
    _, folder = shown
    trace = json.loads((folder / "trace.json").read_text())
    consistent(trace, ranks=4, slots=48, chunks=3)
    names = {event["args"].get("name") for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"rank 0 (host)", "rank 3 (host)", "chunks", "program 0"} <= names


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there are GPUs")
def test_the_demo_names_what_the_machine_lacks(tmp_path):
    result = run_python("-m", "syncopate.command.demo", "--device", "cuda", cwd=tmp_path)
    assert result.returncode == 3
    assert result.stderr == "error: found 0 GPUs, 2 are needed; use --device host\n"


def test_the_demo_says_that_a_folder_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    result = run_python("-m", "syncopate.command.demo", "--device", "host", "--out", "file/x", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and "file" in result.stderr and result.stderr.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Recording

RECORD = """
import json, sys
import torch, triton
from example_calls import CALLS, Blocks, numbers
import syncopate as sy
from syncopate import ranks, trace
from syncopate.group import of_folder

name, options, phased = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "phased"
m, n, k, blocks = 32, 48, 64, Blocks(16, 16, 16, 2, 3)

def work(place):
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    plan = sy.plans.all_gather(sy.plans.mesh_of(place.size), sy.Tensor("A", (m, k), "fp32"), **options)
    example = CALLS[name]
    fused = example.fuse(plan, group=group, host_delay=0.1, seed=place.rank, deadline=60)
    whole, w = numbers((m, k), 1, torch.float32), numbers((k, n), 2, torch.float32)
    axis = options.get("axis", 0)
    part = whole.shape[axis] // place.size
    mine = whole.narrow(axis, part * place.rank, part).contiguous()
    outs = [torch.full((m, n), float("nan")) for _ in range(4)]
    example.launch(fused, mine, w, outs[0], blocks)
    recorded = []
    for out in outs[1:3]:
        grid, arguments = example.arguments(mine, w, out, blocks)
        group.barrier(f"record-{len(recorded)}")
        recorded.append(trace.record(fused, grid, **arguments))
    example.launch(fused, mine, w, outs[3], blocks)  # and a plain call after it
    assert all(torch.equal(out, whole @ w) for out in outs)
    (prepared,) = fused.prepared
    assert prepared.op.table[4:7] == [0, 0, 0], "nothing is recorded any more"
    assert prepared.schedule.phased == phased
    fused.close()
    return recorded

for index, traces in enumerate(zip(*ranks.run(2, work))):
    trace.write(traces, f"trace-{index}.json")
    for t in traces:
        for tile in t.tiles:
            assert tile.wait_begin <= tile.start <= tile.end
            assert all(tile.start <= begin <= over <= tile.end for begin, over, _ in tile.phases)
            assert len(tile.phases) in ((1, 2) if phased else (0,)), tile.phases
    # Rank 0 holds the first half of the reduction axis: it waits between phases. Rank 1 waits before it starts.
    waits = [any(signals for tile in t.tiles for _, _, signals in tile.phases) for t in traces]
    assert waits == [phased, False], waits
"""


@pytest.mark.parametrize(
    ("name", "options", "phased"),
    [
        ("matmul_persistent_host_tma", {"split": 2}, False),
        ("matmul_persistent_host_tma", {"axis": 1}, True),
        ("matmul_pointers", {"split": 2, "pull": True}, False),
        ("matmul_pointers", {"axis": 1}, True),
    ],
)
def test_recorded_calls_give_the_same_bits_and_consistent_times(name, options, phased, tmp_path):
    result = run_python(
        "-c",
        RECORD,
        name,
        json.dumps(options),
        "phased" if phased else "",
        cwd=tmp_path,
        TRITON_INTERPRET="1",
    )
    assert result.returncode == 0, result.stderr[-4000:]
    for index in range(2):
        trace = json.loads((tmp_path / f"trace-{index}.json").read_text())
        consistent(trace, ranks=2, slots=6, chunks=1 if phased else 2)


def test_run_writes_a_trace(tmp_path):
    spec = "all_gather_matmul:M=128,N=64,K=64,dtype=fp32"
    result = run_python(
        "-m", "syncopate.command.run", spec, "--ranks=2", "--trace=t.json", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ok"]
    consistent(json.loads((tmp_path / "t.json").read_text()), ranks=2, slots=8, chunks=1)


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_run_of_a_fused_folder_writes_a_trace(tmp_path):
    commands = [
        ["plan", "make", "all_gather", "--ranks", "2", "--tensor", "A:32x64:fp32", "-o", "plan.json"],
        [
            "fuse",
            f"{ROOT / 'examples' / 'matmul_persistent_host_tma.py'}:matmul_kernel",
            "--plan",
            "plan.json",
        ]
        + ["--bind", "a_desc=A", "--tensor", "b_desc=48x64:fp32@16x16", "--tensor", "c_desc=32x48:fp32@16x16"]
        + ["--tensor", "a_desc=32x64:fp32@16x16", "--device", "host", "-o", "fused"]
        + ["--args", "M=32,N=48,K=64,BLOCK_M=16,BLOCK_N=16,BLOCK_K=16,GROUP_M=2,NUM_SMS=3", "--grid", "3"],
    ]
    for command in commands:
        made = subprocess.run([BINARY, *command], cwd=tmp_path, capture_output=True, text=True, timeout=HUNG)
        assert made.returncode == 0, made.stderr
    result = run_python("-m", "syncopate.command.run", "fused", "--check", "--trace=t.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    consistent(json.loads((tmp_path / "t.json").read_text()), ranks=2, slots=6, chunks=1)


def test_a_wait_that_is_over_proves_that_its_chunk_had_arrived():
    from syncopate.trace import Arrival, assemble

    # One slot, tile 7, that waits for signal 0; the watcher looked late at that signal and never at signal 1.
    table = [1, 0, 0, 1] + [0] * 12 + [7, 20, 22, 0] + [32, 0]
    times = [0] * 16 + [100, 150, 0, 0] + [0, 0] + [190]
    chunks = [Arrival(0, 1, "A", [(0, 1)], 0)]
    trace = assemble(0, "host", table, times, chunks, [170], begin=90, end=200)
    assert [chunk.time for chunk in trace.chunks] == [150]
    (tile,) = trace.tiles
    assert (tile.tile, tile.wait_begin, tile.start, tile.end, tile.waits) == (7, 100, 150, 190, [0])
    assert (trace.begin, trace.end) == (90, 200)
    assert trace.finished_by(189) == 0 and trace.finished_by(190) == 1


def test_only_emitted_kernels_can_be_recorded():
    from syncopate.trace.record import traced_source

    with pytest.raises(ValueError, match="not an emitted kernel"):
        traced_source("import triton\n")


# ---------------------------------------------------------------------------------------------------------------------
# The GPU path compiles

COMPILE = """
import importlib.util, re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from syncopate.trace.record import traced_source

def build(kernel, signature, constants, options):
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    Path("k.ptx").write_text(compiled.asm["ptx"])
    ptxas = get_ptxas(90).path
    log = subprocess.run([ptxas, "-v", "--gpu-name=sm_90a", "k.ptx", "-o", "k.o"], capture_output=True, text=True)
    assert log.returncode == 0, log.stderr
    ttgir = compiled.asm["ttgir"]
    return {
        "depth": max([int(d) for d in re.findall(r"ttg.local_alloc\\\\b.*?memdesc<(\\\\d+)x\\\\d+x\\\\d+x(?:bf16)", ttgir)], default=1),
        "registers": int(re.search(r"Used (\\\\d+) registers", log.stderr).group(1)),
        "spills": sum(int(s) for s in re.findall(r"(\\\\d+) bytes spill", log.stderr)),
        "shared": compiled.metadata.shared,
        "timers": compiled.asm["ptx"].count("%globaltimer"),
    }
""".replace("\\\\", "\\")

EMITTED = """
path = Path(sys.argv[1])
constants = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "NUM_SMS": 132, "PRECISION": "ieee"}
forms = {}
for form, text in (("plain", path.read_text()), ("traced", traced_source(path.read_text()))):
    Path(form + ".py").write_text(text)
    spec = importlib.util.spec_from_file_location(form, form + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.matmul_kernel
    given = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {}
    for name in kernel.arg_names:
        kind = "constexpr" if name in given else "*bf16" if name.endswith("_ptr") else "i32"
        if name.endswith("_desc"):
            kind = "tensordesc<bf16[128,%d]>" % (128 if name[0] == "c" else 64)
        elif name == "sy_own":  # what stays on the rank: a descriptor of it, or a distance to the pointers
            kind = "tensordesc<bf16[128,64]>" if "a_desc" in kernel.arg_names else "i64"
        elif name.startswith("sy_"):
            kind = "*i32"
        if name in ("stride_ak", "stride_bn", "stride_cn"):
            kind, given[name] = "constexpr", 1
        signature[name] = kind
    forms[form] = build(kernel, signature, given, {"num_warps": 8, "num_stages": 3})
plain, traced = forms["plain"], forms["traced"]
print(forms)
assert traced["timers"] > plain["timers"]
assert traced["depth"] == plain["depth"] and traced["shared"] == plain["shared"], forms
assert traced["spills"] == 0 and traced["registers"] <= 255, forms
"""


# Each way in which a kernel is emitted once, and each example; in a sweep all.
GOLDENS = [
    "matmul_persistent_device_tma_inline",
    "matmul_persistent_device_tma_producer",
    "matmul_persistent_host_tma",
    "matmul_persistent_host_tma_phased",
    "matmul_pointers_fetched",
    "matmul_pointers_own",
]
if SWEEP:
    GOLDENS = sorted(path.stem for path in GOLDEN.glob("matmul_*.py"))


@pytest.mark.parametrize("golden", GOLDENS)
def test_a_traced_kernel_compiles_for_hopper_with_the_plain_ones_pipeline(golden, tmp_path):
    result = run_python("-c", COMPILE + EMITTED, str(GOLDEN / f"{golden}.py"), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]


def test_the_clock_answers_with_one_store_of_its_time(tmp_path):
    code = """
    from syncopate.device.traced import sy_clock
    built = build(sy_clock, {"words": "*i64", "rounds": "i32", "deadline": "i32"}, {}, {"num_warps": 1})
    assert built["shared"] == 0 and built["spills"] == 0 and built["timers"] >= 3, built
    assert Path("k.ptx").read_text().count("st.release.sys.global.b64") == 1
    """
    result = run_python("-c", COMPILE + textwrap.dedent(code), cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-4000:]


def test_the_watcher_is_one_small_warp_without_shared_memory(tmp_path):
    code = """
    from syncopate.device.traced import sy_watch
    signature = {"control": "*i32", "words": "*i32", "posts": "*i32", "times": "*i64", "count": "i32", "epoch": "i32", "BLOCK": "constexpr"}
    for block in (32, 256):
        built = build(sy_watch, signature, {"BLOCK": block}, {"num_warps": 1})
        # It must fit beside a fused program that takes nearly all registers and shared memory of a multiprocessor.
        assert built["registers"] <= 96 and built["shared"] == 0 and built["spills"] == 0 and built["timers"] == 2, built
    """
    result = run_python("-c", COMPILE + textwrap.dedent(code), cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-4000:]
