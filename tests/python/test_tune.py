"""`syncopate tune` measures on host ranks, keeps what it finds, and operators take it from there."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).resolve().parent
SPEC = "matmul_reduce_scatter:M=64,N=64,K=64,dtype=fp32"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tune(syncopate, cache):
    return lambda *words: syncopate("tune", *words, SYNCOPATE_CACHE_DIR=str(cache), SYNCOPATE_TUNE="read")


WORKER = """
import sys, torch, torch.distributed as dist
from syncopate.host.interpreter import enable
enable()
import syncopate as sy
dist.init_process_group("gloo")
for m in map(int, sys.argv[1:]):
    x, w = torch.ones(m, 64), torch.ones(64, 64)
    y = sy.ops.matmul_reduce_scatter(x, w)
    assert (y == 128).all()
    (op,) = [entry.operator for entry in sy.cache.entries.values() if entry.operator.m == m]
    if dist.get_rank() == 0:
        print(m, "unfused" if op.strategy.unfused else "fused", op.strategy.split, flush=True)
dist.destroy_process_group()
"""


def operators(run, tmp_path, cache, *rows, **environment):
    """What two ranks take by themselves, by rows: rank 0's words."""
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    outcome = run(*torchrun, file, *rows, SYNCOPATE_CACHE_DIR=str(cache), **environment)
    assert outcome.code == 0, outcome.out + outcome.err
    return dict(line.split(" ", 1) for line in outcome.out.splitlines() if line[:1].isdigit()), outcome


def test_tune_measures_stores_and_operators_take_the_winner(tune, run, tmp_path, cache):
    found = tune(SPEC, "--ranks", "2", "--budget", "4", "--vary", "split=1,2", "--json")
    assert found.code == 0, found.out + found.err
    result = json.loads(found.out.splitlines()[-1])
    names = {trial["name"] for trial in result["trials"]}
    assert {"default", "unfused"} <= names
    by_name = {trial["name"]: trial for trial in result["trials"]}
    assert result["us"] <= min(result["default_us"], result["unfused_us"]) * 1.001
    # The interpreter takes a hundred times as long as torch's product: so the pair wins here.
    assert result["winner"] == "unfused"
    assert by_name["default"]["ratio"] == pytest.approx(1)

    listed = tune("--list")
    assert listed.code == 0
    assert SPEC in listed.out
    assert "unfused" in listed.out
    shown = tune("--show", SPEC)
    assert shown.code == 0, shown.err
    assert "2 ranks on host" in shown.out
    assert "default" in shown.out

    taken, _ = operators(run, tmp_path, cache, 64, 128, 1024, SYNCOPATE_TUNE="read")
    assert taken["64"].startswith("unfused"), "the winner"
    assert taken["128"].startswith("unfused"), "the nearest rows' winner"
    assert taken["1024"].startswith("fused"), "nothing is near"
    taken, _ = operators(run, tmp_path, cache, 64, SYNCOPATE_TUNE="off")
    assert taken["64"].startswith("fused")

    again = tune(SPEC, "--ranks", "2", "--budget", "4", "--vary", "split=1,2", "--json")
    assert json.loads(again.out.splitlines()[-1])["resumed"] == len(result["trials"])


MIXTURE = "moe:T=5,E=4,topk=2,H=24,F=20,dtype=fp32"
TAKES_WHAT_WAS_FOUND = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from syncopate import ranks
from syncopate.group import of_folder
from syncopate.ops import Moe


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    op = Moe(5, 4, 2, 24, 20, torch.float32, group)
    made = op.tiling.block_m, Moe(5, 4, 2, 24, 20, torch.float32, group, part="kept").tiling.block_m
    return made


