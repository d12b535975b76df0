"""Bad input to the command: the message says what is wrong and where, the exit code whose fault it is (1: the input, 2: the
command line, 3: the machine), and nothing is written, left behind or waited for."""

import copy
import json
import shutil
import subprocess
import sys

import pytest
from conftest import BINARY, EXAMPLES, SWEEP, fuse_words
from fused_folder import rewrite

if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)
pytest.importorskip("triton")

KERNEL = EXAMPLES / "matmul_pointers.py"
LINES = KERNEL.read_text().splitlines()


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def refused(outcome, code: int, *parts: str) -> str:
    assert outcome.code == code, (outcome.code, outcome.out, outcome.err)
    assert outcome.err.startswith("error: "), outcome.err
    assert "Traceback" not in outcome.err, outcome.err
    for part in parts:
        assert part in outcome.err, outcome.err
    return outcome.err


# ---------------------------------------------------------------------------------------------------------------------
# fuse


@pytest.fixture
def fuse(syncopate, plan_3, tmp_path):
    """fuse(code, part, …, edit=words → words, kernel=text): the words of a good command line, edited, are refused."""

    def check(code, *parts, edit=lambda words: words, kernel=None):
        words = fuse_words("matmul_pointers", plan_3, tmp_path / "out")
        if kernel is not None:
            (tmp_path / "kernel.py").write_text(kernel)
            words[1] = f"{tmp_path / 'kernel.py'}:matmul_kernel"
        refused(syncopate(*edit(words)), code, *parts)
        assert not (tmp_path / "out").exists()

    return check


def replacing(old: str, new: str):
    def edit(words):
        assert any(old in word for word in words)
        return [word.replace(old, new) for word in words]

    return edit


def adding(*more: str):
    return lambda words: [*words, *more]


def edited(old: str, new: str) -> str:
    text = KERNEL.read_text()
    assert text.count(old) == 1
    return text.replace(old, new)


def test_a_bracket_that_is_never_closed_is_shown_where_it_is(fuse):
    line = line_of("num_pid_m = tl.cdiv(M, BLOCK_M)")
    column = LINES[line - 1].index("(") + 1
    kernel = edited("num_pid_m = tl.cdiv(M, BLOCK_M)", "num_pid_m = tl.cdiv(M, BLOCK_M")
    fuse(1, f"kernel.py:{line}:{column}: syntax error: `(` is never closed", kernel=kernel)


def test_a_statement_that_is_none_has_its_line_and_column(fuse):
    line = line_of("num_pid_in_group = ")
    fuse(
        1, f"kernel.py:{line}:", "syntax error", kernel=edited("num_pid_in_group = ", "num_pid_in_group = = ")
    )


def test_an_unknown_kernel_is_named_with_those_there_are(fuse):
    fuse(
        1,
        f"{KERNEL}: no function `matmul_kernl`",
        "matmul_kernel",
        edit=replacing(":matmul_kernel", ":matmul_kernl"),
    )


def test_an_unknown_parameter_to_bind_is_named(fuse):
    fuse(1, "kernel `matmul_kernel` has no parameter `x_ptr`", edit=adding("--bind", "x_ptr=A"))


def test_an_unknown_plan_tensor_is_named(fuse):
    fuse(1, "the plan has no tensor X to bind a_ptr to", edit=replacing("a_ptr=A", "a_ptr=X"))


def test_a_plan_tensor_or_an_option_that_is_misspelt_is_named(fuse, syncopate, tmp_path):
    fuse(
        1,
        'the plan has no tensor a to bind a_ptr to; did you mean "A"?',
        edit=replacing("a_ptr=A", "a_ptr=a"),
    )
    for words in (("run", str(tmp_path), "--rank", "4"), ("plan", "make", "all_gather", "--rank=4")):
        outcome = syncopate(*words)
        assert outcome.code == 2
        assert '; did you mean "--ranks"?' in outcome.err


