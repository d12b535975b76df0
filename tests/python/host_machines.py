"""Host ranks that know different machines, or would choose differently, set up the same plans; run by test_machines.py.

    host_machines.py RANKS [CHECK…]

Exits 1 with the first thing that is wrong.
"""

import json
import os
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate.group import of_process_group  # noqa: E402
from syncopate.torch import agreed, calls, inductor, report  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402

ROWS, D = 24, 16


@contextmanager
def apart(owner, name: str, other):
    """What `owner` chooses by that name, rank 1 would choose otherwise: as `other` makes of it."""
    choose = getattr(owner, name)

    def chosen(*given, **options):
        made = choose(*given, **options)
        return other(made) if dist.get_rank() else made

    with mock.patch.object(owner, name, chosen):
        yield


def agree(what: str, said) -> None:
    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, str(said))
    expect(len(set(each)) == 1, f"{what}: {each}")


def check_products(_name: str, size: int) -> None:
    """What is chosen, of every operator, with and without a store."""
    x, w = torch.ones(ROWS, 32), torch.ones(32, 32)
    of = {"all_gather_matmul": (ROWS * size, 32, 32), "matmul_reduce_scatter": (ROWS, 32, 32), "matmul_all_reduce": (ROWS, 32, 32),
          "matmul_all_to_all": (ROWS, 32, 32), "all_to_all_matmul": (ROWS, 32, 32), "feed_forward": (ROWS * size, 32, 32, 32)}  # fmt: skip
    for mode in ("off", "read"):
        os.environ["SYNCOPATE_TUNE"] = mode
        for name, extents in of.items():
            kind = sy.ops.OPERATORS[name]

            def more(strategy):
                return replace(strategy, programs=(strategy.programs or 4) + 1)

            with apart(_syncopate.tune, "choose", lambda found: (more(found[0]), *found[1:])):
                made = kind(*extents, torch.float32)
                made(x, *[w] * (2 if name == "feed_forward" else 1))
                agree(f"{name}, chosen, {mode}", made.strategy)
                made.close()
    os.environ["SYNCOPATE_TUNE"] = "read"


def check_attention(_name: str, size: int) -> None:
    """The kind, whatever the call says beside its extents; also of the backward, and of a strategy that leaves it open."""
    q, k = torch.ones(1, 2, ROWS, D, dtype=torch.bfloat16), torch.ones(1, 2, ROWS, D, dtype=torch.bfloat16)
    given = (1, 2, 2, ROWS * size, D)
    ring = lambda found: (sy.Strategy(kind="ring"), *found[1:3], "rank 1 says so")  # noqa: E731
    for options in (
        {}, {"causal": True}, {"cu_seqlens": [0, 5, ROWS * size]}, {"window": 5, "causal": True}, {"scale": 0.5},
        {"split": 2}, {"sharding": "zigzag"}, {"strategy": sy.Strategy(split=2)}, {"even": True},
    ):  # fmt: skip
        with apart(_syncopate, "choose_attention", ring):
            made = sy.ops.Attention(*given, **options)
            own = torch.ones(1, 2, made.num_rows, D, dtype=torch.bfloat16)
            made(own, own, own)
            agree(f"attention, {options}", (made.kind, made.why))
            made.close()
    with apart(_syncopate.ops, "rank_attention_backward", lambda ranked: [("ring", 0, 1.0, ""), *ranked]):
        backward = sy.ops.AttentionBackward(*given, causal=True)
        agree("attention_backward", backward.kind)
        backward.close()
        leaf = q.clone().requires_grad_()
        sy.ops.attention(leaf, k, k)[0].sum().backward()


def check_experts(_name: str, size: int) -> None:
    x, ids = torch.ones(4, 32), torch.zeros(4, 2, dtype=torch.int32)
    weights, w1, w2 = torch.ones(4, 2), torch.ones(1, 32, 64), torch.ones(1, 32, 32)

    def smaller(strategy):
        (tiling,) = strategy.tilings
        return replace(strategy, tilings=(replace(tiling, block_m=tiling.block_m * 2),))

    with apart(_syncopate.tune, "complete", smaller):
        made = sy.ops.Moe(4, size, 2, 32, 32, torch.float32)
        agree("moe", made.tiling)
        made.close()
        sy.ops.moe(x, ids, weights, w1, w2)
        rows, handle = sy.ops.dispatch(x, ids, size)
        agree("dispatch", rows.shape)
        sy.ops.combine(rows, weights, handle)


def check_modes(_name: str, size: int) -> None:
    """What SYNCOPATE_TUNE says on rank 0 is what all do: no rank waits for others that look for nothing."""
    sy.set_deadline(30.0, setup=30.0)
    before = os.environ.get("SYNCOPATE_TUNE", "read")
    for modes in (("read", "off"), ("off", "read"), ("off", "auto"), ("auto", "off")):
        os.environ["SYNCOPATE_TUNE"] = modes[dist.get_rank() > 0]
        made = sy.ops.Moe(4, size, 2, 32, 32, torch.float32, bound=8 * size)  # which is not searched for
        agree(f"moe, {modes}", made.strategy)
        made.close()
    os.environ["SYNCOPATE_TUNE"] = before
    sy.set_deadline(30.0, setup=600.0)


def check_unread(_name: str, size: int) -> None:
    """A machine file that one rank cannot read ends the call on all ranks, which go on to the next one."""
    sy.set_deadline(30.0, setup=30.0)
    group, x, w = dist.new_group(), torch.ones(ROWS, 32), torch.ones(32, 32)
    if dist.get_rank() == 1:
        os.environ["SYNCOPATE_MACHINE"] = "/there/is/none.json"
    try:
        sy.ops.matmul_all_reduce(x, w, group)
    except RuntimeError as error:
        expect("/there/is/none.json: cannot be opened" in str(error), f"{error}")
        expect(dist.get_rank() == 1 or "rank 1" in str(error), f"{error}")
    else:
        expect(False, "no error")
    os.environ.pop("SYNCOPATE_MACHINE", None)
    expect(bool((sy.ops.matmul_all_reduce(x, w, group) == 32 * size).all()), "the call after")
    sy.set_deadline(30.0, setup=600.0)


