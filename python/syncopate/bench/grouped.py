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
from .moe import (
    LINK_GBS,
    MEMORY_TBS,
    MODELS,
    PRODUCT_TFLOPS,
    ROUTINGS,
    TOLERANCE,
    check_words,
    finish,
    judged,
    of_any_rank,
    route,
    run_layers,
)

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


class Case:
    """One model, number of tokens and routing, on this rank. A token's rows are its topk ones."""

    def __init__(self, model: str, tokens: int, routing: str) -> None:
        import torch
        import torch.distributed as dist

        self.gpu = torch.cuda.is_available()
        self.experts, topk, self.hidden, self.inner = MODELS[model]
        if not self.gpu:
            self.experts, topk, self.hidden, self.inner, tokens = 8, 2, 32, 32, max(4, tokens // 64)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = self.experts // self.size
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.gpu else torch.device("cpu")
        of = {"device": self.device, "dtype": torch.bfloat16 if self.gpu else torch.float32}
        torch.manual_seed(self.rank)
        ids = route(routing, tokens, self.experts, topk, self.rank).to(self.device)
        counts = torch.bincount(ids.flatten(), minlength=self.experts)
        self.counts = counts.to(torch.int32)
        self.a = torch.randn(tokens * topk, self.hidden, **of)
        self.w1 = torch.randn(self.own, self.hidden, 2 * self.inner, **of) * 0.02
        self.w2 = torch.randn(self.own, self.inner, self.hidden, **of) * 0.02
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts)
        self.sent = int(
            counts.view(self.size, self.own).sum(1).sum() - counts.view(self.size, self.own)[self.rank].sum()
        )
        self.by_rank = there.view(self.size, self.own)
        #: That come for each expert, and to the rank that gets most.
        self.came = self.by_rank.sum(0)
        most = self.came.sum()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        self.bound = max(int(most), len(self.a))
        self.tile = (
            (128, 128, 64)
            if self.gpu and self.bound > 64 * self.own
            else (16, 128, 64)
            if self.gpu
            else (16, 16, 16)
        )
        # Of as few registers that what sends rows has room beside it.
        many = {"num_warps": 8, "num_stages": 3, "maxnreg": 176}
        self.options = many if self.tile[0] == 128 else {"num_warps": 4, "num_stages": 3}
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
        fused = sy.fuse((gated_product, product), plan, bind)
        h = self.rows(self.inner, self.bound)

        def call() -> Any:
            c = self.rows(self.hidden, len(self.a))
            given = self.arguments(self.a, h, c, self.counts)
            fused.run([fused.call(i, (self.programs,), *one, **self.options) for i, one in enumerate(given)])
            return c

        call.close = fused.close  # type: ignore[attr-defined]
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

    def exchanged(self, layer: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        """NCCL's all-to-alls with counts on the host, rows put in the order of experts, `layer`, and back."""
        import torch
        import torch.distributed as dist

        def call() -> Any:
            counts = self.counts.long()
            there = torch.empty_like(counts)
            dist.all_to_all_single(there, counts)
            send = counts.view(self.size, self.own).sum(1).tolist()
            by_rank = there.view(self.size, self.own)
            receive = by_rank.sum(1).tolist()
            rows = self.rows(self.hidden, sum(receive))
            dist.all_to_all_single(rows, self.a, receive, send)
            expert = torch.arange(self.own, device=self.device).repeat(self.size).repeat_interleave(there)
            order = expert.argsort(stable=True)
            made = layer(rows[order], by_rank.sum(0))
            came, back = torch.empty_like(made), torch.empty_like(self.a)
            came[order] = made
            dist.all_to_all_single(back, came, send, receive)
            return back

        return call

    def unfused(self) -> Callable[[], Any]:
        def layer(rows: Any, counts: Any) -> Any:
            h, c = self.rows(self.inner, len(rows)), self.rows(self.hidden, len(rows))
            return self.by_kernels(rows, self.offsets(counts), h, c)

        return self.exchanged(layer)

    def nccl(self) -> Callable[[], Any]:
        import torch

        def layer(rows: Any, counts: Any) -> Any:
            if self.gpu:
                ends = counts.cumsum(0).to(torch.int32)
                gate, up = torch._grouped_mm(rows, self.w1, offs=ends).chunk(2, -1)
                return torch._grouped_mm(torch.nn.functional.silu(gate) * up, self.w2, offs=ends)
            made = []
            for part, w1, w2 in zip(rows.split(counts.tolist()), self.w1, self.w2, strict=True):
                gate, up = (part @ w1).chunk(2, -1)
                made.append((torch.nn.functional.silu(gate) * up) @ w2)
            return torch.cat(made)

        return self.exchanged(layer)

    def floors(self) -> dict[str, float]:
        """µs of this rank."""
        rows, used = int(self.came.sum()), int((self.came > 0).sum())
        item, layer = self.a.element_size(), 3 * self.hidden * self.inner
        product = max(2 * rows * layer / PRODUCT_TFLOPS / 1e6, used * layer * item / MEMORY_TBS / 1e6)
        return {"product": product, "link": 2 * self.sent * self.hidden * item / LINK_GBS / 1e3}


def run_case(model: str, tokens: int, routing: str, options: argparse.Namespace) -> dict[str, Any]:
    from .measure import Candidate, capture, measure

    case = Case(model, tokens, routing)
    rows: list[Candidate] = []
    left_out: dict[str, str] = {}
    ours = case.ours()
    try:
        right = ours().clone()
        graph = capture(ours).replay
        rows.append(Candidate("ours", lambda _: graph(), visible=False))
        for name in options.ways.split(","):
            if name == "ours":
                continue
            reason = ""
            try:
                call = getattr(case, name)()
                made = call()
                if name == "products":
                    call = capture(call).replay
                else:
                    off = (
                        (made.float() - right.float()).norm() / right.float().norm().clamp_min(1e-30)
                    ).item()
                    if not off < TOLERANCE:
                        raise ArithmeticError(f"off by {off:.2g} of the norm of ours")
            except Exception as error:  # noqa: BLE001 - the others are still to be measured
                reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if reason := of_any_rank(reason):
                left_out[name] = reason
            else:
                rows.append(Candidate(name, lambda _, call=call: call(), visible=False))
        entry: dict[str, Any] = {"rows": measure(rows, options.rounds), "floors": case.floors()}
    finally:
        ours.close()  # type: ignore[attr-defined]
    return judged(entry, left_out)


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """On each rank: every model, number of tokens and routing. Returns the report."""
    return run_layers("grouped", run_case, options, {})


def main(arguments: list[str]) -> int:
    return launch(parse(arguments), check, run_all, finish)
