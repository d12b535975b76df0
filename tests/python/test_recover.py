"""Groups that go on after a rank died, started as processes of their own: a launcher would end them all."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import HUNG, ROOT, SWEEP

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

BEGIN = """
import os, signal, sys, time
os.environ["TRITON_INTERPRET"] = "1"
import torch
import syncopate as sy
from syncopate import ops
from syncopate.group import of_folder

rank, size, folder, again = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "again"
torch.set_num_threads(1)

def make(group, deadline=3.0):
    chosen = ops.Strategy((ops.Tiling(16, 16, 16, 2, -1, "ieee", 2),))
    return ops.AllGatherMatmul(16 * group.size, 32, 32, torch.float32, group, strategy=chosen, deadline=deadline)

def right(op, group, ranks):
    y = op(torch.full((16, 32), float(ranks[group.rank] + 1)), torch.eye(32))
    return [row[0].item() for row in y[::16]] == [r + 1.0 for r in ranks]

def until_fault(call):
    try:
        for _ in range(3):
            call()
    except sy.MachineError as error:
        return str(error)
    raise AssertionError("calls without a rank")
"""


def rank_of(code: str, rank: int, size: int, folder, again: str = "first") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code), str(rank), str(size), str(folder), again],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=HUNG)
    assert process.returncode == 0, out + errors
    return out


def died(process: subprocess.Popen) -> None:
    process.communicate(timeout=HUNG)
    assert process.returncode == -signal.SIGKILL


FOLDER = """
group = of_folder(folder, rank, size, "run", "host", again=again)
if not again:
    op = make(group)
    assert right(op, group, range(size))
    if rank == 0:
        from syncopate.host import interpreter
        interpreter.launch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    until_fault(lambda: right(op, group, range(size)))
"""


def test_the_rest_goes_on_when_rank_0_is_killed_in_a_kernel(tmp_path):
    code = (
        FOLDER
        + """
assert sy.recover(group, deadline=15) is group
assert (group.rank, group.size) == (rank - 1, 2), group
try:
    right(op, group, [1, 2])
except ValueError as error:
    print(error)
op = make(group)
assert right(op, group, [1, 2]) and right(op, group, [1, 2])
"""
    )
    ranks = [rank_of(code, rank, 3, tmp_path) for rank in range(3)]
    died(ranks[0])
    for rank in ranks[1:]:
        assert "was made in a group of 3 ranks, which has gone on with 2: make it anew" in ended(rank)


@pytest.mark.sweep
def test_a_rank_that_is_started_again_joins_and_calls_by_name_go_on(tmp_path):
    code = (
        FOLDER
        + """
sy.recover(group, deadline=120)
assert (group.rank, group.size) == (rank, 3)
x = torch.full((16, 32), float(rank + 1))
op = make(group)
assert right(op, group, range(3))
y = ops.all_gather_matmul(x, torch.eye(32), group)
assert [row[0].item() for row in y[::16]] == [1, 2, 3]
"""
    )
    ranks = [rank_of(code, rank, 3, tmp_path) for rank in range(3)]
    died(ranks[0])
    ranks[0] = rank_of(code, 0, 3, tmp_path, "again")
    for rank in ranks:
        ended(rank)


@pytest.mark.parametrize("nodes", [1, 2] if SWEEP else [2])
def test_a_late_rank_costs_one_failed_call(tmp_path, nodes):
    code = """
group = of_folder(folder, rank, size, "run", "host")
group.take_nodes(NODES)
op = make(group, deadline=1.5)
assert right(op, group, range(2))
for go_on in (op.reset, lambda: sy.recover(group, deadline=60), op.reset):
    group.barrier("there")
    if rank == 1:
        time.sleep(3)
    print(until_fault(lambda: right(op, group, range(2))))
    go_on()
    assert group.nodes == NODES and right(op, group, range(2)) and right(make(group), group, range(2))
"""
    code = code.replace("NODES", str(nodes))
    for rank in [rank_of(code, rank, 2, tmp_path) for rank in range(2)]:
        ended(rank)


@pytest.mark.sweep
def test_process_groups_made_anew_take_the_place_of_one_whose_store_died(tmp_path):
    code = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/first", rank=rank, world_size=size)
sy.set_deadline(3.0)
old = dist.group.WORLD
x = torch.full((16, 32), float(rank + 1))
def call(group):
    y = ops.all_gather_matmul(x, torch.eye(32), group)
    return [row[0].item() for row in y[::16]]
assert call(old) == [1, 2, 3]
if rank == 0:
    from syncopate.host import interpreter
    interpreter.launch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
until_fault(lambda: call(old))
dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"file://{folder}/second", rank=rank - 1, world_size=2)
sy.recover(old, to=dist.group.WORLD, deadline=60)
assert call(dist.group.WORLD) == [2, 3]
y = torch.ops.syncopate.all_gather_matmul(x, torch.eye(32), dist.group.WORLD.group_name)
assert [row[0].item() for row in y[::16]] == [2, 3]
os._exit(0)
"""
    ranks = [rank_of(code, rank, 3, tmp_path) for rank in range(3)]
    died(ranks[0])
    for rank in ranks[1:]:
        ended(rank)


@pytest.mark.sweep
def test_a_smaller_group_knows_on_which_nodes_its_ranks_are(tmp_path):
    code = """
import torch.distributed as dist
os.environ["SYNCOPATE_HOST_ID"] = f"host{rank // 2}"
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
sy.set_deadline(3.0)
group = sy.group.of_process_group(None, "host")
def call():
    y = ops.all_gather_matmul(torch.full((16, 32), float(rank + 1)), torch.eye(32), group)
    return [row[0].item() for row in y[::16]]
assert call() == [1, 2, 3, 4] and group.nodes == 2
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
until_fault(call)
sy.recover(group, deadline=15)
assert group.size == 3
print(until_fault(call))
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sy.recover(group, deadline=15)
assert call() == [1, 3] and call() == [1, 3] and group.nodes == 2
os._exit((sys.stdout.flush(), 0)[1])
"""
    ranks = [rank_of(code, rank, 4, tmp_path) for rank in range(4)]
    died(ranks[3])
    died(ranks[1])
    for rank in (ranks[0], ranks[2]):
        assert "the group's ranks are 2 on host0, 1 on host1" in ended(rank)
