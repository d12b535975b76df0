"""PyTorch's face on host ranks: custom ops with their gradients, torch's own fused ops, compiled graphs, parallel styles."""

import operator
import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SWEEP

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("ranks", [2, 4] if SWEEP else [2])
def test_custom_ops_and_their_gradients_are_those_of_the_unfused_pairs_on(ranks, run):
    cycles = "100" if SWEEP and ranks == 2 else "3"
    outcome = run(sys.executable, HERE / "host_torch.py", ranks, SYNCOPATE_CYCLES=cycles)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out


@pytest.mark.parametrize("ranks", [2, 3] if SWEEP else [2])
def test_calls_by_cpp_are_those_of_python_on(ranks, run):
    outcome = run(sys.executable, HERE / "host_calls.py", ranks)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out


@pytest.mark.parametrize("ranks", [2, 4] if SWEEP else [2])
def test_compiled_models_are_rewritten_and_say_how_on(ranks, run):
    cycles = "100" if SWEEP and ranks == 2 else "4"
    outcome = run(sys.executable, HERE / "host_inductor.py", ranks, SYNCOPATE_CYCLES=cycles)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out


@pytest.mark.sweep  # it compiles C++
def test_a_module_compiled_ahead_by_aotinductor_calls_the_ops_without_python(run):
    outcome = run(sys.executable, HERE / "host_aoti.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out


def test_a_process_forks_while_its_threads_call_ops(run):
    outcome = run(sys.executable, HERE / "host_forks.py", 300, 3)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 300 forks" in outcome.out


def test_unusual_uses_are_right_or_refused(run):
    outcome = run(sys.executable, HERE / "host_torch_uses.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: " in outcome.out


def test_transforms_of_torch_func_are_right_or_refused(run):
    outcome = run(sys.executable, HERE / "host_transforms.py", 2)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 3 checks" in outcome.out


@pytest.mark.parametrize("how", ["torch,styles,compiled" if SWEEP else "torch,styles"])
def test_the_example_trains_to_the_same_losses_by(how, run):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--device", "cpu", "--small", "--steps", "3" if SWEEP else "2", "--how", how]
    outcome = run(
        *launch, ROOT / "examples" / "llama.py", *words, TRITON_INTERPRET="1", PYTHONPATH=str(ROOT / "python")
    )
    assert outcome.code == 0, outcome.out + outcome.err
    assert "the losses are the same" in outcome.out
    assert "all_gather_matmul: fused" in outcome.out


@pytest.mark.parametrize(
    "models", ["llama,phi3,qwen3,gemma,olmo2,glm4,starcoder2,cohere" if SWEEP else "llama"]
)
def test_a_model_of_transformers_compiles_to_fused_operators_with_the_same_logits(models, run):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--device", "cpu", "--tokens", "16", "--rounds", "1", "--model", models]
    words += ["--ways", "eager,compiled+syncopate,graphs+syncopate"]
    script = ROOT / "examples" / "transformers_tp.py"
    outcome = run(*launch, script, *words, TRITON_INTERPRET="1", PYTHONPATH=str(ROOT / "python"))
    assert outcome.code == 0, outcome.out + outcome.err
    assert "the logits are the same" in outcome.out
    fused = re.search(r"(\d+) of (\d+) collectives next to products were fused", outcome.out)
    assert fused and fused[1] == fused[2] != "0"


# Two ranks end as programs do, with their ops and groups as they are. What is registered first runs last.
UNCLOSED = """
import atexit, os, sys, tempfile
os.environ["TRITON_INTERPRET"] = "1"

def threads():
    return len(os.listdir("/proc/self/task"))

def say(what):  # in one piece, as two ranks share the output
    os.write(1, f"{what} {threads() - before}\\n".encode())

atexit.register(say, "left")
import torch
import torch.distributed as dist
import syncopate as sy
from syncopate import ops

folder, before = tempfile.mkdtemp(), threads()
child = os.fork()
torch.set_num_threads(1)
store = dist.FileStore(os.path.join(folder, "store"), 2)
dist.init_process_group("gloo", store=store, rank=int(child == 0), world_size=2)
before = threads()
ops.all_gather_matmul(torch.ones(8, 16), torch.ones(16, 8))
say("during")
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


# In a helper: a known call, a new one, and one of an operator object are refused.
REFUSED = """    for call in (
        lambda: ops.all_gather_matmul(*operands),
        lambda: ops.matmul_all_reduce(*operands),
        lambda: held(*operands[:2]),
        lambda: held.close(),
        lambda: ranks.barrier("met"),
    ):
        try:
            call()
        except ValueError as error:
            assert "forked" in str(error), error
        else:
            os._exit(3)
"""


def test_a_program_that_closes_nothing_leaves_no_thread_to_the_end_of_the_interpreter(run):
    outcome = run(sys.executable, "-c", UNCLOSED, PYTHONPATH=str(ROOT / "python"))
    assert outcome.code == 0, outcome.out + outcome.err
    assert sorted(set(outcome.out.splitlines())) == ["during 2", "left 0"]


# After a call each of two ranks forks a helper, which ends as programs do; then the ranks call again.
FORKING = """
import os, sys, tempfile
os.environ["TRITON_INTERPRET"] = "1"
import torch
import syncopate as sy
from syncopate import group
from syncopate import ops

folder = tempfile.mkdtemp()
child = os.fork()
torch.set_num_threads(1)
ranks = group.of_folder(folder, int(child == 0), 2, "once", "host")
operands = torch.ones(8, 16), torch.ones(16, 8), ranks
ops.all_gather_matmul(*operands)
held = ops.AllGatherMatmul(16, 8, 16, torch.float32, ranks)
held(*operands[:2])
helper = os.fork()
if helper == 0:
    sy.close()
    sys.exit(0)
assert os.waitpid(helper, 0)[1] == 0
ops.all_gather_matmul(*operands)
held(*operands[:2])
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_is_refused_at_once_and_its_parents_go_on(run):
    calling = FORKING.replace("    sy.close()\n", REFUSED)
    assert calling != FORKING
    outcome = run(sys.executable, "-c", calling, PYTHONPATH=str(ROOT / "python"))
    assert outcome.code == 0, outcome.out + outcome.err


def test_a_forked_child_ends_without_the_threads_that_it_does_not_have(run):
    outcome = run(sys.executable, "-c", FORKING, PYTHONPATH=str(ROOT / "python"))
    assert outcome.code == 0, outcome.out + outcome.err


def test_several_waits_for_one_collective_are_taken_as_one():
    import torch
    from syncopate.torch.simplify import wait_once

    c10d, aten = torch.ops._c10d_functional, torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    gathers = [graph.call_function(c10d.all_gather_into_tensor.default, (x, 2, name)) for name in "ab"]
    first, of_other, again = (
        graph.call_function(c10d.wait_tensor.default, (gathers[which],)) for which in (0, 1, 0)
    )
    total = graph.call_function(aten.add.Tensor, (first, of_other))
    total = graph.call_function(aten.add.Tensor, (total, again))
    graph.output(total)
    wait_once(graph)
    graph.lint()
    assert total.args[1] is first and total.args[0].args == (first, of_other)
    assert [len(gather.users) for gather in gathers] == [1, 1]


def test_moves_behind_several_waits_become_one_but_for_what_is_given_back():
    import torch
    from syncopate.torch.simplify import wait_once

    c10d, aten = torch.ops._c10d_functional, torch.ops.aten
    graph = torch.fx.Graph()
    gather = graph.call_function(c10d.all_gather_into_tensor.default, (graph.placeholder("x"), 2, "a"))
    made = []
    for rows in (4, 4, 8):
        wait = graph.call_function(c10d.wait_tensor.default, (gather,))
        split = graph.call_function(aten.split.Tensor, (wait, 2))
        pieces = [graph.call_function(operator.getitem, (split, index)) for index in range(2)]
        cat = graph.call_function(aten.cat.default, (pieces, 1))
        made.append(graph.call_function(aten.view.default, (cat, [rows, -1])))
    products = [graph.call_function(aten.mm.default, (view, view)) for view in made]
    returned = [graph.call_function(aten.view.default, (made[0].args[0], [2, -1])) for _ in range(2)]
    graph.output((*products, *returned))
    wait_once(graph)
    graph.lint()
    rows = [product.args[0] for product in products]
    assert rows[0] is rows[1] and rows[2] is not rows[0] and rows[2].args[0] is rows[0].args[0]
    assert len(graph.find_nodes(op="call_function", target=c10d.wait_tensor.default)) == 1
    assert len(graph.find_nodes(op="call_function", target=aten.cat.default)) == 1
    assert returned[0] is not returned[1] and {node.args[0] for node in returned} == {rows[0].args[0]}
