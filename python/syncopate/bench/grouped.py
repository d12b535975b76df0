"""syncopate bench grouped: grouped products of a user's own around rows that travel to their experts' ranks and back.

Of each rank's rows, which lie expert by expert, two products (bench/grouped_kernels.py), by one program of sy.fuse over push_groups,
as a CUDA graph (`ours`). Beside it, eager, as the host reads the counts: NCCL's all-to-alls around the same kernels (`unfused`), and
around torch's grouped product (`nccl`); and as a graph the kernels alone, of rows that are there (`products`): what ours takes more
is exposed. One process a GPU; without a GPU a tiny layer, which checks the bench alone.

    syncopate bench grouped --models Qwen3-30B-A3B --tokens 64,4096
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .launch import Parser, add_options, launch, parse_options
from .moe import MODELS, OF_LAYERS, ROUTINGS, Layer, Way, check_words, run_layers, timed

WAYS = ("ours", "products", "unfused", "nccl")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="syncopate bench grouped",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(MODELS)[:2]
    parser.add_argument(
        "--models", default=",".join(names), help=f"of {', '.join(MODELS)} (default: {', '.join(names)})"
    )
    parser.add_argument("--tokens", default="64,512,4096", help="of a rank, comma-separated")
    parser.add_argument("--routings", default="random", help=f"of {', '.join(ROUTINGS)}, comma-separated")
    parser.add_argument(
        "--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}, comma-separated; ours always"
    )
    add_options(parser, "")
    return parse_options(parser, arguments)


def check(options: argparse.Namespace) -> None:
    check_words(options, models=MODELS, routings=ROUTINGS, ways=WAYS)


class Case(Layer):
    """A token's rows are its topk ones."""

    def __init__(self, model: str, tokens: int, routing: str) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(model, tokens, routing, (32, 32))
        self.a = self.random(self.tokens * self.topk, self.hidden)
        counts = self.counts()
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts)
        #: That come for each expert, and to the rank that gets most.
        self.came = there.view(self.size, self.own).sum(0)
        most = self.came.sum()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.bound = max(int(most), len(self.a))
        self.tile = (16, 128, 64) if self.gpu else (16, 16, 16)
        self.options = {"num_warps": 4, "num_stages": 3}
        if self.gpu and self.bound > 64 * self.own:
            self.tile = (128, 128, 64)
            # Of as few registers that what sends rows has room beside it.
            self.options = {"num_warps": 8, "num_stages": 3, "maxnreg": 176}
        self.programs = torch.cuda.get_device_properties(self.device).multi_processor_count if self.gpu else 4

    def arguments(self, x: Any, h: Any, c: Any, told: Any) -> list[tuple[Any, ...]]:
        """Of both kernels."""
        return [
            (x, self.w1, h, told, self.own, self.inner, self.hidden, *self.tile),
            (h, self.w2, c, told, self.own, self.hidden, self.inner, *self.tile),
        ]

    def rows(self, columns: int, rows: int) -> Any:
        return self.a.new_empty(rows, columns)

    def ours(self) -> Callable[[], Any]:
        import syncopate as sy

        from ..call.arguments import DTYPE_NAMES
        from .grouped_kernels import gated_product, product

        dtype = DTYPE_NAMES[self.a.dtype]
        rows, made = (sy.Tensor(name, (self.bound, self.hidden), dtype) for name in ("A", "C"))
        plan = sy.plans.push_groups(sy.plans.mesh_of(self.size), rows, self.experts, made)
        bind = [{"x_ptr": "A", "offsets_ptr": "counts"}, {"c_ptr": "C", "offsets_ptr": "counts"}]
        self.fused = fused = sy.fuse((gated_product, product), plan, bind)
        h, counts = self.rows(self.inner, self.bound), self.counts().int()

        def call() -> Any:
            c = self.rows(self.hidden, len(self.a))
            given = self.arguments(self.a, h, c, counts)
            fused.run([fused.call(i, (self.programs,), *one, **self.options) for i, one in enumerate(given)])
            return c

        return call

    def by_kernels(self, x: Any, offsets: Any, h: Any, c: Any) -> Any:
        """The user's kernels, of rows that lie as `offsets` say."""
        from .grouped_kernels import gated_product, product

        for kernel, given in zip((gated_product, product), self.arguments(x, h, c, offsets), strict=True):
            kernel[(self.programs,)](*given, **self.options)
        return c

    def offsets(self, counts: Any) -> Any:
        import torch

        return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)

    def products(self) -> Callable[[], Any]:
        rows = int(self.came.sum())
        x, offsets = self.rows(self.hidden, rows).normal_(), self.offsets(self.came)
        h, c = self.rows(self.inner, rows), self.rows(self.hidden, rows)
        return lambda: self.by_kernels(x, offsets, h, c)

    def unfused(self) -> Callable[[], Any]:
        def layer(rows: Any, counts: Any) -> Any:
            h, c = self.rows(self.inner, len(rows)), self.rows(self.hidden, len(rows))
            return self.by_kernels(rows, self.offsets(counts), h, c)

        return lambda: self.exchanged(layer)

    def nccl(self) -> Callable[[], Any]:
        return lambda: self.exchanged(self.by_torch)

    def exchanged(self, layer: Callable[[Any, Any], Any]) -> Any:
        from .moe_peers import exchanged

        return exchanged(self, self.a, self.counts(), layer)


def run_case(model: str, tokens: int, routing: str, options: argparse.Namespace) -> dict[str, Any]:
    case = Case(model, tokens, routing)
    ours = case.ours()
    ways = {"ours": Way(lambda: ours)}
    for name in options.ways.split(","):
        if name != "ours":
            ways[name] = Way(getattr(case, name), captured=name == "products", whole=name != "products")
    try:
        return timed(ways, options.rounds, case.floors())
    finally:
        case.fused.close()


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """On each rank: every model, number of tokens and routing. Returns the report."""
    return run_layers("grouped", run_case, options, {})


def main(arguments: list[str]) -> int:
    return launch(parse(arguments), check, run_all, OF_LAYERS)
