"""Operators over several nodes of host ranks, in Triton's interpreter; run by test_nodes.py.

    host_nodes.py NODES PLACES [CALLS]                     forked ranks that meet in a folder
    python -m torch.distributed.run … host_nodes.py NODES  ranks of a torch process group (gloo)

Calls follow each other with fresh data; transfers are delayed at random. Results must be those of the products and sums in
fp32. Exits 1 with the first thing that is wrong.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]
if "RANK" in os.environ:  # ranks of this machine stand for hosts
    places = int(os.environ["WORLD_SIZE"]) // int(sys.argv[1])
    os.environ["SYNCOPATE_HOST_ID"] = f"host{int(os.environ['RANK']) // places}"

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from host_script import expect  # noqa: E402
from syncopate import ops, ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.strategy import SMALL, Strategy  # noqa: E402

KINDS = {
    ops.AllGatherMatmul: {},
    ops.MatmulReduceScatter: {"split": 2},
    ops.MatmulAllReduce: {},
    ops.MatmulAllToAll: {},
    ops.AllToAllMatmul: {},
}


def numbers(shape: tuple[int, ...], *seed: int) -> torch.Tensor:
    """Small whole numbers: sums of products are exact."""
    generator = torch.Generator().manual_seed(sum(n * 7919**i for i, n in enumerate(seed)))
    return torch.randint(-2, 3, shape, generator=generator).float()


def check(group: sy.Group, kind: type, calls: int, **chosen) -> None:
    size = group.size
    strategy = replace(Strategy(**chosen), tilings=(SMALL,))
    op = kind(
        16 * size,
        32,
        32,
        dtype=torch.float32,
        group=group,
        strategy=strategy,
        host_delay=1e-3,
        seed=group.rank,
        deadline=120.0,
    )

    def x_of(rank: int, index: int) -> torch.Tensor:
        return numbers(op.shapes(rank)["x"], 3, index, rank)

    def weights_of(rank: int) -> tuple[torch.Tensor, ...]:
        return tuple(
            numbers(shape, 5, i, rank) for i, (_, shape) in enumerate(list(op.shapes(rank).items())[1:])
        )

    places, schedule = size // group.nodes, op.prepare().schedule
    first = group.rank // places * places
    expect(
        schedule.ranks == range(first, first + places),
        f"{kind.__name__}: rank {group.rank} made {schedule.ranks}",
    )
    for index in range(calls):
        out = torch.full_like(op.empty(op.out_rows, op.n), float("nan"))
        op.run(x_of(group.rank, index), weights_of(group.rank), out)
        op.check()
        wanted = op.reference(lambda rank, index=index: x_of(rank, index), weights_of)
        expect(torch.equal(out, wanted), f"{kind.__name__}, call {index}: wrong")
    op.close()


def attends(group: sy.Group, nodes: int) -> None:
    """Rings that go from node to node, and heads exchanged inside; by default rings on both levels."""
    from host_attention import check_case

    place = ranks.Place(group.rank, group.size, "", "")
    check_case("all_gather causal", place, group)
    if group.size // nodes > 1:
        check_case("ulysses_ring contiguous causal", place, group)
    check_case("double_ring zigzag causal", place, group)
    check_case("ring zigzag causal bounded", place, group)
    op = ops.Attention(1, 1, 1, 32 * group.size, 16, torch.bfloat16, group)
    expect(op.kind == ("double_ring" if group.size > nodes else "ring"), f"auto is {op.kind}")
    op.close()


def differentiates(group: sy.Group, place: ranks.Place) -> None:
    """Gradients against fp64; where K and V are gathered, their sums are those of rank order, bit for bit."""
    from host_attention_backward import check_case

    check_case("deterministic", place, group)
    check_case("ring zigzag", place, group)


def learns(each: int = 32, **options) -> None:
    """By autograd, of the kind that nobody has chosen: dK and dV go around behind K and V."""
    import torch.distributed as dist
    from host_attention import random, seen_by
    from host_attention_backward import right_gradients

    size, rank = dist.get_world_size(), dist.get_rank()
    s = each * size
    q, k, v, grad = (random((1, 2 if n in (1, 4) else 1, s, 16), n) for n in range(1, 5))
    rows = slice(each * rank, each * (rank + 1))
    own = [t[:, :, rows].contiguous().requires_grad_() for t in (q, k, v)]
    o, _ = sy.ops.attention(*own, dist.group.WORLD, causal=True, **options)
    o.backward(grad[:, :, rows])
    seen = seen_by(torch.arange(s), s, True, 0, [])
    for one, whole in zip(own, right_gradients(q, k, v, grad, None, 16**-0.5, seen), strict=True):
        error = float((one.grad.double() - whole[:, :, rows]).abs().max() / whole.abs().max())
        expect(error < 2e-2, f"a gradient over nodes is {error} off")


def learns_without_room(group: sy.Group) -> None:
    """Where tiles that wait would leave NCCL no multiprocessors, K and V come before, and the report says so."""
    ops.AttentionBackward._room = lambda backward: None if backward.kept else 0
    before = str(sy.report())
    learns(48)
    learns(40, kind="double_ring")
    learns(64, bounded=True)
    rows = [row for row in str(sy.report()).splitlines() if "are gathered before" in row]
    expect("are gathered before" not in before and len(rows) >= 1, f"the report says: {sy.report()}")
    shape = (1, 2 * group.size, 2 * group.size, 48 * group.size, 16, torch.bfloat16, group)
    op = ops.AttentionBackward(*shape, kind="ulysses", parts=2)  # of heads that it then does not exchange
    expect(op.gathers and op.kind == "all_gather", f"gathers {op.gathers}, by {op.kind}")
    try:  # ranks in a folder have nothing to gather by
        ops.AttentionBackward(1, 2, 1, 48 * group.size, 16, torch.bfloat16, of_no_torch(group))
    except ValueError as error:
        expect("which takes a torch process group" in str(error), str(error))
    else:
        raise AssertionError("without torch: nothing is said")


def fails_on_one_node(group: sy.Group, nodes: int) -> None:
    """Where one node alone cannot make its part, or compile it, all ranks take the pair, and say why."""
    import syncopate.torch  # noqa: F401
    import torch.distributed as dist
    from syncopate.call.prepared import Prepared
    from syncopate.face.fused import FusedKernel
    from syncopate.torch import calls

    chosen, calls._chosen = calls._chosen, lambda *_: (Strategy(tilings=(SMALL,)), False)
    for rows, (owner, name) in zip((8, 9), ((FusedKernel, "_fuse"), (Prepared, "compile")), strict=True):
        works = getattr(owner, name)

        def fails(self, *given, works=works, name=name, **options):
            if group.rank // (group.size // nodes) == nodes - 1:
                raise ValueError(f"this node's {name} fails")
            return works(self, *given, **options)

        setattr(owner, name, fails)
        try:
            x, w = numbers((rows, 48), 5, group.rank), numbers((48, 16), 6)
            y = torch.ops.syncopate.all_gather_matmul(x, w, dist.group.WORLD.group_name)
        finally:
            setattr(owner, name, works)
        whole = torch.cat([numbers((rows, 48), 5, rank) for rank in range(group.size)])
        expect(torch.equal(y, whole @ w), f"{name}: the pair differs")
        said = [row for row in str(sy.report()).splitlines() if f"this node's {name} fails" in row]
        expect(len(said) == 1, f"{name}: the report says: {sy.report()}")
    calls._chosen = chosen


def completes_alike(group: sy.Group, nodes: int) -> None:
    """Hosts whose machine files differ would leave a strategy's rest to others; rank 0 says what it is."""
    from syncopate import _syncopate

    completed = _syncopate.tune.complete

    def otherwise(*given, **options):
        made = completed(*given, **options)
        return replace(made, split=4) if group.rank // (group.size // nodes) == nodes - 1 else made

    _syncopate.tune.complete = otherwise
    try:
        check(group, ops.MatmulReduceScatter, 1, split=2)
    finally:
        _syncopate.tune.complete = completed