def test_a_plan_of_which_nothing_is_bound_is_refused(fuse):
    def unbound(words):
        at = words.index("--bind")
        return words[:at] + words[at + 2 :]

    fuse(2, "no parameter is bound to a tensor of the plan (A): say which one is, by --bind", edit=unbound)


def test_together_no_tile_waits_for_less_than_another(syncopate, plan_3, tmp_path):
    words = fuse_words("matmul_pointers", plan_3, tmp_path / "out")
    waits = []
    for more in ([], ["--together"]):
        outcome = syncopate(*words, *more)
        assert outcome.code == 0, outcome.err
        slots = json.loads((tmp_path / "out" / "schedule.json").read_text())["schedule"]["ranks"][1]["slots"]
        # Their number, and signal and lag of each.
        waits.append({tuple(slot[1 : 2 + 2 * slot[1]]) for slot in slots})
        shutil.rmtree(tmp_path / "out")
    assert len(waits[0]) > 1 and len(waits[1]) == 1, waits
    assert max(each[0] for each in waits[0]) <= next(iter(waits[1]))[0]


def test_kernel_sums_of_a_kernel_that_adds_up_nothing_are_refused(fuse):
    fuse(2, "--kernel-sums: this kernel adds up no contributions", edit=adding("--kernel-sums"))


def test_an_error_about_the_plan_names_its_file(fuse, plan_3):
    fuse(1, f"{plan_3}: the plan has no tensor X", edit=replacing("a_ptr=A", "a_ptr=X"))


def test_what_fuse_has_not_written_is_not_overwritten(syncopate, plan_3, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL.read_text())
    words = fuse_words("matmul_pointers", plan_3, tmp_path)
    refused(syncopate(*words), 2, "kernel.py that fuse has not written", "name another folder")
    words[1] = f"{tmp_path / 'kernel.py'}:matmul_kernel"
    refused(syncopate(*words), 2, "kernel.py would overwrite", "which is read")
    assert [file.name for file in tmp_path.iterdir()] == ["kernel.py"]
    assert (tmp_path / "kernel.py").read_text() == KERNEL.read_text()
    words = fuse_words("matmul_pointers", plan_3, tmp_path / "out")
    assert [syncopate(*words).code for _ in range(2)] == [0, 0], "its own files it writes anew"


def test_an_unknown_tensor_argument_is_named(fuse):
    fuse(1, "kernel `matmul_kernel` has no parameter `q_ptr`", edit=adding("--tensor", "q_ptr=3x3:fp32"))


def test_an_argument_that_is_missing_is_named_where_it_is_used(fuse):
    line = line_of("num_pid_m = tl.cdiv(M, BLOCK_M)")
    fuse(
        1,
        f"{KERNEL}:{line}:",
        "`BLOCK_M` has no value: give --args BLOCK_M=",
        edit=replacing("BLOCK_M=16,", ""),
    )


def test_an_unknown_argument_is_named(fuse):
    fuse(1, "kernel `matmul_kernel` has no parameter `BLOCK_Q`", edit=adding("--args", "BLOCK_Q=3"))


@pytest.mark.parametrize("other", ["50x32:fp32", "51x48:fp32", "50x48:bf16"])
def test_a_bound_tensor_that_is_not_the_plans_is_refused(other, fuse):
    message = f"parameter a_ptr is {other} but tensor A of the plan is 50x48:fp32"
    fuse(1, message, edit=replacing("a_ptr=50x48:fp32", f"a_ptr={other}"))