print(set(ranks.run(2, work)))
"""


def test_mixtures_of_experts_are_tuned_by_their_tiles_and_take_the_winner(tune, run, cache, tmp_path):
    found = tune(MIXTURE, "--ranks", "2", "--budget", "20", "--json")
    assert found.code == 0, found.err
    trials = json.loads(found.out)["trials"]
    assert [trial["name"] for trial in trials][:2] == ["default", "unfused"] and len(trials) == 5
    assert all(trial["us"] > 0 for trial in trials)
    assert json.loads(found.out)["winner"] == "unfused", "nothing is interpreted there"
    shown = json.loads(tune("--show", MIXTURE, "--json").out)["results"]
    assert len(shown) == 1
    of_fp8 = tune(MIXTURE.replace("fp32", "fp8e4m3,scales=row"), "--ranks", "2", "--budget", "1", "--json")
    assert of_fp8.code == 0, of_fp8.err
    assert all("off by" not in str(trial["refused"]) for trial in json.loads(of_fp8.out)["trials"])
    file = tmp_path / "results.json"
    assert tune("--export", file, MIXTURE).code == 0
    stored = json.loads(file.read_text())
    rows, (result,) = 32, stored["results"]
    result["strategy"] = next(
        t["strategy"] for t in result["trials"] if f'"block_m": {rows}' in json.dumps(t["strategy"])
    )
    result["when"] += 1
    file.write_text(json.dumps(stored))
    assert tune("--import", file).code == 0
    taken = run(
        sys.executable, "-c", TAKES_WHAT_WAS_FOUND, SYNCOPATE_CACHE_DIR=str(cache), SYNCOPATE_TUNE="read"
    )
    assert taken.out.strip() == str({(rows, 16)}), taken.err


ATTENTION = "attention:S=128,B=1,H=2,HKV=2,D=16,causal=0"
TAKES_A_KIND = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from syncopate import ranks
from syncopate.group import of_folder
from syncopate.ops import Attention


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    made = [Attention(1, 2, 2, s, 16, group=group, **how) for s, how in ((128, {}), (128, {"even": True}), (128, {"window": 9}))]
    return tuple((op.kind, op.split, op.strategy.backend) for op in made)


print(*ranks.run(2, work), sep="\\n")
"""


def test_attention_is_tuned_by_its_kinds_and_takes_the_winner(tune, run, cache, tmp_path):
    found = tune(ATTENTION, "--ranks", "2", "--budget", "8", "--json")
    assert found.code == 0, found.err
    answer = json.loads(found.out)
    names = [trial["name"] for trial in answer["trials"]]
    assert names[:2] == ["default", "unfused"]
    assert all(trial["us"] > 0 for trial in answer["trials"][:2]), answer["trials"]
    assert any("head_parts=" in name for name in names)
    assert not any("wrong" in trial["refused"] for trial in answer["trials"])
    file = tmp_path / "results.json"
    assert tune("--export", file, ATTENTION).code == 0
    stored = json.loads(file.read_text())
    (result,) = stored["results"]
    assert result["family"] == "attention:B=1,H=2,HKV=2,D=16,causal=0,dtype=bf16"
    assert (result["rows"], result["ranks"], result["device"]) == (128, 2, "host")
    result["strategy"] = {"kind": "ring", "split": 2, "backend": "tma_dedicated"}
    result["when"] += 1
    file.write_text(json.dumps(stored))
    assert tune("--import", file).code == 0
    words = {"SYNCOPATE_CACHE_DIR": str(cache)}
    taken = run(sys.executable, "-c", TAKES_A_KIND, SYNCOPATE_TUNE="read", **words)
    won, usual = "('ring', 2, 'tma_dedicated')", "('all_gather', 1, 'auto')"
    assert taken.out.splitlines() == [f"({won}, {won}, {usual})"] * 2, taken.out + taken.err
    taken = run(sys.executable, "-c", TAKES_A_KIND, SYNCOPATE_TUNE="off", **words)
    assert taken.out.splitlines() == [f"({usual}, {usual}, {usual})"] * 2, taken.out + taken.err
    varied = tune(ATTENTION, "--ranks", "2", "--budget", "12", "--vary", "kind=ring,ulysses", "--json")
    assert {"kind=ring", "kind=ulysses"} <= {trial["name"] for trial in json.loads(varied.out)["trials"]}