def check_tracing(_name: str, size: int) -> None:
    """A rank traces a mixture by itself, as for an export: the others are told of nothing."""
    name = dist.new_group().group_name
    sy.set_deadline(30.0, setup=5.0)
    if dist.get_rank() == 0:
        for device in ("cpu", "cuda"):  # there need not be a GPU
            with FakeTensorMode() as mode, torch.device(device):
                given = torch.ones(4, 32), torch.zeros(4, 2, dtype=torch.int32), torch.ones(4, 2), torch.ones(1, 32, 64), torch.ones(1, 32, 32)  # fmt: skip
            for within in (mode, nullcontext()):
                for op in (torch.ops.syncopate.moe, torch.ops.syncopate.moe_kept):
                    with within:
                        made = op(*given, name)
                    made = made[0] if isinstance(made, tuple) else made
                    expect(made.shape == (4, 32), f"{op} is traced as {made.shape}")
            if device == "cpu":  # torch's autograd asks for a GPU itself
                given[0].requires_grad_()
                expect(
                    torch.ops.syncopate.moe(*given, name).requires_grad,
                    "outside its mode a fake makes no gradient",
                )
    dist.barrier()
    sy.set_deadline(30.0, setup=600.0)


def check_compiled(_name: str, size: int) -> None:
    """Graphs are decided by the files of the rank that compiled first, whatever the others' are: all ranks leave a product, or
    put an op in its place, and ask Inductor's cache by one key."""
    sy.set_deadline(30.0, setup=30.0)
    w = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    of_gpu = {"device": "cuda", "dtype": torch.bfloat16, "m": 1024, "n": 4096, "k": 2048}

    def rewriting(graph, _):
        inductor.rewrite(graph.graph)
        graph.recompile()
        return graph

    def reduced(x):
        return functional.all_reduce(x @ w, "sum", dist.group.WORLD)

    def by_gpu(problem, **options):
        return known(replace(problem, **of_gpu), **options)

    known, machine = calls.estimate, json.loads((ROOT / "share/machines/h200x2.json").read_text())
    machine["tables"]["library_reduce_us"]["points"] = [
        [1, (0.1, 1e4)[dist.get_rank() > 0]]
    ]  # of rank 0 the pair is the faster one
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mine.json"
        file.write_text(json.dumps(machine))
        os.environ["SYNCOPATE_MACHINE"] = str(file)
        for first in (0, size - 1):
            report.clear()
            torch._dynamo.reset()
            agreed._of_group.clear()
            with warnings.catch_warnings(record=True) as told, mock.patch.object(agreed, "KEY", f"by rank {first}"), \
                    mock.patch.object(calls, "estimate", by_gpu), torch.no_grad():  # fmt: skip
                warnings.simplefilter("always")
                if dist.get_rank() != first:
                    dist.barrier()
                key = inductor.Pass([]).uuid()
                if dist.get_rank() == first:
                    dist.barrier()
                x = torch.randn(8, 16)
                run = torch.compile(reduced, backend=aot_autograd(fw_compiler=rewriting), fullgraph=True)
                torch.testing.assert_close(run(x), reduced(x))
            (row,) = sy.inductor.report().rewrites
            agree("made", bool(row.made))
            agree("key", key)
            expect(bool(row.made) == (first > 0), f"by rank {first}: {row}")
            said = [one for one in told if "rank which compiled first" in str(one.message)]
            expect(bool(said) == ((dist.get_rank() > 0) != (first > 0)), f"by rank {first}: {said}")
    agreed._of_group.clear()
    del os.environ["SYNCOPATE_MACHINE"]
    sy.set_deadline(30.0, setup=600.0)


def check_machines(_name: str, size: int) -> None:
    """The machine that a group goes by: nobody's text where all have the same; else rank 0's."""
    os.environ["SYNCOPATE_MACHINE"] = "h200x2"
    expect(of_process_group(None, "host").machine == "", "the same on all ranks")
    os.environ["SYNCOPATE_MACHINE"] = f"h200x{2 if dist.get_rank() == 0 else 8}"
    group = of_process_group(dist.new_group(), "host")
    expect('"h200x2"' in group.machine, f"the machine is {group.machine[:100]}")
    agree("machine", group.machine)
    try:
        _syncopate.tune.complete(
            "matmul_all_reduce:M=64,N=64,K=64,ranks=2", sy.Strategy(), machine='{"schema": 1}'
        )
    except RuntimeError as error:
        expect("the ranks' machine" in str(error), str(error))
    else:
        expect(False, "what is no machine is taken for one")
    found = sy.strategy.choose(
        sy.strategy.Problem("matmul_all_reduce", 64, 64, 64, torch.float32, ranks=size, device="host"),
        group=group,
    )
    agree("chosen", found)
    problem = sy.strategy.Problem("matmul_all_reduce", 4096, 4096, 4096, torch.bfloat16, ranks=size)
    alone = [None] * size
    dist.all_gather_object(alone, sy.strategy.complete(problem, sy.Strategy()).name)
    expect(len(set(alone)) == 2, f"by each rank's own machine: {alone}")
    agree("completed", sy.strategy.complete(problem, sy.Strategy(), group))
    del os.environ["SYNCOPATE_MACHINE"]


if __name__ == "__main__":
    run_checks(globals())