def of_no_torch(group: sy.Group) -> sy.Group:
    return replace(group, torch_group=None)


def refused(group: sy.Group, nodes: int) -> None:
    """What does not go over nodes yet says why, and what does, on all ranks, before any of them waits for another."""
    x, ids = torch.ones(4, 32), torch.zeros(4, 2, dtype=torch.int32)
    w1, w2 = torch.ones(1, 32, 64), torch.ones(1, 32, 32)
    weights, alone = torch.ones(4, 2), group if group.process_group is None else of_no_torch(group)
    by_torch = "over several nodes it takes a torch process group"
    for what, wanted, call in (
        ("moe", by_torch, lambda: ops.moe(x, ids, weights, w1, w2, alone)),
        ("dispatch", by_torch, lambda: ops.dispatch(x, ids, group.size, alone)),
        ("Moe", by_torch, lambda: ops.Moe(4, group.size, 2, 32, 32, torch.float32, alone)),
    ):
        try:
            call()
        except ValueError as error:
            expect(wanted in str(error), f"{what}: {error}")
        else:
            raise AssertionError(f"{what} is not refused")


def differ(group: sy.Group, nodes: int) -> None:
    """Nodes that make parts of other programs are told apart by what differs."""
    from example_calls import CALLS, Blocks

    example, places = CALLS["matmul_pointers"], group.size // nodes
    on_last = group.rank // places == nodes - 1
    tensor = sy.Tensor("A", (16 * group.size, 32), "fp32")
    x, w = torch.ones(16, 32), torch.ones(32, 32)

    def call(split: int, rows: int) -> str:
        mesh = sy.Mesh(node=nodes, gpu=places)
        plan = sy.plans.all_gather(mesh, tensor, split=split, algorithm="hierarchical").over_nodes()
        fused = example.fuse(plan, group=group)
        try:
            example.launch(fused, x, w, torch.zeros(rows, 32), Blocks(16, 16, 16))
        except Exception as error:  # noqa: BLE001 - its text is looked at
            return f"{type(error).__name__}: {error}"
        return ""

    text = call(2 if on_last else 1, 16 * group.size)
    expect("they differ first in the program: rank " in text, f"other plans on the last node: {text}")
    text = call(1, 16 * group.size)
    expect(text == "", f"the same program fails: {text}")