def test_a_load_before_the_loop_over_tiles_is_refused_at_its_line(syncopate, plan_3, tmp_path):
    """Nothing waits for what it reads; what no transfer brings may be loaded there."""
    kernel = tmp_path / "kernel.py"
    text = (EXAMPLES / "matmul_persistent_device_tma.py").read_text()
    loop = "    for tile_id in tl.range(start_pid"
    assert text.count(loop) == 1
    words = fuse_words("matmul_persistent_device_tma", plan_3, tmp_path / "out")
    words[1] = f"{kernel}:{words[1].partition(':')[2]}"
    kernel.write_text(text.replace(loop, "    early = tl.load(a_ptr)\n" + loop))
    line = 1 + kernel.read_text()[: kernel.read_text().index("early =")].count("\n")
    refused(syncopate(*words), 1, f"{kernel}:{line}:", "loads a_ptr before the loop over tiles")
    kernel.write_text(text.replace(loop, "    early = tl.load(b_ptr)\n" + loop))
    assert syncopate(*words).code == 0
    before, after = text.split(loop)
    rounds, _, rest = after.partition("\n\n\n")
    nested = (loop + rounds).replace("\n", "\n    ") + "\n\n\n" + rest
    kernel.write_text(before + "    if BLOCK_M > 0:\n        early = tl.load(a_ptr)\n    " + nested)
    again = [word.replace(str(tmp_path / "out"), str(tmp_path / "again")) for word in words]
    refused(syncopate(*again), 1, "loads a_ptr before the loop over tiles")


COLUMNS = """
import triton
import triton.language as tl

@triton.jit
def columns(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N, K: tl.constexpr, BN: tl.constexpr):
    tile = tl.program_id(0)
    rows, ks = tl.arange(0, M), tl.arange(0, K)
    while tile < N // BN:
        FIRST
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])
        cols = number * BN + tl.arange(0, BN)
        b = tl.load(b_ptr + ks[:, None] * N + cols[None, :])
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], tl.dot(a, b))
        tile += tl.num_programs(0)
"""


@pytest.mark.parametrize("place", ["before", "behind", "in a branch", "in a helper"])
def test_a_load_before_a_round_takes_its_tiles_id_is_refused_at_its_line(place, syncopate, tmp_path):
    """Nothing waits there for what it reads, though its address follows from no id."""
    load = "a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])"
    cols = "cols = number * BN + tl.arange(0, BN)"
    text = COLUMNS.replace("FIRST", "number = tile" if place == "before" else "pass")
    if place != "before":
        text = text.replace(cols, cols.replace("number", "tile"))
    if place == "in a branch":
        text = text.replace(load, f"if M > 2:\n            {load}")
    if place == "in a helper":
        text = text.replace("@triton.jit\ndef columns", "@triton.jit\ndef of(a_ptr, rows, ks, K):\n    return tl.load(a_ptr "
                            "+ rows[:, None] * K + ks[None, :])\n\n@triton.jit\ndef columns").replace(load, "a = of(a_ptr, rows, ks, K)")  # fmt: skip
    kernel = tmp_path / "kernel.py"
    kernel.write_text(text)
    plan = tmp_path / "plan.json"
    made = syncopate("plan", "make", "all_gather", "--ranks", "2", "--tensor", "A:32x16:fp32", "-o", plan)
    assert made.code == 0, made.err
    words = ["fuse", f"{kernel}:columns", "--bind", "a_ptr=A", "--args", "M=32,N=64,K=16,BN=16", "--tensor", "a_ptr=32x16:fp32",
             "--tensor", "b_ptr=16x64:fp32", "--tensor", "c_ptr=32x64:fp32", "--grid", "2", "--plan", plan, "-o", tmp_path / "out"]  # fmt: skip
    words = [str(word) for word in words]
    if place == "before":
        outcome = syncopate(*words)
        assert outcome.code == 0, outcome.err
        return
    line = 1 + text[: text.index("tl.load(a_ptr")].count("\n")
    refused(
        syncopate(*words),
        1,
        f"{kernel}:{line}:",
        "loads a_ptr before the round of the loop over tiles takes its tile's id",
    )


