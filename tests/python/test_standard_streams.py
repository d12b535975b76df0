"""`-` as standard input or output, wherever the command takes a file; and the answers that `--json` prints."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import BINARY, EXAMPLES, HUNG, SIZES, fuse_words

if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)

KERNEL = EXAMPLES / "matmul_pointers.py"
GATHER = "all_gather_matmul:N=96,K=64,dtype=fp32"
TRACE = {"traceEvents"}


@pytest.fixture
def plan(syncopate):
    return syncopate("plan", "make", "all_gather", "--ranks", 3, "--tensor", "A:50x48:fp32", "-o", "-").out


def from_input(words: list) -> list:
    """`fuse FILE.py:NAME …` of a kernel on standard input."""
    return [words[0], f"-:{words[1].rpartition(':')[2]}", *words[2:]]


def test_what_is_written_to_standard_output_has_it_alone(plan, syncopate, plan_3, tmp_path):
    traced = syncopate("plan", "simulate", "-", "--trace", "-", stdin=plan)
    assert json.loads(traced.out)["traceEvents"] and "makespan" in traced.err
    ElementTree.fromstring(syncopate("plan", "show", "-", "--svg", "-", stdin=plan).out)
    drawn = syncopate(*fuse_words("matmul_pointers", plan_3, tmp_path / "out"), "--svg", "-")
    assert drawn.code == 0, drawn.err
    ElementTree.fromstring(drawn.out)
    assert "transfers" in drawn.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["plan", "simulate", "-", "--trace", "-", "--json"], "--trace - and --json both write"),
        (["fuse", "x.py:k", "--plan", "-", "--svg", "-", "--json"], "--svg - and --json both write"),
        (["fuse", "x.py:k", "--plan", "-", "--svg", "-", "--show", "graph"], "--svg - and --show both write"),
        (["compile", GATHER, "-o", "-", "--json"], "--output - and --json both write"),
        (["run", f"{GATHER},M=64", "--trace", "-", "--json"], "--trace - and --json both write"),
        (["fuse", "-:k", "--plan", "-"], "only one of the kernel and the plan can be standard input"),
        (["tune", "--export", "-", "--json"], "--json does not belong to --export"),
    ],
)
def test_two_answers_on_one_standard_output_are_refused(words, part, plan, syncopate):
    outcome = syncopate(*words, stdin=plan)
    assert outcome.code == 2, (outcome.out, outcome.err)
    assert part in outcome.err and not outcome.out


def test_standard_input_is_read_once(plan, syncopate):
    outcome = syncopate("plan", "simulate", "-", "--topology", "-", stdin=plan)
    assert outcome.code == 1 and "only one file can be -" in outcome.err


def test_a_kernel_is_named_in_standard_input(syncopate, plan_3, tmp_path):
    text, sizes = KERNEL.read_text(), ",".join(f"{name}={value}" for name, value in SIZES.items())
    sizes += ",stride_am=48,stride_ak=1,stride_bk=40,stride_bn=1,stride_cm=40,stride_cn=1"
    options = ["--args", sizes, "--tensor", "c_ptr=50x40:fp32"]
    shown = syncopate("kernel", "show", "-:matmul_kernel", *options, stdin=text)
    assert shown.code == 0, shown.err
    assert shown.out.startswith("matmul_kernel (-:")
    words = from_input(fuse_words("matmul_pointers", plan_3, tmp_path / "out"))
    fused = syncopate(*words, stdin=text)
    assert fused.code == 0, fused.err
    outcome = syncopate("kernel", "show", "-:nothing", stdin=text)
    assert outcome.code == 1 and "nothing" in outcome.err


def test_a_run_writes_its_trace_to_standard_output(syncopate):
    outcome = syncopate("run", "all_gather_matmul:M=64,N=32,K=32,dtype=fp32", "--ranks", 2, "--trace", "-")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["traceEvents"]
    assert "rank 1: 1 call" in outcome.err


def test_a_bundle_goes_through_standard_output_and_input():
    def piped(*words, given=b""):
        done = subprocess.run([BINARY, *words], input=given, capture_output=True, timeout=HUNG)
        assert done.returncode == 0, done.stderr
        return done

    made = piped("compile", GATHER, "--rows", "16", "--ranks", "2", "--arch", "host", "-o", "-")
    assert b"for host, 2 ranks" in made.stderr
    for command in ("show", "check", "run"):
        assert json.loads(piped("bundle", command, "-", "--json", given=made.stdout).stdout)


def test_bundles_answer_programs(syncopate, tmp_path):
    file = tmp_path / "gather.sybundle"
    words = ["compile", GATHER, "--rows", "16,64", "--ranks", 2, "--arch", "host", "-o", file, "--json"]
    made = json.loads(syncopate(*words).out)
    assert made == {"output": str(file), "name": GATHER, "arch": "host", "ranks": 2, "kernels": 0}
    whole = json.loads(syncopate("bundle", "check", file, "--json").out)
    assert (whole["ok"], whole["findings"], whole["programs"], whole["ranks"]) == (True, [], 2, 2)
    ran = json.loads(syncopate("bundle", "run", file, "--check", "--json").out)
    assert ran["ok"] and ran["checked"] and [one["rows"] for one in ran["runs"]] == [16, 64, 61]
    assert all(one["calls"] == 2 and one["bytes"] > 0 for one in ran["runs"])
    late = syncopate("bundle", "run", file, "--rows", "16,65", "--json")
    answer = json.loads(late.out)
    assert late.code != 0 and not answer["ok"] and "65" in answer["error"] and len(answer["runs"]) == 1
    file.write_bytes(file.read_bytes()[:-20])
    broken = syncopate("bundle", "check", file, "--json")
    assert broken.code == 1 and not json.loads(broken.out)["ok"]
    assert json.loads(broken.out)["findings"][0]["message"]


def test_the_store_answers_programs(syncopate, tmp_path):
    cache = {"SYNCOPATE_CACHE_DIR": str(tmp_path)}
    for words in (["--json"], []):
        shown = syncopate("tune", "--show", "matmul_all_reduce", *words, **cache)
        assert shown.code == 1 and "nothing is stored for matmul_all_reduce" in shown.err
    assert json.loads(syncopate("tune", "--forget", "all", "--json", **cache).out) == {"forgot": 0}
    exported = syncopate("tune", "--export", "-", **cache).out
    answer = syncopate("tune", "--import", "-", "--json", stdin=exported, **cache)
    assert json.loads(answer.out) == {"results": 0, "new": 0}
