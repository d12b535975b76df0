"""Collectives and products in an ATen graph, as Inductor has it after autograd: what stands next to what.

gather    shard → all_gather_into_tensor → wait (→ split → cat: of an axis that is not the first) (→ reshape) → mm
scatter   mm (→ reshape) (→ split → cat) → reduce_scatter_tensor → wait
reduce    mm (→ reshape) → all_reduce → wait
exchange  mm (→ reshape) → all_to_all_single → wait, or all_to_all_single → wait (→ reshape) → mm
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

COLLECTIVES = {
    c10d.all_gather_into_tensor.default: "all_gather",
    c10d.reduce_scatter_tensor.default: "reduce_scatter",
    c10d.all_reduce.default: "all_reduce",
    c10d.all_to_all_single.default: "all_to_all",
}
MM, ADDMM = aten.mm.default, aten.addmm.default
#: Products; those but mm and addmm only so that the report names them.
PRODUCTS = (
    MM,
    ADDMM,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._scaled_mm.default,
    aten.convolution.default,
    *([aten._grouped_mm.default] if hasattr(aten, "_grouped_mm") else []),
)
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
SPLITS = (aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default)
CONVERSIONS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default, aten.view.dtype)
#: What may stand between a collective and a product for the two to be called neighbours.
BETWEEN = (
    *RESHAPES,
    *SPLITS,
    *CONVERSIONS,
    aten.permute.default,
    aten.t.default,
    aten.transpose.int,
    aten.cat.default,
    aten.slice.Tensor,
    aten.clone.default,
    aten.add.Tensor,
    operator.getitem,
)

TORCH = str(Path(torch.__file__).parent)


class LeftError(Exception):
    """A collective that is left as it is; the text says why."""


def shape_of(node: Node) -> list[Any]:
    return list(node.meta["val"].shape)


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def wait_of(collective: Node) -> Node:
    """The wait for it."""
    waits = [user for user in collective.users if is_call(user, c10d.wait_tensor.default)]
    if len(waits) != 1:
        raise LeftError(f"{len(waits)} waits for one collective")
    return waits[0]


@dataclass
class Gathered:
    """A tensor that holds all ranks' shards along `axis`."""

    node: Node
    axis: int


def gathered_forms(wait: Node, ranks: int) -> Iterator[Gathered]:
    """The wait's result, which holds the shards along its first axis, and what is put together of it along another one."""
    yield Gathered(wait, 0)
    for user in wait.users:
        if is_call(user, *SPLITS) and _axis(user, 2) == 0:
            items = sorted((item for item in user.users), key=lambda item: item.args[1])
            cat = _cat_of(items, ranks)
        elif is_call(user, aten.slice.Tensor) and user.args[1:3] == (0, 0):
            cat = _cat_of(_slices(wait, 0), ranks)
        else:
            continue
        if cat is not None:
            yield Gathered(cat, _axis(cat, 1) % len(shape_of(cat)))


def scattered_form(tensor: Node, ranks: int) -> Gathered:
    """Of what a reduce-scatter is given: the tensor whose shards along `axis` it is made of."""
    if not is_call(tensor, aten.cat.default) or _axis(tensor, 1) != 0:
        return Gathered(tensor, 0)
    pieces = list(tensor.args[0])
    if all(is_call(piece, operator.getitem) for piece in pieces):
        whole, numbers = pieces[0].args[0], [piece.args[1] for piece in pieces]
        if (
            is_call(whole, *SPLITS)
            and numbers == list(range(ranks))
            and all(p.args[0] is whole for p in pieces)
        ):
            return Gathered(whole.args[0], _axis(whole, 2) % len(shape_of(whole.args[0])))
    if all(is_call(piece, aten.slice.Tensor) for piece in pieces) and len(pieces) == ranks:
        whole, axis = pieces[0].args[0], pieces[0].args[1]
        if _slices(whole, axis) == pieces:
            return Gathered(whole, axis % len(shape_of(whole)))
    return Gathered(tensor, 0)


def _axis(node: Node, place: int) -> int:
    return node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)


def _cat_of(pieces: list[Node], ranks: int) -> Node | None:
    """The concatenation of exactly these, in their order."""
    if len(pieces) != ranks or any(len(piece.users) != 1 for piece in pieces):
        return None
    cat = next(iter(pieces[0].users))
    return cat if is_call(cat, aten.cat.default) and list(cat.args[0]) == pieces else None


def _slices(whole: Node, axis: int) -> list[Node]:
    """The slices of `whole` along `axis`, in the order of their begins."""
    found = [user for user in whole.users if is_call(user, aten.slice.Tensor) and user.args[1] == axis]
    return sorted(found, key=lambda piece: piece.args[2])


def rows_of(node: Node) -> Iterator[Node]:
    """`node` as matrices [rows, its last axis]: itself, or its reshapes, also through other ones."""
    if len(shape_of(node)) == 2:
        yield node
    for user in node.users:
        if is_call(user, *RESHAPES) and shape_of(user)[-1] == shape_of(node)[-1]:
            yield from rows_of(user)


def way_to_matrix(node: Node) -> list[Node]:
    """From `node` back through reshapes that keep the last axis, to the matrix that it is made of."""
    way = [node]
    while is_call(way[-1], *RESHAPES) and shape_of(way[-1].args[0])[-1] == shape_of(way[-1])[-1]:
        way.append(way[-1].args[0])
    return way


def neighbours(start: Node, forward: bool) -> list[Node]:
    """The products that stand next to `start`: behind it, or before it."""
    found, seen, open_ = [], {start}, [start]
    while open_:
        node = open_.pop()
        for other in node.users if forward else node.all_input_nodes:
            if other in seen:
                continue
            seen.add(other)
            if is_call(other, *PRODUCTS):
                found.append(other)
            elif is_call(other, *BETWEEN) or (forward and is_call(other, c10d.wait_tensor.default)):
                open_.append(other)
    return found


def depends(node: Node, on: Node) -> bool:
    """Whether `node` is made of `on`."""
    seen, open_ = {node}, [node]
    while open_:
        for source in open_.pop().all_input_nodes:
            if source is on:
                return True
            if source not in seen:
                seen.add(source)
                open_.append(source)
    return False


def text_of(product: Node) -> str:
    """Such as mm 4096x8192x3584 bf16."""
    from ..placements import dtype_name

    name = product.target.__name__.partition(".")[0]
    try:
        operands = [arg for arg in product.args if isinstance(arg, Node)][-2:]
        sizes = [*shape_of(operands[0]), shape_of(operands[1])[-1]]
        return f"{name} {'x'.join(map(str, sizes))} {dtype_name(operands[0].meta['val'].dtype)}"
    except (KeyError, AttributeError, IndexError):
        return name


def line_of(node: Node) -> str:
    """The user's line: FILE:LINE of the innermost frame that is not torch's."""
    frames = re.findall(r'File "(.*?)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [f"{file}:{line}" for file, line in frames if not file.startswith(TORCH)]
    return own[-1] if own else ""


def module_of(node: Node) -> str:
    """The path of the user's module, of the forward code in a backward graph."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    return re.sub(
        r"^L\['\w+'\]\.?|\[['\"]?|['\"]?\]", lambda m: "." if m[0].startswith("[") else "", path
    ).strip(".")


def kind_of(graph: Graph) -> str:
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    if any(name.startswith("tangents") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals") for name in names) else "inference"
