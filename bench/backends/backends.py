"""One table: operator x backend x multiprocessors of the chunk engine, at two shapes. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 4 bench/backends/backends.py [--local-ranks 8] [--json FILE] [--operators ag_gemm,gemm_rs]
                                                           [--backends tma_dedicated] [--sms 4,8,16] [--shapes 70B]

Shapes: 70B at M = 4096 and 8B at M = 8192. Each cell is the operator as a CUDA graph with every transfer of its plan told to
go by that backend, µs with the host's time hidden; `unfused` is NCCL and cuBLAS as a graph. Backends that take
multiprocessors from the kernel are measured at each number of them. What the compiler refuses is shown with its reason.
The cells come in the order of interest: all operators with 8 multiprocessors first, then the other numbers, as far as
--budget goes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import Candidate, measure  # noqa: E402
from tensor_parallel import (  # noqa: E402
    HOST_SCALE,
    MODELS,
    ON_GPU,
    Progress,
    Setup,
    Shape,
    Strategy,
    parse,
    start,
    sy,
)

SHAPES = (("70B", 4096), ("8B", 8192))
FIRST_SMS = 8
TOLERANCE = 1e-2


def all_gather(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(x.shape[0] * dist.get_world_size(), x.shape[1])
    dist.all_gather_into_tensor(whole, x)
    return whole


def reduce_scatter(y: torch.Tensor) -> torch.Tensor:
    mine = y.new_empty(y.shape[0] // dist.get_world_size(), y.shape[1])
    dist.reduce_scatter_tensor(mine, y)
    return mine


def all_reduce(y: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(y)
    return y


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    changed = torch.empty_like(x)
    dist.all_to_all_single(changed, x)
    return changed


@dataclasses.dataclass(frozen=True)
class Operator:
    kind: Any
    sharded: str  # "N": F / local ranks columns; "K": so long a reduction
    unfused: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


OPERATORS = {
    "ag_gemm": Operator(sy.ops.AllGatherMatmul, "N", lambda x, w: all_gather(x) @ w),
    "gemm_rs": Operator(sy.ops.MatmulReduceScatter, "K", lambda x, w: reduce_scatter(x @ w)),
    "gemm_ar": Operator(sy.ops.MatmulAllReduce, "K", lambda x, w: all_reduce(x @ w)),
    "gemm_a2a": Operator(sy.ops.MatmulAllToAll, "K", lambda x, w: all_to_all(x @ w)),
    "a2a_gemm": Operator(sy.ops.AllToAllMatmul, "N", lambda x, w: all_to_all(x) @ w),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    operator: str
    backend: str
    sms: int  # 0: the backend takes none

    @property
    def column(self) -> str:
        return f"{self.backend}:{self.sms}" if self.sms else self.backend


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """In the order in which they are measured."""
    known = [b for b in sy.plans.BACKENDS if b != "auto" and not (ON_GPU and b == "host")]
    backends = [b for b in known if not options.backends or b in options.backends.split(",")]
    operators = [o for o in OPERATORS if not options.operators or o in options.operators.split(",")]
    wanted = sorted(map(int, options.sms.split(",")), key=lambda sms: (sms != FIRST_SMS, sms))
    cells = []
    for turn, sms in enumerate(wanted):
        for operator in operators:
            for backend in backends:
                if backend.endswith("_dedicated"):
                    cells.append(Cell(operator, backend, sms))
                elif turn == 0:
                    cells.append(Cell(operator, backend, 0))
    return cells


def shape_of(model: str, m: int, sharded: str, local_ranks: int) -> Shape:
    scale = 1 if ON_GPU else HOST_SCALE
    hidden, f = MODELS[model]
    whole, local = hidden // scale, f // local_ranks // scale // 8 * 8
    n, k = (local, whole) if sharded == "N" else (whole, local)
    return Shape(model, m // scale, n, k)


def with_backend(plan: sy.plans.Plan, backend: str) -> sy.plans.Plan:
    """The plan with `backend` asked for explicitly, so that fuse says why it refuses instead of taking another. An op that
    reduces keeps "auto": it becomes a copy and a sum, and the copy goes by the backend that the operator prefers."""
    data = json.loads(plan.to_json())
    for rank in data["ranks"]:
        for op in rank["ops"]:
            if op["op"] != "local" and "reduce" not in op:
                op["backend"] = backend
    return sy.plans.from_json(json.dumps(data))


def operators_with(setup: Setup, cell: Cell) -> list[Any]:
    """The cell's operators. Raises where the compiler takes another backend for some transfer between ranks."""
    kind = OPERATORS[cell.operator].kind
    chosen = Strategy(backend=cell.backend, engine_blocks=cell.sms or FIRST_SMS)
    if (
        kind is sy.ops.AllGatherMatmul and cell.backend not in sy.plans.INLINE
    ):  # else its tiles read at other ranks
        (usual,) = setup.operators(kind, count=1)
        chosen = dataclasses.replace(chosen, chunking=usual.strategy.chunking)
    made = setup.operators(kind, strategy=chosen)
    for op in made:
        op.plan = op.fused.plan = with_backend(op.plan, cell.backend)
        schedule = op.prepare().schedule
        transfers = [t for rank in range(schedule.num_ranks) for t in schedule.transfers(rank)]
        taken = {t.backend for t in transfers if t.src_rank != t.dst_rank} - {cell.backend}
        if taken:
            raise RuntimeError(f"its transfers go by {', '.join(sorted(taken))} instead")
    return made


