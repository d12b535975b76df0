"""A pass of Inductor that puts Syncopate's ops where a compiled graph has a collective next to a product:

    sy.inductor.enable()               # for all that is compiled from now on; sy.inductor.disable() takes it away
    model = torch.compile(model)       # or for one model: torch.compile(model, options=sy.inductor.options())
    …
    print(sy.inductor.report())        # each collective next to a product: what happened, or why not, and the user's line

It runs before Inductor's own passes, on forward and backward graphs. What it leaves, torch's asynchronous tensor parallelism
may still take.
"""

from __future__ import annotations

import copy
import os
import warnings
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch._inductor import config, custom_graph_pass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from . import agreed
from . import report as reports
from .graphs import COLLECTIVES, LeftError, c10d, is_ours, kind_of, line_of, module_of, neighbours, text_of
from .rewrite_exchange import rewrite_exchange
from .rewrite_gather import rewrite_gather
from .rewrite_sent import rewrite_reduce, rewrite_scatter
from .simplify import simplify
from .writer import has_uneven_shards

__all__ = ["Pass", "disable", "enable", "options", "report"]


def leave_coalesced(node: Node) -> str:
    """Several tensors in one collective."""
    raise LeftError(f"it is one collective of {len(node.args[0])} tensors: each product needs one of its own")


REWRITES = {
    c10d.all_gather_into_tensor.default: rewrite_gather,
    c10d.reduce_scatter_tensor.default: rewrite_scatter,
    c10d.all_reduce.default: rewrite_reduce,
    c10d.all_to_all_single.default: rewrite_exchange,
    c10d.all_gather_into_tensor_coalesced.default: leave_coalesced,
    c10d.reduce_scatter_tensor_coalesced.default: leave_coalesced,
    c10d.all_reduce_coalesced.default: leave_coalesced,
}
READ_BY_PRODUCTS = ("all_gather", "all_to_all")
READ_PRODUCTS = ("reduce_scatter", "all_reduce", "all_to_all")
REWRITTEN_BY = (
    "inductor",
    "graphs",
    "simplify",
    "writer",
    "rewrite_gather",
    "rewrite_sent",
    "rewrite_exchange",
    "activations",
)
FILES = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in REWRITTEN_BY)


class Pass(custom_graph_pass.CustomGraphPass):
    """The pass, after what was configured before. Graphs of Inductor's cache were rewritten when they were compiled."""

    def __init__(self, before: Any) -> None:
        self.before = before if isinstance(before, (list, tuple)) else [before] if before else []

    def __call__(self, graph: Graph) -> None:
        for one in self.before:
            one(graph)
        rewrite(graph)

    def __eq__(self, other: object) -> bool:  # Dynamo asks whether two models are compiled alike
        return isinstance(other, Pass) and self.before == other.before

    def __hash__(self) -> int:
        return hash(Pass)

    def uuid(self) -> Any:
        """What Inductor's cache of graphs must find unchanged; None: it is not to keep them."""
        others = [one.uuid() if hasattr(one, "uuid") else None for one in self.before]
        if None in others:
            return None
        # What calls.refusal and calls.slower look at: a graph that was left is not to be found where it would be rewritten.
        machine = os.environ.get("TRITON_INTERPRET"), torch.cuda.is_available(), agreed.digest()
        known = machine, groups(), has_uneven_shards()
        return custom_graph_pass.get_hash_for_files(FILES, torch.__version__), known, *others


def groups() -> tuple[tuple[str, int, str], ...]:
    """Names, sizes and backends of the process groups there are: a graph has their names only, and its rewriting reads these."""
    known = distributed.distributed_c10d._world.pg_names if distributed.is_initialized() else {}
    return tuple(sorted((name, one.size(), distributed.get_backend(one)) for one, name in known.items()))


def rewrite(graph: Graph) -> None:
    """Rewrites an ATen graph, and reports."""
    has_uneven_shards()  # which the graph behind this one may not tell
    kind = kind_of(graph)
    try:
        simplify(copy.deepcopy(graph), kind)  # which may end half way
        rows = simplify(graph, kind)
    except Exception as error:  # noqa: BLE001 - whatever it is, the graph is right without it
        warnings.warn(f"syncopate: a graph is not simplified: {type(error).__name__}: {error}", stacklevel=2)
        rows = []
    for row in rows:
        reports.add(row)
    for node in [node for node in graph.nodes if node.op == "call_function" and node.target in COLLECTIVES]:
        collective = COLLECTIVES[node.target]
        near = neighbours(node, forward=True) if collective in READ_BY_PRODUCTS else []
        near += neighbours(node, forward=False) if collective in READ_PRODUCTS else []
        if not near:
            continue
        described = collective, text_of(near[0])
        where, module = line_of(node), module_of(node)
        made = reason = ""
        try:
            made = REWRITES[node.target](node)
        except LeftError as left:
            reason = str(left)
        except KeyError as missing:  # another pass has put in nodes without their values
            reason = f"the graph does not say {missing} of each node"
        except Exception as error:  # noqa: BLE001 - whatever it is, the graph is right without it
            reason = f"rewriting it failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _clear(graph, node)
        rows.append(reports.Rewrite(kind, *described, made, reason, where, module))
        reports.add(rows[-1])
    if first := next(filter(is_ours, graph.nodes), None):
        first.update_kwarg("rows", reports.written(rows))
    graph.lint()


def _clear(graph: Graph, collective: Node) -> None:
    """Takes out what nobody reads any more, the collective as well: alone it would still run, as waits count as effects."""
    stable_topological_sort(graph)  # users of what was gathered may stand before the product
    graph.eliminate_dead_code()
    for wait in [user for user in collective.users if not user.users]:
        graph.erase_node(wait)
    if not collective.users and any(node is collective for node in graph.nodes):
        graph.erase_node(collective)


def _configure(value: Any) -> None:
    """The pass of all threads. Since torch 2.13 what is configured holds in the thread that did it, and others read the default;
    backward graphs are compiled in threads of autograd's."""
    config.post_grad_custom_pre_pass = value
    entry = config._config["post_grad_custom_pre_pass"]
    if isinstance(entry.user_override, ContextVar):
        entry.default = value
    torch._dynamo.reset()


def enable() -> None:
    """From now on, graphs that are compiled are rewritten; what was compiled before is compiled again when it is next called
    (torch._dynamo.reset). Does nothing if it is enabled."""
    if not isinstance(config.post_grad_custom_pre_pass, Pass):
        _configure(Pass(config.post_grad_custom_pre_pass))


def options() -> dict[str, Any]:
    """For torch.compile(model, options=…): this model's graphs are rewritten, whatever is enabled."""
    current = config.post_grad_custom_pre_pass
    return {"post_grad_custom_pre_pass": current if isinstance(current, Pass) else Pass(current)}


def disable() -> None:
    """Puts back what was configured before. What was compiled meanwhile is compiled again when it is next called."""
    current = config.post_grad_custom_pre_pass
    if isinstance(current, Pass):
        _configure((current.before[0] if len(current.before) == 1 else current.before) or None)


def report() -> reports.Report:
    """What happened so far: rows of graphs, and counts of calls. A graph that Inductor took from its cache brings its rows when
    it first runs, if anything of it was fused; `cached` says how many these were."""
    made = reports.current()
    counters = torch._dynamo.utils.counters
    made.cached = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return made