def calls_something_else(group: sy.Group, nodes: int) -> None:
    """Who sets something up while others call hears of it from its node, long before ranks give up waiting for a set-up; those of
    other nodes miss it in their calls."""
    size, places = group.size, group.size // nodes

    def call(m: int) -> str:
        try:
            if m not in known:
                known[m] = ops.AllGatherMatmul(
                    m,
                    32,
                    32,
                    dtype=torch.float32,
                    group=group,
                    strategy=Strategy(tilings=(SMALL,)),
                    deadline=5.0,
                )
            x, w = torch.ones(known[m].shard_rows, 32), torch.ones(32, 32)
            known[m].run(x, (w,), known[m].empty(m, 32))
            known[m].check()
        except sy.SyncopateError as error:
            return str(error)
        return ""

    known: dict[int, ops.AllGatherMatmul] = {}
    text = call(16 * size)
    expect(text == "", f"a call of all: {text}")
    began = time.monotonic()
    text = call((24 if group.rank == size - 1 else 16) * size)
    if group.rank // places < nodes - 1:
        expect(", call 2: " in text, f"rank {group.rank}, of another node: {text}")
        return
    expect(f"rank {group.rank}: the ranks' calls differ: " in text, f"rank {group.rank} hears: {text}")
    expect(f"; rank {size - 1}: all_gather_matmul [{24 * size}, 32, 32]" in text, f"it is not named: {text}")
    expect(time.monotonic() - began < 60, "it is told late")


def work(group: sy.Group, calls: int, nodes: int) -> None:
    expect(group.nodes == nodes, f"the group is on {group.nodes} nodes")
    for kind, chosen in KINDS.items():
        check(group, kind, calls, **chosen)
    attends(group, nodes)
    refused(group, nodes)
    differ(group, nodes)
    completes_alike(group, nodes)
    text = str(sy.report())
    for kind in KINDS:
        rows = [row for row in text.splitlines() if f"between nodes, {kind.name} " in row]
        expect(len(rows) == 1 and f"rank {group.rank} sends" in rows[0], f"the report says: {text}")


def main() -> None:
    torch.set_num_threads(1)
    nodes = int(sys.argv[1])
    if "RANK" in os.environ:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        work(sy.group.of_process_group(None, "host"), 1, nodes)
        learns()
        learns_without_room(sy.group.of_process_group(None, "host"))
        fails_on_one_node(sy.group.of_process_group(None, "host"), nodes)
        dist.destroy_process_group()
        return
    places, calls = int(sys.argv[2]), int(sys.argv[3])

    def of_rank(place: ranks.Place) -> None:
        group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
        group.take_nodes(nodes)
        work(group, calls, nodes)
        differentiates(group, place)
        apart = of_folder(place.folder, place.rank, place.size, place.run_id + "-apart", "host")
        apart.take_nodes(nodes)
        calls_something_else(apart, nodes)

    ranks.run(nodes * places, of_rank, timeout=600.0)
    print(f"{nodes} nodes of {places}: {len(KINDS)} operators, {calls} calls, exact")


if __name__ == "__main__":
    main()