MEASURES_CALLS_BY_HOST = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
from syncopate import ranks
from syncopate.command.spec import Spec
from syncopate.group import of_process_group
from syncopate.measure.search import Measurer, search_spec
from host_script import join


def work(place):
    join(place)
    by_host = []
    Measurer.asks_eager = True
    Measurer.measure = lambda self, which: [1.0 if i == 1 else 1.02 for i in which]
    eager = Measurer.eager
    Measurer.eager = lambda self, which: by_host.append((list(which), eager(self, which))) or [30.0, 10.0]
    found = search_spec(Spec(sys.argv[1], 2), of_process_group(None, "host"), budget=1, again=True)
    times = [us for _, both in by_host for us in both]
    return found["winner"], found["instead"], all(0 < us < 1e7 for us in times), {which[0] for which, _ in by_host}


print(*ranks.run(2, work), sep="\\n")
"""


def test_attentions_unfused_winner_is_held_against_calls_by_the_host(run, tmp_path):
    paths = f"{HERE.parents[1] / 'python'}:{HERE}"
    words = {"SYNCOPATE_CACHE_DIR": str(tmp_path / "own"), "PYTHONPATH": paths}
    found = run(sys.executable, "-c", MEASURES_CALLS_BY_HOST, ATTENTION, **words)
    assert found.code == 0, found.out + found.err
    for line in found.out.splitlines():
        assert line.startswith(
            "('default', 'unfused takes 1.0 us as a CUDA graph and 30.0 by calls of the host, default 1.0"
        )
        assert line.endswith("True, {1})")


def test_what_is_stored_is_exported_imported_and_forgotten(tune, tmp_path):
    spec = "matmul_all_reduce:M=32,N=64,K=64,dtype=fp32"
    found = tune(spec, "--ranks", "2", "--budget", "2", "--vary", "split=1")
    assert found.code == 0, found.out + found.err
    assert "times as fast as default" in found.out
    assert "measuring the finalists again" in found.err
    file = tmp_path / "results.json"
    assert tune("--export", file, spec).code == 0
    (result,) = json.loads(file.read_text())["results"]
    assert result["family"] == "matmul_all_reduce:N=64,K=64,dtype=fp32"
    assert (result["rows"], result["ranks"], result["device"]) == (32, 2, "host")
    assert tune("--forget", spec).out == "forgot 1 result\n"
    assert "nothing is stored" in tune("--list", spec).out
    assert tune("--import", file).out == "1 of 1 results are new here\n"
    assert tune("--import", file).out == "0 of 1 results are new here\n"
    assert json.loads(tune("--show", spec, "--json").out)["results"] == [result]
    file.write_text(file.read_text().replace('"rows": 32', '"rows": "many"'))
    refused = tune("--import", file)
    assert refused.code == 1
    assert str(file) in refused.err
    assert 'results[0].rows is the string "many"; expected an integer' in refused.err


def test_operators_tune_by_themselves_where_they_are_told_to(run, tmp_path, syncopate):
    cache = tmp_path / "own"
    taken, outcome = operators(run, tmp_path, cache, 32, SYNCOPATE_TUNE="auto", SYNCOPATE_TUNE_BUDGET="8")
    assert taken["32"].startswith("unfused"), outcome.err
    listed = syncopate("tune", "--list", SYNCOPATE_CACHE_DIR=str(cache))
    assert "matmul_reduce_scatter:M=32,N=64,K=64,dtype=fp32" in listed.out


def test_a_damaged_store_is_set_aside_and_operators_run(run, tmp_path):
    cache = tmp_path / "damaged"
    cache.mkdir()
    (cache / "tuning.sqlite").write_text("no database " * 100)
    taken, outcome = operators(run, tmp_path, cache, 32, SYNCOPATE_TUNE="read")
    assert taken["32"].startswith("fused")
    assert "is damaged" in outcome.err
    assert list(cache.glob("tuning.sqlite.set-aside-1"))


@pytest.mark.parametrize(("text", "wrong"), [("no JSON", "not JSON"), ('{"a": 1}', 'unknown key "a"')])
def test_what_no_export_wrote_is_not_imported(text, wrong, syncopate, tmp_path):
    file, cache = tmp_path / "other.json", tmp_path / "cache"
    file.write_text(text)
    outcome = syncopate("tune", "--import", file, SYNCOPATE_CACHE_DIR=str(cache))
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {file}:1:2: ")
    assert wrong in outcome.err
    assert not cache.exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["matmul:M=1"], 2, "there is no operator"),
        (["matmul_all_reduce:M=64,N=64"], 2, "matmul_all_reduce needs K"),
        (["matmul_all_reduce:M=65,N=64,K=64", "--ranks", "2"], 1, "M = 65 is no multiple of 2 ranks"),
        ([SPEC, "--vary", "spilt=1"], 2, 'unknown key "spilt"; did you mean "split"?'),
        (["--show", SPEC, "--list"], 2, "one of --list, --show"),
        (["--forget"], 2, "name a problem, an operator, or all"),
        (["--show"], 2, "--show: name a problem or an operator"),
        ([SPEC, "--explain", "--vary", "split=1"], 2, "--vary does not belong to --explain"),
        ([SPEC, "--vary", "split=a"], 2, '--vary split=a: split is the string "a"'),
        (["attention:S=64,window=8", "--ranks", "2"], 2, "window is of a call, and a problem has none"),
        (
            [MIXTURE, "--ranks", "2", "--vary", "split=1,2"],
            2,
            "--vary split=1: it has a tile and programs, and nothing else",
        ),
        (["moe:T=5,E=512,topk=2,H=16384,F=16384"], 3, "too little memory on this machine"),
        (["--list", SPEC, "--explain"], 2, "--list does not belong to --explain"),
        ([SPEC, "-o", "file"], 2, "--output does not belong to a search"),
        (["--list", "--ranks", "2"], 2, "--ranks does not belong to --list"),
        ([f"{SPEC},ranks=4", "--ranks", "8", "--explain"], 2, "SPEC is of 4 ranks, --ranks says 8"),
        ([SPEC, "--explain", "--routing", "balanced"], 2, "--routing: matmul_reduce_scatter routes no rows"),
        (["moe:T=8,E=8,topk=2,H=64,F=64", "--routing", "balanced"], 2, "give --explain"),
        (
            ["moe:T=8,E=8,topk=2,H=64,F=64", "--explain", "--routing", "1,2"],
            2,
            "rows of 2 experts, and there are E=8",
        ),
        ([SPEC, "--explain", "--ranks", "65"], 2, "estimates are of at most 64 ranks"),
        ([f"{SPEC},M=32"], 2, "M is given twice"),
        ([f"{SPEC},M=32", "--explain"], 2, "M is given twice"),
        (["mlp_chain:M=64,H=64,F=64"], 2, "a chain is not tuned; its first call measures its ways"),
        (["--import", "nowhere.json"], 1, "nowhere.json"),
        (["--import", ""], 2, "--import: it is empty"),
    ],
)
def test_what_is_wrong_is_said(tune, words, code, message):
    outcome = tune(*words)
    assert outcome.code == code, outcome.out + outcome.err
    assert message in outcome.err
    assert Path("nowhere.json").exists() is False


def test_a_search_that_makes_nothing_ends_soon_after_its_budget(run):
    code = """