def test_an_address_that_depends_on_data_names_expression_line_and_directive(fuse):
    line = line_of("a = tl.load(a_ptrs")
    kernel = edited("offs_am = (pid_m * BLOCK_M", "offs_am = (tl.load(c_ptr + pid_m) * BLOCK_M")
    fuse(
        1,
        f"kernel.py:{line}:",
        "`a_ptrs` cannot be known before the kernel runs",
        f"`tl.load(c_ptr + pid_m)` (line {line_of('offs_am = ')})",
        "# @sy.reads a_ptr[",
        kernel=kernel,
    )


def test_a_directive_that_contradicts_the_kernel_is_refused_at_its_line(fuse):
    line = line_of("# @sy.axis_count M")
    fuse(1, f"kernel.py:{line}:", "GROUP_M", kernel=edited("M block=BLOCK_M", "M block=GROUP_M"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--bind", "b_ptr"], "--bind b_ptr: expected PARAMETER=TENSOR"),
        (["--bind", "a_ptr=A"], "a_ptr is bound already"),
        (["--args", "M"], "M"),
        (["--args", "M=50"], "--args gives M twice"),
        (["--tensor", "b_ptr=4by4:fp32"], "4by4"),
        (["--tensor", "b_ptr=4x4:fp31"], "fp31"),
        (["--grid", "1,2,3,4"], "1,2,3,4"),
        (["--device", "tpu"], "tpu not in {host,cuda}"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_a_wrong_command_line_is_exit_2(words, part, fuse):
    fuse(2, part, edit=adding(*words))


@pytest.mark.parametrize(
    ("plan", "part"),
    [
        (None, "plan.json: cannot be opened: No such file or directory"),
        (lambda text: text[: len(text) // 2], "plan.json:"),
        (lambda text: "[]", "plan.json"),
        (lambda text: text.replace("fp32", "fp31"), "fp31"),
        (lambda text: text.replace('"peer": 1', '"peer": 7'), "7"),
        (lambda text: text.replace("[0,48]", "[0,49]"), "49"),
        (lambda text: "\x00\xff" * 100, "plan.json"),
    ],
)
def test_a_plan_that_is_none_or_unsound_is_refused(plan, part, fuse, plan_3, tmp_path):
    path = tmp_path / "plan.json"
    if plan is not None:
        path.write_text(plan(plan_3.read_text()))
    fuse(1, part, edit=replacing(str(plan_3), str(path)))


def test_an_output_that_cannot_be_written_is_named(fuse, tmp_path):
    (tmp_path / "file").write_text("")
    fuse(1, "file/out", edit=replacing(str(tmp_path / "out"), str(tmp_path / "file" / "out")))


# ---------------------------------------------------------------------------------------------------------------------
# plan


def test_a_template_that_there_is_not_is_named_before_its_algorithm(syncopate):
    words = ["plan", "make", "all_gathr", "--ranks", 2, "--tensor", "A:8x4:fp32", "--algorithm", "rng"]
    refused(syncopate(*words), 2, 'there is no template "all_gathr"; did you mean "all_gather"?')


@pytest.mark.parametrize("option", ["--group", "--over", "--minor-sizes", "--output"])
def test_an_option_of_plan_make_that_is_empty_is_named(option, syncopate):
    words = ["plan", "make", "all_gather", "--ranks", 4, "--tensor", "A:8x4:fp32"]
    refused(syncopate(*words, option, ""), 2, f"{option}: it is empty; expected ")


MSCCL = """<algo name="{name}" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="1" coll="{coll}" inplace="1">
<gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"></gpu></algo>
"""


def test_a_pick_where_there_is_nothing_to_pick_from_is_refused(syncopate, tmp_path):
    file = tmp_path / "algo.xml"
    file.write_text(MSCCL.format(name="all", coll="allreduce"))
    outcome = syncopate("plan", "import", file, "--pick", 0, "-o", tmp_path / "plan.json")
    refused(outcome, 2, f"{file}: is msccl_xml, which holds one plan and no candidates: leave out --pick")
    assert not (tmp_path / "plan.json").exists()


def test_a_number_of_ranks_that_the_program_contradicts_is_refused(syncopate, tmp_path):
    (tmp_path / "step.hlo").write_text("""HloModule step, replica_count=4
ENTRY main {
  p = f32[4,8]{1,0} parameter(0)
  ROOT a = f32[16,8]{1,0} all-gather(p), replica_groups={{0,1,2,3}}, dimensions={0}
}
""")
    words = ["plan", "import", tmp_path / "step.hlo", "-o", tmp_path / "plan.json", "--ranks"]
    refused(syncopate(*words, 7), 2, "step.hlo: is a program of 4 devices; --ranks says 7: leave it out")
    assert not (tmp_path / "plan.json").exists()
    assert syncopate(*words, 4).code == 0


def test_names_in_any_script_are_shown_as_they_are(syncopate, tmp_path):
    file = tmp_path / "algo.xml"
    words = ["plan", "import", file, "--no-check", "-o", tmp_path / "plan.json"]
    file.write_text(MSCCL.format(name="全归约 é", coll="allreduce"))
    assert 'msccl_xml "全归约 é", collective allreduce' in syncopate(*words).out
    file.write_text(MSCCL.format(name="all", coll="归约"))
    refused(syncopate(*words), 1, 'coll="归约" is no collective that MSCCL knows')


# ---------------------------------------------------------------------------------------------------------------------
# run


def test_a_plan_for_another_number_of_ranks_is_refused(syncopate, fused_3):
    outcome = syncopate("run", fused_3, "--device", "host", "--ranks", 2)
    refused(outcome, 1, "schedule.json: the plan is for 3 ranks, asked for 2")


def test_a_folder_for_another_device_says_how_to_make_one(syncopate, fused_3, plan_3, tmp_path):
    outcome = syncopate("run", fused_3, "--device", "cuda")
    refused(outcome, 1, "fused for device host, asked to run on cuda", "syncopate fuse --device cuda")
    words = fuse_words("matmul_pointers", plan_3, tmp_path / "cuda")
    assert syncopate(*words, "--device", "cuda").code == 0  # fusing for GPUs needs none
    refused(syncopate("run", tmp_path / "cuda", "--device", "host"), 1, "fused for device cuda")


def test_a_machine_without_gpus_says_what_to_do(syncopate, plan_3, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    words = fuse_words("matmul_pointers", plan_3, tmp_path / "cuda")
    assert syncopate(*words, "--device", "cuda").code == 0
    for spec in (tmp_path / "cuda", "all_gather_matmul:M=64,N=64,K=64"):
        for ranks in ([], ["--ranks", "3"]):
            refused(syncopate("run", spec, "--device", "cuda", *ranks), 3, "use --device host")


@pytest.mark.parametrize(
    ("operator", "part"),
    [
        (
            "no/such/folder",
            "no/such/folder: there is no such folder, nor an operator of this name; there are all_gather_matmul",
        ),
        ("all_gather_matmul", "all_gather_matmul needs M"),
        ("all_gather_matmul:M=64,N=64", "all_gather_matmul needs K"),
        ("all_gather_matmul:M=64,N=64,K", '"K": expected NAME=VALUE'),
        ("all_gather_matmul:M=64,N=64,K=x", 'K: expected an integer from 1 to 1099511627776, got "x"'),
        ("all_gather_matmul:M=64,N=64,K=-8", 'K: expected an integer from 1 to 1099511627776, got "-8"'),
        ("all_gather_matmul:M=0,N=64,K=64", 'M: expected an integer from 1 to 1099511627776, got "0"'),
        ("all_gather_matmul:M=64,N=30,K=64", "N must be a multiple of 8 for bf16"),
        ("all_gather_matmul:M=64,N=32,K=6,dtype=fp32", "K must be a multiple of 4 for fp32"),
        ("all_gather_matmul:M=64,N=64,K=64,dtype=fp31", 'dtype: "fp31" is none that is known'),
        (
            "all_gather_matmul:M=64,N=64,K=64,dtype=int32",
            "expected dtype bf16, fp16, fp32 or fp8e4m3, got int32",
        ),
        ("all_gather_matmul:M=64,N=64,K=64,color=red", 'all_gather_matmul has no "color"'),
        ("all_gather_matmul:M=64,M=32,N=64,K=64", "M is given twice"),
        ("attention:S=64,kind=ring,kind=ring", "kind is given twice"),
    ],
)
def test_an_operator_that_is_none_is_exit_2(operator, part, syncopate):
    refused(syncopate("run", operator), 2, part)


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", 0],
        ["--ranks", "two"],
        ["--calls", 0],
        ["--deadline", -1],
        ["--deadline", "nan"],
        ["--seed", -1],
        ["--delay-ms", -1],
        ["--device", "tpu"],
        ["--what"],
    ],
)
def test_a_wrong_option_is_exit_2(words, syncopate, fused_3):
    refused(syncopate("run", fused_3, *words), 2, str(words[0]))


def test_memory_that_does_not_suffice_is_exit_3_before_anything_is_taken(syncopate):
    outcome = syncopate("run", "all_gather_matmul:M=4000000,N=64,K=400000", "--ranks", 3)
    refused(outcome, 3, "too little memory on this machine: 3 ranks need about", "GiB are free")


def test_a_folder_whose_tensors_do_not_fit_is_exit_3(syncopate, tmp_path):
    plan, rows = tmp_path / "plan.json", 2**33
    words = ["plan", "make", "all_gather", "--ranks", 2, "--tensor", f"A:{rows}x48:fp32", "-o", plan]
    assert syncopate(*words).code == 0
    words = fuse_words("matmul_pointers", plan, tmp_path / "out", M=rows, BLOCK_M=2**20)
    outcome = syncopate(*words)
    assert outcome.code == 0, outcome.err
    refused(syncopate("run", tmp_path / "out"), 3, "too little memory on this machine")


@pytest.mark.parametrize("missing", ["schedule.json", "kernel.py", "original.py"])
def test_a_folder_that_fuse_did_not_make_is_refused(missing, syncopate, fused_3, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(fused_3, folder)
    (folder / missing).unlink()
    refused(syncopate("run", folder), 1, missing, "No such file or directory", "syncopate fuse")
    (folder / missing).mkdir()
    refused(syncopate("run", folder), 1, missing, "Is a directory")


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(syncopate, fused_3, tmp_path):
    refused(syncopate("run", fused_3, "--trace", tmp_path / "no" / "trace.json"), 1, "trace.json")


@pytest.mark.parametrize("name", ["x.gif", "x", ".json"])
def test_a_trace_of_an_unknown_kind_is_refused_before_the_run(name, syncopate, fused_3, tmp_path):
    outcome = syncopate("run", fused_3, "--trace", tmp_path / name)
    refused(outcome, 2, f"--trace {tmp_path / name}: a trace is written to FILE.json or FILE.png")
    assert not list(tmp_path.iterdir())


# Garbage in schedule.json. Each is given to a real run, which must end by itself.

TEXTS = {
    "empty": lambda text: "",
    "truncated early": lambda text: text[:300],
    "truncated late": lambda text: text[: int(len(text) * 0.9)],
    "not an object": lambda text: "[]",
    "not text": lambda text: "\udcff\udcfe",
    "another schema": lambda text: text.replace("syncopate.schedule/1", "syncopate.schedule/9"),
    "deep": lambda text: "[" * 100_000,
}

VALUES = [
    (["stages", 0, "kernel"], "no such kernel!"),
    (["stages", 0, "kernel"], "other_kernel"),
    (["stages", 0, "grid"], [12, 1]),
    (["stages", 0, "grid"], ["12", 1, 1]),
    (["stages", 0, "grid"], [0, 1, 1]),
    (["device"], "tpu"),
    (["stages", 0, "bindings"], {"a_ptr": "B"}),
    (["stages", 0, "bindings"], {"q_ptr": "A"}),
    (["stages", 0, "tensors", "a_ptr", "shape"], [-1, 48]),
    (["stages", 0, "tensors", "a_ptr", "shape"], [5, 48]),
    (["stages", 0, "tensors", "b_ptr", "dtype"], "fp31"),
    (["stages", 0, "tensors", "b_ptr", "block"], "x"),
    (["plan", "mesh"], [["gpu", "three"]]),
    (["plan", "mesh"], [["gpu", 2]]),
    (["plan", "ranks"], None),
    (["schedule", "stages", 0, "slots"], -1),
    (["schedule", "stages", 0, "slots"], 10**12),
    (["schedule", "ranks"], []),
    (["schedule", "ranks", 1], {"signals": 3}),
    (["schedule", "ranks", 0, "transfers"], [None]),
    (["schedule", "ranks", 2, "slots"], [[-7]]),
]
if not SWEEP:  # each starts a process; the reader itself has tests in tests/emit
    VALUES = VALUES[::4]


@pytest.mark.parametrize("case", TEXTS)
def test_a_schedule_that_is_garbage_is_refused(case, syncopate, fused_3, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(fused_3, folder)
    text = TEXTS[case]((fused_3 / "schedule.json").read_text())
    (folder / "schedule.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(syncopate("run", folder, "--deadline", 2), 1, "schedule.json")


@pytest.mark.parametrize(("place", "value"), VALUES, ids=[f"{'.'.join(map(str, p))}={v}" for p, v in VALUES])
def test_a_schedule_with_a_wrong_value_is_refused(place, value, syncopate, fused_3, tmp_path):
    spec = json.loads((fused_3 / "schedule.json").read_text())
    at = spec = copy.deepcopy(spec)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    folder = tmp_path / "folder"
    shutil.copytree(fused_3, folder)
    (folder / "schedule.json").write_text(json.dumps(spec))
    refused(syncopate("run", folder, "--deadline", 2), 1)


def test_a_kernel_that_is_no_python_is_refused(syncopate, fused_3, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(fused_3, folder)
    for text, part in (
        ("def kernel(:\n", "kernel.py:1:12: invalid syntax"),
        (
            "import no_such_module\n",
            "kernel.py: its kernel matmul_kernel cannot be imported: No module named 'no_such",
        ),
        ("x = 3\n", "has no attribute 'matmul_kernel'"),
    ):
        rewrite(folder / "kernel.py", text)
        refused(syncopate("run", folder), 1, part)


# ---------------------------------------------------------------------------------------------------------------------
# the command line


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["foo"], 2, "there is no `syncopate foo`; there are "),
        (["plan", "chekc", "x"], 2, 'there is no `syncopate plan chekc`; did you mean "check"?'),
        (["plan", "check", ""], 1, "the name of a file is empty"),
        (["run", ""], 2, "it is empty; expected a folder or an operator"),
        (["plan", "show", "x", "--topology", "ring:4"], 2, "--topology belongs to --svg"),
        (["plan", "show", "x", "--all", "--svg", "y"], 2, "--all belongs to the table"),
        (["plan", "synth", "all_gather", "--topology", "ring:2", "--tensor", "A:8x8:fp32", "--seed", "-1"], 2,
         '"-1" is no whole number below 2^64'),
    ],
)  # fmt: skip
def test_a_wrong_word_is_named(words, code, part, syncopate):
    refused(syncopate(*words), code, part)


def test_a_kernel_in_a_file_that_is_too_long_is_refused_with_its_size(syncopate, tmp_path):
    kernel = "import triton\n\n\n@triton.jit\ndef k(a_ptr):\n    pass\n"
    for name, text in (
        ("lines", "x = 1\n" * 200_000),
        ("one", "x = '" + "y" * (1 << 20) + "'\n"),
        ("open", "(" * (1 << 21)),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(kernel + text)
        refused(
            syncopate("kernel", "show", f"{file}:k"), 1, f"{file}: has {file.stat().st_size} bytes", "2^20"
        )


def test_running_out_of_memory_is_exit_3(tmp_path):
    file = tmp_path / "long.py"
    file.write_text("x = [1, 2, 3]\n" * 60_000)
    code = f"import resource, os; resource.setrlimit(resource.RLIMIT_AS, (90 << 20,) * 2); os.execv({str(BINARY)!r}, "
    code += f"['syncopate', 'kernel', 'show', {str(file) + ':k'!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "error: out of memory\n")


def test_a_cache_folder_that_cannot_be_written_is_exit_3(syncopate):
    spec = "all_gather_matmul:M=64,N=64,K=64,dtype=fp32"
    outcome = syncopate("run", spec, "--ranks", 2, SYNCOPATE_CACHE_DIR="/proc/none")
    refused(outcome, 3, "emitted kernels cannot be kept in /proc/none/emitted", "set SYNCOPATE_CACHE_DIR")
    assert "__main__" not in outcome.err


def test_a_folder_whose_tensors_run_could_not_fill_is_not_made(syncopate, plan_3, tmp_path):
    words = fuse_words("matmul_pointers", plan_3, tmp_path / "out")
    at = next(i for i, word in enumerate(words) if word.startswith("c_ptr="))
    refused(
        syncopate(*words[: at - 1], *words[at + 1 :]),
        1,
        "the shape of `c_ptr` is not known",
        "--tensor c_ptr=",
    )
    assert not (tmp_path / "out").exists()


def test_nothing_is_imported_from_the_current_folder(tmp_path):
    for name in ("argparse", "numpy", "os", "runpy", "signal", "syncopate", "torch", "triton"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    words = [str(BINARY), "bench", "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "usage: syncopate bench" in done.stdout, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# What a message lists is what the command takes


def test_a_command_names_the_operators_that_it_takes(syncopate):
    """An unknown operator's error lists operators, none of which the same command refuses by name."""
    for words, more in (("run", []), ("tune", []), ("compile", ["-o", "-"])):
        listed = refused(syncopate(words, "nothing:M=1", *more), 2, "nothing")
        assert "attention_backward" not in listed
        names = listed.partition(";")[2].replace(",", " ").split()
        operators = [name for name in names if "_" in name or name in ("attention", "moe")]
        assert "matmul_all_reduce" in operators
        for name in operators:
            outcome = syncopate(words, f"{name}:nonsense=1", *more)
            assert "does not take" not in outcome.err and "is not tuned" not in outcome.err, outcome.err
            assert "do not hold" not in outcome.err, outcome.err
        refused(syncopate(words, "attention_backward:S=64", *more), 2, "attention_backward", "moe")


def test_compile_asks_for_rows_and_a_gpu_that_it_knows(syncopate):
    for spec, name in (("all_gather_matmul:N=64,K=64", "M"), ("moe:E=8,topk=2,H=24,F=20", "T")):
        refused(syncopate("compile", spec, "-o", "-"), 2, f"give --rows 16,64,1024, or {name} in the SPEC")
    refused(
        syncopate("compile", "attention", "--rows", 16, "-o", "-"), 2, "bundles do not hold this operator"
    )
    for arch in ("sm_80", "sm_89"):
        words = ["compile", "all_gather_matmul:M=64,N=64,K=64", "--arch", arch, "-o", "-"]
        refused(syncopate(*words), 2, f"--arch {arch}: bundles are for sm_90 and later")


def test_keys_that_were_removed_are_not_advised(syncopate):
    words = ["plan", "make", "--op", "all_gather_matmul:M=64,N=64,K=64", "--strategy"]
    listed = refused(syncopate(*words, '{"quite_another": 1}'), 1, "the keys here are placement")
    for key in ("pulled", "sum_parts", "phases", "tile_order"):
        assert key not in listed
        assert "did you mean" not in syncopate(*words, f'{{"{key}s": 1}}').err
    refused(syncopate(*words, '{"phases": false}'), 1, "was taken out")