def time_of(setup: Setup, call: Callable[[int], object], rounds: int) -> float:
    graph = Candidate("cell", setup.graphs(call), visible=False)
    return measure([graph], rounds)["cell"]["hidden_us"]


class Column:
    """One operator at one shape: its inputs and what is right."""

    def __init__(self, operator: Operator, shape: Shape) -> None:
        self.operator = operator
        self.setup = setup = Setup(shape)
        rows_in = shape.m // setup.size if operator.kind is sy.ops.AllGatherMatmul else shape.m
        self.x, self.w = setup.random(rows_in, shape.k), setup.random(shape.k, shape.n)
        self.expected = [operator.unfused(a, b) for a, b in zip(self.x, self.w, strict=True)]
        self.out = setup.empty(*self.expected[0].shape)

    def unfused(self, i: int) -> torch.Tensor:
        return self.operator.unfused(self.x(i), self.w(i))

    def measure(self, cell: Cell, rounds: int) -> float:
        fused = operators_with(self.setup, cell)

        def ours(i: int) -> None:
            op = fused(i)
            op(op.shard() if isinstance(op, sy.ops.AllGatherMatmul) else self.x(i), self.w(i), self.out(i))

        if isinstance(fused[0], sy.ops.AllGatherMatmul):
            for i, op in enumerate(fused):
                op.shard().copy_(self.x[i])
        self.setup.expect(cell.column, ours, self.out, self.expected, TOLERANCE)
        time = time_of(self.setup, ours, rounds)
        self.setup.check()
        return time


def run_cell(cell: Cell, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    column = Column(OPERATORS[cell.operator], shape)
    try:
        if cell.backend == "unfused":
            return {"us": time_of(column.setup, column.unfused, options.rounds)}
        return {"us": column.measure(cell, options.rounds)}
    except Exception as error:  # noqa: BLE001 - the other cells are still to be measured
        lines = str(error).splitlines() or [type(error).__name__]
        return {"refused": lines[0]}
    finally:
        column.setup.close()


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--operators", default="", help=f"comma-separated: {', '.join(OPERATORS)}")
        parser.add_argument("--backends", default="", help="only these, comma-separated")
        parser.add_argument("--sms", default="4,8,16", help="multiprocessors of the chunk engine")

    options = parse(__doc__, add)
    start()
    progress = Progress(options)
    local_ranks = options.local_ranks or dist.get_world_size()
    cells = cells_of(options)
    baselines = [Cell(operator, "unfused", 0) for operator in dict.fromkeys(cell.operator for cell in cells)]
    for cell in [*baselines, *cells]:
        for model, m in SHAPES:
            if options.shapes not in model or (options.tokens and str(m) not in options.tokens.split(",")):
                continue
            shape = shape_of(model, m, OPERATORS[cell.operator].sharded, local_ranks)
            where = f"{model:4} M={shape.m:5} N={shape.n:5} K={shape.k:5} {cell.operator:9} {cell.column:18}"
            if progress.out_of_time():
                outcome: dict[str, Any] = {
                    "refused": f"not measured: {options.budget:.0f} s were over (--budget)"
                }
            else:
                outcome = run_cell(cell, shape, options)
            progress.say(
                f"{where} {outcome['us']:8.1f} us" if "us" in outcome else f"{where} -  {outcome['refused']}"
            )
            progress.add({"model": model, "M": shape.m, "N": shape.n, "K": shape.k, "operator": cell.operator,
                          "backend": cell.backend, "sms": cell.sms, **outcome})  # fmt: skip
    if progress.rank == 0:
        print_table(progress.report["table"])
    dist.destroy_process_group()


def print_table(table: list[dict[str, Any]]) -> None:
    """Markdown: a line for each operator and shape, a column for each backend and number of multiprocessors."""

    def column_of(entry: dict[str, Any]) -> str:
        return f"{entry['backend']}:{entry['sms']}" if entry["sms"] else entry["backend"]

    columns = list(
        dict.fromkeys(
            map(column_of, sorted(table, key=lambda e: (e["backend"] != "unfused", e["backend"], e["sms"])))
        )
    )
    columns = [c for c in columns if any(column_of(e) == c and "us" in e for e in table)]
    lines = list(dict.fromkeys((e["operator"], e["model"], e["M"]) for e in table))
    print("\n| operator | shape | " + " | ".join(columns) + " |\n" + "|---" * (2 + len(columns)) + "|")
    for operator, model, m in lines:
        times = {
            column_of(e): e["us"]
            for e in table
            if (e["operator"], e["model"], e["M"]) == (operator, model, m) and "us" in e
        }
        print(
            f"| {operator} | {model} {m} | "
            + " | ".join(f"{times[c]:.0f}" if c in times else "-" for c in columns)
            + " |"
        )
    reasons: dict[str, list[str]] = {}
    for entry in table:
        if "refused" in entry:
            reasons.setdefault(entry["refused"], []).append(f"{entry['operator']} {column_of(entry)}")
    for reason, where in reasons.items():
        print(f"- {', '.join(dict.fromkeys(where))}: {reason}")


if __name__ == "__main__":
    main()