import sys
from syncopate.command import tune as tuning
tuning.REST["host"] = 1.0
sys.exit(tuning.main(["all_gather_matmul:M=2048,N=2048,K=2048", "--ranks", "2", "--budget", "1"]))
"""
    outcome = run(sys.executable, "-c", code)
    assert outcome.code == 1, outcome.out + outcome.err
    assert (
        "the search did not end within 2 s; what was measured is kept; on host its kernels are interpreted"
        in outcome.err
    )


EXPERTS = """
import torch, torch.distributed as dist
from syncopate.host.interpreter import enable
enable()
import syncopate as sy
from syncopate.measure import search
dist.init_process_group("gloo")
searches, once = [], search.search_spec
search.search_spec = lambda *given, **options: searches.append(once(*given, **options))
x, w1, w2 = torch.ones(4, 16), torch.ones(2, 16, 32), torch.ones(2, 16, 16)
ids, weights = torch.tensor([[0, 3]] * 4), torch.ones(4, 2)
for _ in range(2):
    y = sy.ops.moe(x, ids, weights, w1, w2, activation="relu")
    assert (y == 2 * 16 * 16 * 16).all(), y
    sy.close()
(op,) = [sy.ops.Moe(4, 4, 2, 16, 16, x.dtype, sy.group.of_process_group(None, "host"), activation="relu")]
if dist.get_rank() == 0:
    print("searched", len(searches), "rows", op.tiling.block_m, searches[0]["winner"] if searches else "", flush=True)
