"""syncopate bench moe: a mixture of experts over models, tokens and routings, beside what can be installed today.

One process a GPU. Times are those of a CUDA graph of one layer, forward; with --backward those of the forward and the backward pass,
ours without a graph, but with the host's time hidden. Without a GPU extents are divided by 64, which checks the bench alone.
`products` are ours alone, of the same rows: what the whole takes more is exposed. Floors: the weights or the operations, and the
rows over the link both ways. Peers (--ways):

    nccl                  the eager pair of all-to-alls with counts on the host, around torch's grouped product
    minimal_async_ep      torchtitan's, if $PEER is a folder with distributed/minimal_async_ep of its wheel
    all_to_all_vdev_2d    torch's, on symmetric memory by NVSHMEM, forward alone; asked for by name, as a process has memory of
                          one kind

    syncopate bench moe --models Qwen3-30B-A3B --tokens 64,512 --routings balanced,random,zipf
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .launch import Parser, add_options, launch, parse_options
from .table import Form, measured, ratio

#: Experts, topk, H and F.
MODELS = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "DSV3/4": (64, 8, 7168, 2048),
}
ROUTINGS = ("balanced", "random", "zipf", "half")
WAYS = ("ours", "products", "nccl", "minimal_async_ep", "all_to_all_vdev_2d")
#: Of an H200, as the floors take them: elements of 16 bits.
PRODUCT_TFLOPS, MEMORY_TBS, LINK_GBS = 620.0, 4.2, 345.0
TOLERANCE = 0.02  # of a peer's results, by the norm of ours
MADE = ("y", "gradient of x", "gradient of the routes' weights", "gradient of w1", "gradient of w2")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="syncopate bench moe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--tokens", default="64,512,4096", help="of a rank, comma-separated")
    parser.add_argument("--routings", default="random", help=f"of {', '.join(ROUTINGS)}, comma-separated")
    parser.add_argument(
        "--ways", default=",".join(WAYS[:4]), help=f"of {', '.join(WAYS)}, comma-separated; ours always"
    )
    parser.add_argument("--backward", action="store_true", help="measure the forward and the backward pass")
    add_options(parser, "")
    return parse_options(parser, arguments)


def check_words(options: argparse.Namespace, **known: Any) -> None:
    """Raises ValueError for what is wrong on the command line. `known`: what words an option may have."""
    for name, words in known.items():
        for one in getattr(options, name).split(","):
            if one not in words:
                raise ValueError(f"--{name} {one}: expected {', '.join(words)}")
    if not all(t.isdecimal() and int(t) > 0 for t in options.tokens.split(",")):
        raise ValueError(f"--tokens {options.tokens}: expected whole numbers, comma-separated")


def check(options: argparse.Namespace) -> None:
    check_words(options, models=MODELS, routings=ROUTINGS, ways=WAYS)


def route(kind: str, tokens: int, experts: int, topk: int, rank: int) -> Any:
    """topk_ids [tokens, topk]. "zipf": the e-th expert by 1 / (e + 1); "half": half of all tokens have expert 0."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    if kind == "balanced":
        return (torch.arange(tokens * topk) + rank * topk).view(tokens, topk) % experts
    scores = torch.rand(tokens, experts, generator=generator).log().neg().log().neg()
    if kind == "zipf":
        scores -= torch.arange(1, experts + 1).log()
    if kind == "half":
        scores[: tokens // 2, 0] = 1e9
    return scores.topk(topk).indices


class Layer:
    """One model, number of tokens and routing, on this rank. `small`: H and F without a GPU."""

    def __init__(self, model: str, tokens: int, routing: str, small: tuple[int, int]) -> None:
        import torch
        import torch.distributed as dist

        self.gpu = torch.cuda.is_available()
        self.experts, self.topk, self.hidden, self.inner = MODELS[model]
        if not self.gpu:
            self.experts, self.topk, tokens = 8, 2, max(4, tokens // 64)
            self.hidden, self.inner = small
        self.tokens = tokens
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = self.experts // self.size
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.gpu else torch.device("cpu")
        torch.manual_seed(self.rank)
        self.w1 = self.random(self.own, self.hidden, 2 * self.inner) * 0.02
        self.w2 = self.random(self.own, self.inner, self.hidden) * 0.02
        self.ids = route(routing, tokens, self.experts, self.topk, self.rank).to(self.device)

    def random(self, *shape: int) -> Any:
        import torch

        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16 if self.gpu else torch.float32)

    def counts(self) -> Any:
        """Rows of this rank for each expert."""
        import torch

        return torch.bincount(self.ids.flatten(), minlength=self.experts)

    def by_torch(self, rows: Any, counts: Any) -> Any:
        """The products of rows that lie expert by expert, by torch's grouped product."""
        import torch

        if self.gpu:
            return self.by_torch_to(rows, counts.cumsum(0).to(torch.int32))
        made = []
        for part, w1, w2 in zip(rows.split(counts.tolist()), self.w1, self.w2, strict=True):
            gate, up = (part @ w1).chunk(2, -1)
            made.append((torch.nn.functional.silu(gate) * up) @ w2)
        return torch.cat(made)

    def by_torch_to(self, rows: Any, ends: Any) -> Any:
        """`ends`: of each expert, past its last row."""
        import torch

        gate, up = torch._grouped_mm(rows, self.w1, offs=ends).chunk(2, -1)
        return torch._grouped_mm(torch.nn.functional.silu(gate) * up, self.w2, offs=ends)

    def floors(self, backward: bool = False) -> dict[str, float]:
        """µs of the rank that has most to do."""
        import torch
        import torch.distributed as dist

        counts = self.counts()
        dist.all_reduce(counts)
        of_ranks = counts.view(self.size, self.own)
        rows, used = of_ranks.sum(1).max().item(), (of_ranks > 0).sum(1).max().item()
        item, layer = self.w1.element_size(), 3 * self.hidden * self.inner
        # Backward: each product twice more, the weights read and their gradients written, and the ways both once more.
        times = 3 if backward else 1
        sent = torch.tensor(float((self.ids // self.own != self.rank).sum().item()), device=self.device)
        dist.all_reduce(sent, op=dist.ReduceOp.MAX)
        return {
            "product": times
            * max(2 * rows * layer / PRODUCT_TFLOPS / 1e6, used * layer * item / MEMORY_TBS / 1e6),
            "link": (2 if backward else 1) * 2 * sent.item() * self.hidden * item / LINK_GBS / 1e3,
        }


class Case(Layer):
    def __init__(self, model: str, tokens: int, routing: str) -> None:
        hidden, inner = MODELS[model][2:]
        super().__init__(model, tokens, routing, (hidden // 64, inner // 64))
        self.x = self.random(self.tokens, self.hidden)
        self.grad = self.random(self.tokens, self.hidden) / 4  # of y
        self.weights = self.random(self.tokens, self.topk).float().softmax(-1)

    def counts_on_device(self) -> Any:
        """As `counts`, in a graph."""
        import torch

        made = torch.zeros(self.experts, dtype=torch.int64, device=self.device)
        return made.scatter_add_(0, self.ids.flatten(), torch.ones_like(self.ids.flatten()))

    def ours(self) -> Callable[[], Any]:
        from ..ops import moe

        return lambda: moe(self.x, self.ids, self.weights, self.w1, self.w2, over="drop")

    def trained(self, make: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], list[Any]]]:
        """Of a layer, also the gradients of x, the weights of the routes, w1 and w2. The call returns y and these."""
        import torch

        leaves = [self.x, self.weights, self.w1, self.w2]
        for leaf in leaves:
            leaf.requires_grad_()

        def made() -> Callable[[], list[Any]]:
            layer = make()

            def call() -> list[Any]:
                y = layer()
                return [y.detach(), *torch.autograd.grad(y, leaves, self.grad)]

            return call

        return made


def of_any_rank(reason: str) -> str:
    """The first rank's that has one: what one rank leaves out, the others would wait for. Collective."""
    import torch.distributed as dist

    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


@dataclass
class Way:
    """One of those that are timed. `captured`: as a CUDA graph. `whole`: it makes what ours makes."""

    make: Callable[[], Callable[[], Any]]
    captured: bool = True
    whole: bool = True


def timed(ways: dict[str, Way], rounds: int, floors: dict[str, float]) -> dict[str, Any]:
    """The report's entry of these ways, of which the first is ours: it has to run, and the others to make the same."""
    from .measure import Candidate, capture, measure

    rows: list[Candidate] = []
    left_out: dict[str, str] = {}
    right: list[Any] = []
    for name, way in ways.items():
        reason = ""
        try:
            call = way.make()
            made = call()
            made = made if isinstance(made, list) else [made]
            right = right or [one.clone() for one in made]
            if way.whole:
                require_right(made, right)
            run = call
            if way.captured:
                try:
                    run = capture(call).replay
                except Exception as error:  # noqa: BLE001 - it is measured all the same
                    left_out[f"a graph of {name}"] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        except Exception as error:  # noqa: BLE001 - the others are still to be measured
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        reason = of_any_rank(reason)
        if reason and not rows:
            raise RuntimeError(reason)
        if reason:
            left_out[name] = reason
        else:
            rows.append(Candidate(name, lambda _, run=run: run(), visible=False))
    return judged({"rows": measure(rows, rounds), "floors": floors}, left_out)


def require_right(made: list[Any], right: list[Any]) -> None:
    for what, one, of in zip(MADE, made, right, strict=False):  # forward makes y alone
        off = ((one.float() - of.float()).norm() / of.float().norm().clamp_min(1e-30)).item()
        if not off < TOLERANCE:
            raise ArithmeticError(f"its {what} is off by {off:.2g} of the norm of ours")


def run_case(model: str, tokens: int, routing: str, options: argparse.Namespace) -> dict[str, Any]:
    from ..call import cache
    from . import moe_peers
    from .moe_products import products_alone

    case = Case(model, tokens, routing)
    asked = options.ways.split(",")
    ways = {"ours": Way(case.ours, captured=not options.backward)}
    for name in asked:
        if name not in ("ours", "products"):
            ways[name] = Way(functools.partial(getattr(moe_peers, name), case), captured=name != "nccl")
    if options.backward:
        for way in ways.values():
            way.make = case.trained(way.make)
    elif "products" in asked and case.gpu:
        ways["products"] = Way(lambda: products_alone(case), whole=False)
    try:
        return timed(ways, options.rounds, case.floors(options.backward))
    finally:
        cache.close()


def judged(entry: dict[str, Any], left_out: dict[str, str]) -> dict[str, Any]:
    """`entry`, of whose rows it adds which peer is the best, how many times as fast ours is, and what of it is exposed."""
    times = {name: row["hidden_us"] for name, row in entry["rows"].items()}
    others = {name: us for name, us in times.items() if name not in ("ours", "products")}
    if others:
        entry["best"] = min(others, key=others.__getitem__)
        entry["vs_best"] = others[entry["best"]] / times["ours"]
    if "products" in times:
        entry["exposed"] = 1 - times["products"] / times["ours"]
    if left_out:
        entry["left_out"] = left_out
    return entry


def said(entry: dict[str, Any]) -> str:
    """An entry in a line."""
    from .session import summary

    exposed = f", exposed {entry['exposed']:.1%}" if "exposed" in entry else ""
    return f"{summary(entry)}{exposed} | floors: product, link {floors_said(entry)}"


def floors_said(entry: dict[str, Any]) -> str:
    return ", ".join(f"{us:.0f}" for us in entry["floors"].values())


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """On each rank: every model, number of tokens and routing. Returns the report."""
    told = {"passes": "forward and backward"} if options.backward else {}
    return run_layers("moe", run_case, options, told)


def run_layers(
    operator: str,
    run: Callable[[str, int, str, argparse.Namespace], dict[str, Any]],
    options: argparse.Namespace,
    told: dict[str, str],
) -> dict[str, Any]:
    """The same of `run`, a layer's; `told` stands in each entry."""
    import torch.distributed as dist

    from .session import Progress

    progress = Progress(options)
    for model in options.models.split(","):
        for tokens in map(int, options.tokens.split(",")):
            for routing in options.routings.split(","):
                where = f"{operator} {model:14} T={tokens:5} {routing:8} |"
                entry = {"operator": operator, "model": model, "T": tokens, "routing": routing, **told}
                progress.shape(where, entry, functools.partial(run, model, tokens, routing, options), said)
    dist.destroy_process_group()
    return progress.report


def lines_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A line a row: µs with the host's time hidden, and how many times as fast as the best peer ours is."""
    return [
        {"tokens": entry["T"], "passes": entry.get("passes", "forward"), "row": name}
        | {name: entry[name] for name in ("model", "routing")}
        | {"us": f"{row['hidden_us']:.1f}", "vs_best": entry.get("vs_best", "") if name == "ours" else ""}
        for entry in measured(report)
        for name, row in entry["rows"].items()
    ]


OF_LAYERS = Form(
    title=lambda entry: f"{entry['operator']}, {entry.get('passes', 'forward')}",
    keys={"model": "model", "tokens": "T", "routing": "routing"},
    x="T",
    x_label="tokens of a rank",
    series=lambda entry: f"{entry['model']}, {entry['routing']}",
    lines=lines_of,
    columns=("model", "tokens", "routing", "passes", "row", "us", "vs_best"),
    more={"exposed": ratio("exposed", "{:.1%}"), "floors: product, link": floors_said},
)


def main(arguments: list[str]) -> int:
    return launch(parse(arguments), check, run_all, OF_LAYERS)
