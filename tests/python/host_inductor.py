"""Compiled tensor-parallel models on host ranks: the same losses and gradients as eager ones, and a report that says what was
fused; run by test_torch.py.

    host_inductor.py RANKS [CHECK …]

Exits 1 with the first thing that is wrong.
"""

import itertools
import os
import re
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate import group as groups  # noqa: E402
from syncopate.call import cache, prepared  # noqa: E402
from syncopate.torch import calls, inductor, report, symm_mem  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402
from torch.distributed import _symmetric_memory as torchs  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def close(actual: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(actual, exact, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what}: {text}")


REWRITTEN = Counter()


def rewriting(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
    inductor.rewrite(graph.graph)
    REWRITTEN["graphs"] += 1
    graph.recompile()
    return graph


#: Inductor's graphs and the pass, without code generation.
rewritten = aot_autograd(
    fw_compiler=rewriting,
    bw_compiler=rewriting,
    decompositions=select_decomp_table(),
    partition_fn=min_cut_rematerialization_partition,
)


class FeedForward(nn.Module):
    """SwiGLU, and a block with biases and relu behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)
        self.widen, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return x + self.narrow(torch.relu(self.widen(x)))


def plan_of(sequence: bool) -> dict:
    """Of torch's own styles: activations sharded along the sequence between the layers, or replicated."""
    if not sequence:
        columns, rows = ColwiseParallel(), RowwiseParallel()
        return {"gate": columns, "up": columns, "widen": columns, "down": rows, "narrow": rows}
    columns = ColwiseParallel(input_layouts=Shard(1))
    rows = RowwiseParallel(output_layouts=Shard(1))
    return {
        "norm": SequenceParallel(use_local_output=True),
        **dict.fromkeys(("gate", "up", "widen"), columns),
        **dict.fromkeys(("down", "narrow"), rows),
    }


def made(mesh, sequence: bool) -> nn.Module:
    torch.manual_seed(0)
    return parallelize_module(FeedForward(), mesh, plan_of(sequence))


def trained(model, run, x: torch.Tensor) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of a few steps, and the last gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [
        parameter.grad.to_local() for parameter in model.parameters() if hasattr(parameter.grad, "to_local")
    ]


def compare(mesh, sequence: bool, backend) -> report.Report:
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(3 + dist.get_rank() * sequence))
    eager = made(mesh, sequence)
    losses, gradients = trained(eager, eager, x)
    report.clear()
    torch._dynamo.reset()
    model = made(mesh, sequence)
    own_losses, own_gradients = trained(model, torch.compile(model, backend=backend, fullgraph=True), x)
    expect(
        torch.allclose(torch.tensor(losses), torch.tensor(own_losses), rtol=1e-4), f"{losses} {own_losses}"
    )
    for one, other in zip(own_gradients, gradients, strict=True):
        close(one, other, "a gradient")
    return sy.inductor.report()


def lines_of_this_file(text: str) -> str:
    return re.sub(re.escape(__file__) + r":\d+", "LINE", text)


def names(rows) -> list[str]:
    return [lines_of_this_file(f"{row.graph} {row.made}") for row in rows]


def check_sequence_parallel(mesh) -> None:
    """Gathers of the sequence before products, scatters behind them, forward and backward."""
    said = compare(mesh, True, rewritten)
    expect(not said.left, f"left:\n{said}")
    expect(sorted(names(said.fused)) == SEQUENCE_PARALLEL, f"fused:\n{said}\n{sorted(names(said.fused))}")
    expect(all(row.where.startswith(f"{__file__}:") for row in said.rewrites), f"lines:\n{said}")
    expect({row.module for row in said.rewrites} >= {"down", "widen", "narrow"}, f"modules:\n{said}")
    fused = {name for (name, outcome), _ in said.calls.items() if outcome == "fused"}
    expect(fused == {"all_gather_matmul", "matmul_reduce_scatter"}, f"calls:\n{said}")


SEQUENCE_PARALLEL = [
    "backward all_gather_matmuls of 1 returning x",  # the bias's gradient reads the gathered one, too
    "backward matmul_reduce_scatter",
    "backward matmul_reduce_scatter",
    "backward sent in one with that of LINE up",  # those of gate and up
    "backward sent_matmul_backward",
    "forward all_gather_matmuls of 1 returning x",
    "forward all_gather_matmuls of 2 returning x",
    "forward matmul_reduce_scatter",
    "forward matmul_reduce_scatter",
]


def check_tensor_parallel(mesh) -> None:
    """All-reduces behind products."""
    said = compare(mesh, False, rewritten)
    fused = names(said.fused)
    expect(fused.count("forward matmul_all_reduce") == 2, f"fused:\n{said}")
    expect(not said.left, f"left:\n{said}")


def check_functions(mesh) -> None:
    """What functions with torch's functional collectives become, with the right values."""
    group, size = dist.group.WORLD, dist.get_world_size()
    rank = dist.get_rank()

    def data(*shape: int, seed: int, own: bool = True) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed + 100 * rank * own)
        return torch.randn(*shape, generator=generator)

    w, b, half = data(16, 24, seed=1), data(24, seed=2), data(16 * size, 24, seed=3)
    pair, wide = data(2, 16, 24, seed=8), data(24, 8 * size, seed=9)
    full, level = data(8, 24, seed=10), data(16 * size, 16, seed=11)
    added = data(8 * size, 24, seed=12)
    square, tall, odd = data(16, 16, seed=4), data(8 * size, 24, seed=5), data(16, 23, seed=6)

    def gather(x, dim=0):
        # As all_gather_tensor does it; Dynamo does not trace that one of other axes than the first in all versions of torch.
        made = functional.all_gather_tensor(x, 0, group)
        if not dim:
            return made
        if dim == 1 and len(x) == 1:
            return made.view(1, -1, *made.shape[2:])
        return torch.cat(made.chunk(size), dim)

    def scatter(x, dim=0):
        return functional.reduce_scatter_tensor(x, "sum", dim, group)

    def reduce(x):
        return functional.all_reduce(x, "sum", group)

    def exchange(x):
        return functional.all_to_all_single(x, None, None, group)

    gelu = nn.functional.gelu
    cases = [
        ("all_gather_matmul", lambda x: gather(x) @ w, (8, 16)),
        ("all_gather_matmul", lambda x: functional.wait_tensor(gather(x)) @ w, (8, 16)),
        ("all_gather_matmul", lambda x: gather(x, 1) @ w, (2, 4, 16)),
        ("all_gather_matmul", lambda x: gather(x, 1) @ w, (1, 4, 16)),
        ("all_gather_matmul", lambda x: gather(x, 1).unflatten(1, (2, -1)) @ w, (1, 4, 16)),
        ("all_gather_matmul bias", lambda x: torch.addmm(b, gather(x), w), (8, 16)),
        ("all_gather_matmul bias relu", lambda x: nn.functional.linear(gather(x), w.t(), b).relu(), (8, 16)),
        ("all_gather_matmul silu", lambda x: nn.functional.silu(gather(x, 1) @ w), (2, 4, 16)),
        ("all_gather_matmul gelu", lambda x: gelu(gather(x) @ w, approximate="tanh"), (8, 16)),
        ("all_gather_matmul", lambda x: gelu(gather(x) @ w), (8, 16)),
        ("all_gather_matmul of columns", lambda x: gather(x, 1) @ half, (8, 16)),
        ("all_gather_matmul of columns", lambda x: torch.addmm(b, gather(x, 1), half), (8, 16)),
        ("all_gather_matmul of columns", lambda x: torch.addmm(full, gather(x, 1), half), (8, 16)),
        ("all_gather_matmuls of 2 of columns", two_products(lambda x: gather(x, 1), half, level), (8, 16)),
        ("all_gather_matmuls of 2 of columns", two_products(lambda x: gather(x, 2), half, level), (2, 4, 16)),
        (
            "all_gather_matmuls of 1 of columns returning x",
            product_and_x(lambda x: gather(x, 1), half),
            (8, 16),
        ),
        (
            "all_gather_matmuls of 1 of columns returning x",
            product_and_x(lambda x: gather(x, 2), half),
            (2, 4, 16),
        ),
        ("all_gather_matmuls of 1 returning x", product_and_x(gather, w, b), (8, 16)),
        ("all_gather_matmuls of 1 returning x", product_and_x(lambda x: gather(x, 1), w, b), (2, 4, 16)),
        (
            "all_gather_matmuls of 1 of columns returning x",
            product_and_x(lambda x: gather(x, 1), half, b),
            (8, 16),
        ),
        ("all_to_all_matmuls of 1 returning x", product_and_x(exchange, w, b), (8 * size, 16)),
        ("all_gather_matmul of columns", lambda x: gather(x).t() @ tall, (8, 16)),
        ("all_gather_matmuls of 2", two_products(gather, w, square), (8, 16)),
        ("all_gather_matmuls of 2", two_products(lambda x: gather(x, 1), w, square), (2, 4, 16)),
        ("all_gather_matmuls of 2", two_products(lambda x: gather(x, 1), w, square), (1, 4, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w), (8 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w, 1), (2, 4 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w, 1), (1, 4 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w, 1), (8, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(torch.addmm(b, x, w)), (8 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(torch.addmm(added, x, w)), (8 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(torch.addmm(full, x, w), 1), (8, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w + (2 * x) @ w + (3 * x) @ w), (8 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter(x @ w + (2 * x) @ w, 1), (2, 4 * size, 16)),
        ("matmul_reduce_scatter", lambda x: scatter((2 * x) @ w + x @ w, 1), (8, 16)),
        (
            "sent in one with that of LINE and matmul_reduce_scatter",
            lambda x: scatter(x @ w) + scatter((2 * x) @ w),
            (8 * size, 16),
        ),
        (
            "sent in one with that of LINE and matmul_reduce_scatter",
            lambda x: scatter(x @ w, 1) + scatter((2 * x) @ w, 1),
            (2, 4 * size, 16),
        ),
        (
            "sent in one with that of LINE and sent in one with that of LINE and matmul_all_reduce",
            lambda x: (
                reduce(x @ w) + reduce(torch.addmm(b, 2 * x, w)) + reduce(torch.addmm(b, x[:, :8], w[:8]))
            ),
            (8, 16),
        ),
        (
            "matmul_reduce_scatter and matmul_all_reduce",
            lambda x: scatter(x @ w) + reduce(x[:8] @ w),
            (8 * size, 16),
        ),
        (
            "matmul_all_reduce and matmul_all_reduce",
            lambda x: reduce(x @ w) + functional.all_reduce((2 * x) @ w, "avg", group),
            (8, 16),
        ),
        (
            "sent in one with that of LINE and matmul_all_reduce",
            lambda x: (full + reduce(x @ w)) + reduce(x[:, :8] @ w[:8]),
            (8, 16),
        ),
        ("matmul_all_reduce and matmul_all_reduce", sum_read_twice(reduce, w), (8, 16)),
        ("matmul_all_reduce and matmul_all_reduce", one_of_two_twice(reduce, w), (8, 16)),
        ("matmul_all_reduce and matmul_all_reduce", sum_of_one_behind_the_other(reduce, square), (8, 16)),
        ("matmul_all_reduce", lambda x: functional.all_reduce(x @ w + (2 * x) @ w, "sum", group), (8, 16)),
        ("matmul_all_reduce", lambda x: functional.all_reduce(x @ w, "sum", group), (8, 16)),
        (
            "matmul_all_reduce",
            lambda x: functional.all_reduce(nn.functional.linear(x, w.t(), b), "avg", group),
            (2, 4, 16),
        ),
        ("matmul_all_to_all", lambda x: exchange(x @ w), (8 * size, 16)),
        ("all_to_all_matmul", lambda x: functional.wait_tensor(exchange(x)) @ w, (8 * size, 16)),
        ("matmul_all_reduce", lambda x: functional.wait_tensor(reduce(x @ w)), (8, 16)),
        ("all_to_all_matmul", lambda x: exchange(x) @ w, (8 * size, 16)),
        ("all_to_all_matmul", lambda x: torch.addmm(b, exchange(x), w), (8 * size, 16)),
        ("all_to_all_matmul", lambda x: exchange(x) @ w, (size, 4, 16)),
        ("all_to_all_matmuls of 2", two_products(exchange, w, square), (8 * size, 16)),
        ("all_to_all_matmuls of 1 returning x", product_and_x(exchange, w), (8 * size, 16)),
        ("all_to_all_matmuls of 1 returning x", product_and_x(exchange, w), (size, 4, 16)),
        ("left: the product is read elsewhere, too", read_twice(scatter, w), (8 * size, 16)),
        (
            "left: the product's result is changed before it is sent, by add",
            product_twice(scatter, w),
            (8 * size, 16),
        ),
        ("left: it is multiplied by what is made of it", products_of_itself(gather), (8, 16)),
        ("left: its product is of another form", lambda x: gather(x, 1)[:, -1] @ w, (2, 4, 16)),
        (
            "left: the product's result is changed before it is sent, by select",
            lambda x: reduce((x @ w)[:, -1]),
            (2, 4, 16),
        ),
        (
            "left: the product's result is changed before it is sent",
            lambda x: scatter((x @ w).double()),
            None,
        ),
        *(
            ("left: its product is of another form", lambda x, cut=cut: cut(gather(x)), (8, 16))
            for cut in (
                lambda y: torch.cat([y[rank::size] for rank in range(size)], 1) @ half,
                lambda y: torch.cat([y[4 * rank : 4 * rank + 8] for rank in range(size)], 1) @ half,
                lambda y: torch.cat(y.chunk(2 * size)[:size], 1) @ half,
            )
        ),
        *(
            ("left: the product's result is changed before it is sent, by cat", of_columns, (8 * size, 16))
            for of_columns in (
                lambda x: scatter(torch.cat([(x @ w)[:, rank::size] for rank in range(size)])),
                lambda x: scatter(torch.cat([(x @ w)[:, 4 * rank : 4 * rank + 8] for rank in range(size)])),
                lambda x: scatter(torch.cat((x @ w).chunk(2 * size, 1)[:size])),
            )
        ),
        *(
            (
                "left: the product's result is changed before it is sent, by add",
                lambda x, v=v: reduce(v(x)),
                shape,
            )
            for shape in ((8, 16), (2, 4, 16))
            for v in (
                lambda x: x @ w + x.mean(0, keepdim=True) @ w,
                lambda x: x @ w + x.mean(-2, keepdim=True) @ w,
                lambda x: x @ w + (x @ w)[..., :1],
                lambda x: x @ w + 1,
            )
        ),
        *(
            ("all_gather_matmul", lambda x, behind=behind: behind(gather(x) @ w), (8, 16))
            for behind in (
                lambda y: (y.clamp_min(1e-8) > 0).to(y.dtype),
                lambda y: torch.relu(y.to(torch.int32)).to(torch.float32),
                lambda y: torch.relu(y.to(torch.float8_e4m3fn).to(torch.float32)),
                lambda y: y.view(-1, 1, 24) * torch.sigmoid(y).view(1, -1, 24),
            )
        ),
        ("left: rewriting it failed: UsageError: K: expected", lambda x: gather(x[:, :0]) @ w[:0], (8, 16)),
        ("left: extents must be multiples of 4", lambda x: reduce(x @ odd), (8, 16)),
        ("all_gather_matmul", lambda x: gather(x) @ odd, (8, 16)),  # this N may be another one on other ranks
        ("left: expected dtype bf16, fp16 or fp32", lambda x: gather(x.double()) @ w.double(), (8, 16)),
        *(
            (f"all_gather_matmul and left: {fused}", lambda x, send=send: send(gather(x) @ w), (8, 16))
            for fused in ("its product is fused with a collective already",)
            for send in (scatter, reduce)
        ),
        ("left: its product is of another form", lambda x: gather(x).unsqueeze(0) @ w, (8, 16)),
        ("left: its product is of another form", lambda x: gather(x).permute(1, 0, 2) @ w, (2, 4, 16)),
        (
            "left: its product is of another form",
            lambda x: torch.baddbmm(x.new_zeros(1, 1, 24), gather(x)[None], w[None]),
            (8, 16),
        ),
        (
            "left: its product is of another form",
            lambda x: torch.einsum("bsk,kn->bsn", gather(x), w),
            (2, 4, 16),
        ),
        (
            "left: the product's result is changed before it is sent, by squeeze",
            lambda x: reduce((x.unsqueeze(1) @ w).squeeze(1)),
            (8, 16),
        ),
        *(
            ("left: it is one collective of 2 tensors", call, (8 * size, 16))
            for call in (
                lambda x: functional.all_reduce_coalesced([x @ w, x], "sum", group)[0],
                lambda x: functional.all_gather_into_tensor_coalesced([x, x + 1], group)[0] @ w,
                lambda x: functional.reduce_scatter_tensor_coalesced([x @ w, x], "sum", [0, 0], group)[0],
            )
        ),
        ("left: it reduces by max", lambda x: functional.all_reduce(x @ w, "max", group), (8, 16)),
        ("left: its product is of another form", lambda x: torch.bmm(gather(x).view(2, -1, 16), pair), None),
        ("left: what is gathered is the product's second operand", lambda x: wide @ gather(x), (8, 16)),
    ]
    wrong = []
    for said, function, shape in cases:
        x = data(*(shape or (8 * size, 16)), seed=7)
        exact = function(x)
        report.clear()
        torch._dynamo.reset()
        with torch.no_grad():
            y = torch.compile(function, backend=rewritten, fullgraph=True)(x)
        rows = sy.inductor.report().rewrites
        outcome = " and ".join(row.made or f"left: {row.reason}" for row in rows)
        outcome = lines_of_this_file(outcome)
        right = outcome.startswith(said) if said.startswith("left") else outcome == said
        if not right or not all(row.graph == "inference" and __file__ in row.where for row in rows):
            wrong.append(f"expected {said!r}, got {list(map(str, rows))}")
        if not torch.allclose(y, exact, rtol=1e-4, atol=1e-4):
            wrong.append(f"{said}: differs by {(y - exact).abs().max()}")
    expect(not wrong, "\n".join(wrong))


def two_products(gather, w, square):
    def function(x):
        whole = gather(x)
        return (whole @ w)[..., :16] + whole @ square

    return function


def product_and_x(gather, w, bias=None):
    def function(x):
        whole = gather(x)
        return torch.cat([nn.functional.linear(whole, w.t(), bias), whole], -1)

    return function


def read_twice(scatter, w):
    def function(x):
        y = x @ w
        return scatter(y) + y.sum()

    return function


def sum_read_twice(reduce, w):
    def function(x):
        y = reduce(x @ w)
        return y + reduce(x[:, :8] @ w[:8]) + y.square()

    return function


def one_of_two_twice(reduce, w):
    def function(x):
        y = reduce(x @ w)
        return reduce(x[:, :8] @ w[:8]) + (y + y)

    return function


def products_of_itself(gather):
    def function(x):
        whole = gather(x)
        return whole.t() @ whole

    return function


def product_twice(scatter, w):
    def function(x):
        y = x @ w
        return scatter(y + y + (2 * x) @ w)

    return function


def sum_of_one_behind_the_other(reduce, w):
    def function(x):
        y = reduce(x @ w)
        return y + reduce(y[:, :8] @ w[:8])

    return function


class Experts(nn.Module):
    """One expert a rank: tokens come to it and go back, a block from each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        come = functional.all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        return functional.all_to_all_single_autograd(
            self.down(torch.relu(self.up(come))), None, None, dist.group.WORLD
        )


def check_experts(mesh) -> None:
    """All-to-alls on either side of products, forward and backward."""
    x = torch.randn(8 * dist.get_world_size(), 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        report.clear()
        torch._dynamo.reset()
        experts, given = Experts(), x.clone().requires_grad_()
        run = torch.compile(experts, backend=rewritten, fullgraph=True) if compiled else experts
        run(given).square().mean().backward()
        found.append([given.grad, *(parameter.grad for parameter in experts.parameters())])
    for one, other in zip(*found, strict=True):
        close(one, other, "a gradient")
    said = sy.inductor.report()
    expect(sorted(names(said.rewrites)) == EXPERTS, f"fused:\n{said}\n{sorted(names(said.rewrites))}")


EXPERTS = [
    "backward all_to_all_matmuls of 1 returning x",  # the bias's gradient reads what comes, too
    "backward matmul_all_to_all",
    "forward all_to_all_matmuls of 1 returning x",
    "forward matmul_all_to_all",
]


def check_casts(mesh) -> None:
    """What is cast behind a gather is cast before it: the same values, and half as much is sent."""
    group, w = dist.group.WORLD, torch.randn(16, 24, generator=torch.Generator().manual_seed(1)).bfloat16()

    def gathered(x, dim):
        whole = functional.all_gather_tensor(x, 0, group)
        return torch.cat(whole.chunk(dist.get_world_size()), 1) if dim else whole

    def read_twice(x):
        whole = gathered(x, 0).bfloat16()
        return whole @ w + whole.sum()

    def read_before(x):
        whole = gathered(x, 0)
        return (whole.bfloat16() @ w) * whole.sum()

    cases = [
        ("all_gather_matmul", lambda x: gathered(x, 0).bfloat16() @ w),
        ("all_gather_matmul", lambda x: gathered(x, 1).bfloat16() @ w),
        ("all_gather_matmuls of 1 returning x", read_twice),
        ("left: its product is of another form", read_before),
    ]
    for said, function in cases:
        x = torch.randn(2, 8, 16)
        report.clear()
        torch._dynamo.reset()
        with torch.no_grad():
            y = torch.compile(function, backend=rewritten, fullgraph=True)(x)
        rows = sy.inductor.report().rewrites
        outcome = " and ".join(row.made or f"left: {row.reason}" for row in rows)
        expect(
            outcome == said or (said.startswith("left") and outcome.startswith(said)), f"{said}: {outcome}"
        )
        torch.testing.assert_close(y, function(x), rtol=2e-2, atol=2e-2)


def check_unknown_axes(mesh) -> None:
    """A model whose batch and sequence are both of unknown size: one graph each way, all of it fused, and the same losses and
    gradients."""
    report.clear()
    torch._dynamo.reset()
    eager, model = made(mesh, True), made(mesh, True)
    compiled = torch.compile(model, backend=rewritten, fullgraph=True, dynamic=True)
    REWRITTEN.clear()
    size = dist.get_world_size()
    for batch, rows in ((size, 6), (3 * size, 10), (2 * size, 2)):  # torch's view guards the batch's divisor
        x = torch.randn(
            batch, rows, 16, generator=torch.Generator().manual_seed(batch + 10 * dist.get_rank())
        )
        losses = []
        for one, run in ((eager, eager), (model, compiled)):
            one.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            losses.append(loss.item())
        expect(abs(losses[0] - losses[1]) <= 1e-4 * abs(losses[0]), f"losses of {batch}x{rows}: {losses}")
        for own, exact in zip(model.parameters(), eager.parameters(), strict=True):
            close(own.grad.to_local(), exact.grad.to_local(), f"a gradient of {batch}x{rows}")
    said = sy.inductor.report()
    expect(REWRITTEN["graphs"] == 2, f"graphs: {REWRITTEN}")
    expect(not said.left and len(said.fused) == 9, f"fused:\n{said}")


def check_dynamic_rows(mesh) -> None:
    """One graph for every M."""
    group, w = dist.group.WORLD, torch.randn(16, 24, generator=torch.Generator().manual_seed(1))

    def function(x):
        made = functional.all_gather_tensor(x, 0, group)
        return torch.cat(made.chunk(dist.get_world_size()), 1) @ w

    report.clear()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=rewritten, fullgraph=True)
    for rows in (4, 6, 8):
        x = torch.randn(2, rows, 16)
        torch._dynamo.mark_dynamic(x, 1)
        close(compiled(x), function(x), f"{rows} rows")
    said = sy.inductor.report()
    expect(names(said.rewrites) == ["inference all_gather_matmul"], f"one graph:\n{said}")


def check_inductor(mesh) -> None:
    """The pass within Inductor itself: enabled for all, also for what was compiled before, or for one model by its options. A
    graph from Inductor's cache brings its rows along."""
    group, w = dist.group.WORLD, torch.randn(16, 24, generator=torch.Generator().manual_seed(1))

    def function(x):
        return torch.relu(functional.all_gather_tensor(x, 0, group) @ w)

    def run(compiled, rewritten: bool, what: str, cached: int = 0) -> None:
        report.clear()
        torch._dynamo.utils.counters.clear()
        close(compiled(x), function(x), what)
        said = sy.inductor.report()
        expect(names(said.rewrites) == ["inference all_gather_matmul relu"] * rewritten, f"{what}:\n{said}")
        expect(all(__file__ in row.where for row in said.rewrites), f"{what}:\n{said}")
        expect(said.calls == ({("all_gather_matmul", "fused"): 1} if rewritten else {}), f"{what}:\n{said}")
        expect((said.cached > 0) == bool(cached), f"{what}: {said.cached} graphs from the cache")

    torch._dynamo.reset()
    x = torch.randn(8, 16)
    # Inductor's own C++ is no matter here: without vectors it need not try out which of them this machine has.
    scalar = torch._inductor.config.patch({"cpp.vec_isa_ok": False})
    with torch.no_grad(), fresh_cache(), scalar:
        plain = torch.compile(function, fullgraph=True)
        run(plain, False, "not enabled")
        run(torch.compile(function, fullgraph=True, options=inductor.options()), True, "by options")
        run(plain, False, "not that one")
        inductor.enable()
        run(plain, True, "enabled later", cached=1)
        inductor.disable()
        run(plain, False, "disabled again", cached=1)


def check_uneven_shards(mesh) -> None:
    """Shards of several sizes: all ranks leave the graph as it is."""
    size = dist.get_world_size()

    def made() -> nn.Module:
        torch.manual_seed(0)
        sizes = (
            16,
            4 * size,
            16,
            4 * size + 1,
            8,
        )  # the gradient of the last pair is a graph of even shards alone
        layers = (nn.Linear(k, n, bias=False) for k, n in itertools.pairwise(sizes))
        columns = ColwiseParallel(input_layouts=Shard(0), use_local_output=False)
        rows = RowwiseParallel(output_layouts=Shard(0))
        return parallelize_module(
            nn.Sequential(*layers), mesh, {"0": columns, "1": rows, "2": columns, "3": RowwiseParallel()}
        )

    usual, groups.setup_deadline = groups.setup_deadline, 60.0
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    eager, model = made(), made()
    report.clear()
    torch._dynamo.reset()
    exact, y = eager(x), torch.compile(model, backend=rewritten, fullgraph=True)(x)
    close(y, exact, "uneven shards")
    exact.square().mean().backward()
    y.square().mean().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        close(one.grad.to_local(), other.grad.to_local(), "a gradient of uneven shards")
    said = sy.inductor.report()
    expect({row.graph for row in said.left} == {"forward", "backward"} and not said.calls, f"{said}")
    expect(all("the ranks have shards of several sizes" in row.reason for row in said.left), f"{said}")
    groups.setup_deadline = usual


def check_groups_of_a_cached_graph(mesh) -> None:
    """A graph is found again only among groups of the same names, sizes and backends."""
    one = inductor.Pass(None)
    before = one.uuid()
    again = dist.new_group(list(range(dist.get_world_size())))
    expect(one.uuid() != before, "another group")
    name = again.group_name
    dist.barrier()  # the others may still connect
    dist.destroy_process_group(again)
    expect(one.uuid() == before, "the group is gone")
    alone = [dist.new_group([rank], group_desc=name) for rank in range(dist.get_world_size())]
    own = alone[dist.get_rank()]
    expect((own.group_name, 1, "gloo") in inductor.groups(), f"{inductor.groups()}")
    dist.destroy_process_group(own)


def check_threads(mesh) -> None:
    """enable() is for all threads: those that compile first, and those in which backward graphs are compiled."""
    group, w = (
        dist.group.WORLD,
        torch.randn(16, 24, generator=torch.Generator().manual_seed(1), requires_grad=True),
    )
    x, found = torch.randn(8, 16, requires_grad=True), []

    def run() -> None:
        y = torch.compile(lambda x: functional.all_gather_tensor(x, 0, group) @ w, fullgraph=True)(x)
        other = threading.Thread(target=lambda: y.sum().backward())
        other.start()
        other.join()
        found.extend(sorted({row.graph for row in sy.inductor.report().rewrites}))

    report.clear()
    sy.inductor.enable()
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sy.inductor.disable()
    expect(found == ["backward", "forward"], f"rewritten in other threads: {found}")
    expect(config.post_grad_custom_pre_pass is None, "the pass is still configured")
    values = []
    thread = threading.Thread(target=lambda: values.append(config.post_grad_custom_pre_pass))
    thread.start()
    thread.join()
    expect(values == [None], "the pass is still configured in other threads")


def check_what_would_be_slower(mesh) -> None:
    """It is left, with both times, by the estimate for a GPU; what would not be is fused."""
    group, w = dist.group.WORLD, torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    x = torch.randn(8 * dist.get_world_size(), 16)
    of_host = calls.estimate
    try:
        for extents, slower in (
            ({"m": 64, "n": 1024, "k": 8192}, True),
            ({"m": 4096, "n": 3072, "k": 4096}, False),
        ):
            of_gpu = {"device": "cuda", "num_sms": 132, "dtype": torch.bfloat16, "ranks": 2, **extents}
            calls.estimate = lambda problem, given=of_gpu, **options: of_host(
                replace(problem, **given), **options
            )
            calls._slower.cache_clear()
            report.clear()
            torch._dynamo.reset()

            def function(x):
                return functional.all_reduce(x @ w, "sum", group)

            with torch.no_grad():
                close(
                    torch.compile(function, backend=rewritten, fullgraph=True)(x), function(x), f"{extents}"
                )
            (row,) = sy.inductor.report().rewrites
            times = re.fullmatch(r"estimated slower \((.*) vs (.*) µs\)", row.reason)
            expect(bool(times) == slower and bool(row.made) != slower, f"{extents}: {row}")
            expect(not times or float(times[1]) > float(times[2]) > 0, f"{extents}: {row}")
    finally:
        calls.estimate = of_host
        calls._slower.cache_clear()


def check_recompilations(mesh) -> None:
    """Graphs that are compiled again add neither rows nor operators."""
    group, w = dist.group.WORLD, torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    report.clear()
    before, began = None, REWRITTEN["graphs"]
    for cycle in range(int(os.environ.get("SYNCOPATE_CYCLES", "4"))):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: functional.all_gather_tensor(x, 0, group) @ w, backend=rewritten)
        compiled(torch.ones(8, 16))
        said, held = sy.inductor.report(), (cache.held(), len(prepared._alive))
        expect(REWRITTEN["graphs"] == began + cycle + 1, f"cycle {cycle} compiled no graph")
        expect(said.calls == {("all_gather_matmul", "fused"): cycle + 1}, f"cycle {cycle}: {said}")
        expect(len(said.rewrites) == 1, f"cycle {cycle}:\n{said}")
        before = before or held
        expect(held == before, f"cycle {cycle}: {held}, {before} before")


def check_symm_mem(mesh) -> None:
    """torch's own fused ops are taken, with its values and strides, or passed on; its own pass finds them."""
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    seed = torch.Generator().manual_seed(11 + dist.get_rank())

    def data(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=seed)

    gather, scatter = torchs._fused_all_gather_matmul_fallback, torchs._fused_matmul_reduce_scatter_fallback
    gathers = [
        (data(8, 16), [data(16, 24)], 0, True),
        (data(2, 4, 16), [data(16, 24), data(16, 8)], 1, True),
        (data(2, 4, 16), [data(16, 24)], 0, False),
        (data(8, 16), [data(16 * size, 24)], 1, False),
        (data(8, 16), [data(16 * size, 24)], 1, True),
        (data(8, 16), [data(16 * size, 24), data(16 * size, 8)], 1, False),
        (data(2, 4, 16), [data(16 * size, 8), data(16 * size, 24)], 2, True),
        (data(2, 4, 16), [data(16 * size, 8)], -1, True),
        (data(4, 16, 2).transpose(1, 2), [data(16 * size, 8)], 2, False),
        (data(8, 16).double(), [data(16 * size, 24).double()], 1, True),
    ]
    scatters = [
        (data(8 * size, 16), data(16, 24), "sum", 0),
        (data(2, 4 * size, 16), data(16, 24), "avg", 1),
        (data(8, 16), data(16, 12 * size), "sum", 1),
        (data(2, 4, 16), data(16, 12 * size), "avg", 2),
        (data(4, 16, 2 * size).transpose(1, 2), data(16, 24), "sum", 1),
        (data(2 * size, 3, 16), data(16, 24), "avg", 0),
        (data(8 * size, 16).double(), data(16, 24).double(), "sum", 0),
    ]
    report.clear()
    with sy.symm_mem.override() as ours:
        for a, bs, dim, whole in gathers:
            made = torch.ops.symm_mem.fused_all_gather_matmul(a, bs, dim, name, return_A=whole)
            exact = gather(a, bs, dim, name, return_A=whole)
            expect((made[0] is None) == (not whole), "A is returned where it is asked for")
            if whole:
                again = torch.ops.symm_mem.fused_all_gather_matmul(-a, bs, dim, name, return_A=True)[0]
                expect(torch.equal(again, -exact[0]), f"A of another call along {dim} has other bits")
                expect(
                    torch.equal(made[0], exact[0]), f"A along {dim} has other bits, or is not the caller's"
                )
            for one, other in zip(
                [*made[1], *filter(None.__ne__, made[:1])],
                [*exact[1], *filter(None.__ne__, exact[:1])],
                strict=True,
            ):
                close(one, other, f"gather along {dim}")
                expect(one.stride() == other.stride(), f"gather along {dim}: {one.stride()} {other.stride()}")
        for a, b, reduce, dim in scatters:
            one = torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, reduce, dim, name)
            other = scatter(a, b, reduce, dim, name)
            close(one, other, f"scatter along {dim}")
            expect(one.stride() == other.stride(), f"scatter along {dim}: {one.stride()} {other.stride()}")
        taken = ours.taken[symm_mem.GATHER], ours.taken[symm_mem.SCATTER]
        expect(taken == (14, 6) and ours.passed_on.total() == 3, f"{ours}")
        expect("expected dtype bf16, fp16" in str(ours), str(ours))

        graph = traced_by_torchs_pass(name, size, data(16, 24))
        expect("symm_mem" in str(graph), "torch's pass finds its ops usable while the override lasts")
        x = data(8, 16)
        close(graph(x)[0], functional.all_gather_tensor(x, 0, name) @ graph.weight, "by torch's pass")
        expect(ours.taken[symm_mem.GATHER] == 15, f"{ours}")
    try:
        torch.ops.symm_mem.fused_matmul_reduce_scatter(*scatters[0], name)
    except NotImplementedError:
        pass  # on the CPU torch has none of its own
    else:
        expect(False, "the override ends")
    expect(not torchs.is_symm_mem_enabled_for_group(name), "and so does what it says of groups")


def check_symm_mem_overrides(mesh) -> None:
    """Several at a time, ended in any order; each says what its own calls were. What is no product torch's own refuses."""
    name = dist.group.WORLD.group_name
    x, w = torch.ones(8, 16), torch.ones(16, 24)

    def call(x, w):
        return torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, name, return_A=False)[1][0]

    report.clear()
    torch.ops.syncopate.all_gather_matmul(x.double(), w.double(), name)
    first, second = sy.symm_mem.override(), sy.symm_mem.override()
    close(call(x, w), torch.full((8 * dist.get_world_size(), 24), 16.0), "the second override")
    first.restore()
    close(call(x, w), torch.full((8 * dist.get_world_size(), 24), 16.0), "the first one has ended")
    expect(torchs.is_symm_mem_enabled_for_group(name), "one lasts")
    expect(
        second.taken[symm_mem.GATHER] == 2 and not first.taken and not second.reasons, f"{first}\n{second}"
    )
    try:
        call(x, w[:8])
    except Exception as error:
        expect("expected shape [8, 8]" not in str(error), f"ours refuses it: {error}")
    else:
        expect(False, "it is not refused")
    expect("B has not as many rows" in str(second), f"{second}")
    second.restore()
    expect(not torchs.is_symm_mem_enabled_for_group(name), "both have ended")
    outer = sy.symm_mem.override()
    with sy.symm_mem.override():
        call(x, w)
    call(x, w)
    expect(outer.taken[symm_mem.GATHER] == 1, f"the outer one takes calls again: {outer}")
    outer.restore()


def traced_by_torchs_pass(name: str, size: int, w: torch.Tensor) -> torch.fx.GraphModule:
    """all_gather(x) @ w as torch's asynchronous tensor parallelism rewrites it."""
    from torch._inductor.fx_passes import micro_pipeline_tp
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(x, size, name)
        return (torch.ops._c10d_functional.wait_tensor(gathered) @ w,)

    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.randn(8, 16))
    available, dist.is_nccl_available = dist.is_nccl_available, lambda: True
    try:
        micro_pipeline_tp.micro_pipeline_tp_pass(graph.graph)
    finally:
        dist.is_nccl_available = available
    # Inductor has a lowering of its own for this one.
    for node in list(graph.graph.nodes):
        if "force_stride_order" in str(node.target):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    graph.weight = w
    return graph


__all__ = ["PrepareModuleInput", "Replicate"]

if __name__ == "__main__":
    run_checks(globals(), lambda size: (init_device_mesh("cpu", (size,)),))