op.close()
dist.destroy_process_group()
"""


SEQUENCE = """
import torch, torch.distributed as dist
from syncopate.host.interpreter import enable
enable()
import syncopate as sy
from syncopate.measure import search
dist.init_process_group("gloo")
searches, once = [], search.search_spec
search.search_spec = lambda *given, **options: searches.append(once(*given, **options))
q, k = torch.ones(1, 2, 32, 16, dtype=torch.bfloat16), torch.ones(1, 1, 32, 16, dtype=torch.bfloat16)
for _ in range(2):
    o, _ = sy.ops.attention(q, k, k)
    assert (o == 1).all(), o
    sy.close()
sy.ops.attention(q, k, k, window=8)  # which no SPEC says
if dist.get_rank() == 0:
    print("searched", len(searches), "rows", q.shape[2], flush=True)
sy.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("code", [EXPERTS, SEQUENCE], ids=["mixture", "attention"])
def test_what_a_spec_says_is_searched_once_where_nothing_is_stored_for_it(code, run, tmp_path):
    file = tmp_path / "code.py"
    file.write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {"SYNCOPATE_CACHE_DIR": str(tmp_path / "cache"), "SYNCOPATE_TUNE_BUDGET": "6"}
    for mode, searches in (("read", 0), ("auto", 1), ("auto", 0)):
        outcome = run(*torchrun, file, SYNCOPATE_TUNE=mode, **environment)
        assert outcome.code == 0, outcome.out + outcome.err
        assert f"searched {searches} rows " in outcome.out


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("all_gather_matmul:M=8192,N=3584,K=8192,ranks=8", None),
        ("attention:S=16384,ranks=4", "ulysses"),
        ("mlp_chain:M=256,H=12288,F=6144", None),
        ("moe:T=512,E=8,topk=2,H=512,F=512,ranks=2", None),
    ],
)
def test_what_is_explained_is_what_a_call_takes(syncopate, spec, name):
    outcome = syncopate("tune", spec, "--explain", "--json")
    assert outcome.code == 0, outcome.err
    answer = json.loads(outcome.out)
    (taken,) = [one for one in answer["strategies"] if one["name"] == answer["taken"]["name"]]
    assert taken["pruned"] is None and taken["us"] > 0
    assert name in (None, taken["name"])
    assert "unfused" in [one["name"] for one in answer["strategies"]]
    told = syncopate("tune", spec, "--explain").out.splitlines()[-1]
    assert told == f"a call takes {taken['name']}: {answer['taken']['why']}"


def test_strategies_of_a_mixture_are_ranked_under_a_routing_that_was_measured(syncopate, tmp_path):
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([8192, *[0] * 7]))
    words = ("tune", "moe:T=2048,E=8,topk=2,H=512,F=512", "--ranks", 2, "--explain", "--json")
    best = {}
    for routing in ("random", "balanced", f"@{rows}"):
        outcome = syncopate(*words, "--routing", routing)
        assert outcome.code == 0, outcome.err
        answer = json.loads(outcome.out)
        assert answer["routing"] == ("as measured" if routing[0] == "@" else routing)
        best[routing] = answer["strategies"][0]["us"]
    assert best[f"@{rows}"] > 1.2 * best["balanced"], best
