"""Collectives and products in an ATen graph, as Inductor has it after autograd: what stands next to what.

gather    shard → all_gather_into_tensor → wait (→ split → cat: of an axis that is not the first) (→ reshape) → mm
scatter   mm (→ reshape) (→ split → cat) → reduce_scatter_tensor → wait
reduce    mm (→ reshape) → all_reduce → wait
exchange  mm (→ reshape) → all_to_all_single → wait, or all_to_all_single → wait (→ reshape) → mm
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

COLLECTIVES = {
    c10d.all_gather_into_tensor.default: "all_gather",
    c10d.reduce_scatter_tensor.default: "reduce_scatter",
    c10d.all_reduce.default: "all_reduce",
    c10d.all_to_all_single.default: "all_to_all",
    c10d.all_gather_into_tensor_coalesced.default: "all_gather",
    c10d.reduce_scatter_tensor_coalesced.default: "reduce_scatter",
    c10d.all_reduce_coalesced.default: "all_reduce",
}
#: From 2.15 on several tensors of one collective are waited for at once.
WAITS = (c10d.wait_tensor.default, *(c10d.wait_tensors.default for _ in range(hasattr(c10d, "wait_tensors"))))
MM, ADDMM = aten.mm.default, aten.addmm.default
#: Products; those but mm and addmm only so that the report names them. Not every torch has all of them.
PRODUCTS = tuple(
    getattr(getattr(aten, name), overload)
    for name in (
        "mm addmm bmm baddbmm addbmm mv convolution _int_mm _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm "
        "_scaled_grouped_mm_v2"
    ).split()
    for overload in ("default", "dtype")
    if hasattr(aten, name) and overload in getattr(aten, name).overloads()
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
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.expand.default,
    aten.cat.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.unbind.int,
    aten.diagonal.default,
    aten.clone.default,
    aten.add.Tensor,
    operator.getitem,
)

TORCH = str(Path(torch.__file__).parent)


class LeftError(Exception):
    """A collective that is left as it is; the text says why."""


def shape_of(node: Node) -> list[Any]:
    return list(node.meta["val"].shape)


def has_shape_of(node: Node, other: Node) -> bool:
    """As far as it is known: nothing is asked of sizes that are not."""
    own, others = shape_of(node), shape_of(other)
    return len(own) == len(others) and all(
        statically_known_true(a == b) for a, b in zip(own, others, strict=True)
    )


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def is_ours(node: Node) -> bool:
    """A custom op that is in the place of a collective and a product already."""
    return node.op == "call_function" and getattr(node.target, "namespace", "") == "syncopate"


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
    pieces = [item for user in wait.users for item in (user.users if is_call(user, *SPLITS) else (user,))]
    for cat in dict.fromkeys(user for piece in pieces for user in piece.users):
        if not is_call(cat, aten.cat.default) or any(len(piece.users) != 1 for piece in cat.args[0]):
            continue
        if shards_of(cat.args[0], ranks) == (wait, 0):
            yield Gathered(cat, _argument(cat, 1, "dim", 0) % len(shape_of(cat)))


def scattered_form(tensor: Node, ranks: int) -> Gathered:
    """Of what a reduce-scatter is given: the tensor whose shards along `axis` it is made of."""
    if is_call(tensor, aten.cat.default) and _argument(tensor, 1, "dim", 0) == 0:
        whole = shards_of(tensor.args[0], ranks)
        if whole is not None:
            return Gathered(*whole)
    return Gathered(tensor, 0)


def shards_of(pieces: Sequence[Node], ranks: int) -> tuple[Node, int] | None:
    """The tensor and the axis of which `pieces` are the shards: as many as ranks, equal, in order, and together all of it."""
    places = [_place_of(piece) for piece in pieces]
    if len(pieces) != ranks or None in places or len({place[:2] for place in places}) != 1:
        return None
    whole, axis, _ = places[0]
    sizes, begins = [shape_of(piece)[axis] for piece in pieces], [begin for *_, begin in places]
    as_shards = [size * ranks == shape_of(whole)[axis] for size in sizes]
    as_shards += [begin == index * sizes[0] for index, begin in enumerate(begins)]
    return (whole, axis) if all(map(statically_known_true, as_shards)) else None


def _place_of(piece: Node) -> tuple[Node, int, Any] | None:
    """Of an item of a split, or of a slice without gaps: what it is cut out of, along which axis, and where it begins."""
    if is_call(piece, operator.getitem) and is_call(piece.args[0], *SPLITS):
        split, index = piece.args
        whole, axis = split.args[0], _argument(split, 2, "dim", 0) % len(shape_of(split.args[0]))
        return whole, axis, sum(item.shape[axis] for item in split.meta["val"][:index])
    if is_call(piece, aten.slice.Tensor) and _argument(piece, 4, "step", 1) == 1:
        begin = _argument(piece, 2, "start", None) or 0
        value = begin.meta["val"] if isinstance(begin, Node) else begin
        return piece.args[0], _argument(piece, 1, "dim", 0) % len(shape_of(piece)), value
    return None


def _argument(node: Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


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


def summed(node: Node) -> list[Node]:
    """What `node` is the sum of, each of them another one and read by it alone; otherwise it is one part."""
    if not is_call(node, aten.add.Tensor) or node.kwargs:
        return [node]
    parts = []
    for arg in node.args:
        if not isinstance(arg, Node) or not has_shape_of(arg, node):
            return [node]
        way = way_to_matrix(arg)
        if any(len(one.users) > 1 for one in way):
            return [node]
        parts += summed(way[-1])
    return parts if len(set(parts)) == len(parts) else [node]


def neighbours(start: Node, forward: bool) -> list[Node]:
    """The products that stand next to `start`: behind it, or before it."""
    found, seen, open_ = [], {start}, [start]
    while open_:
        node = open_.pop()
        for other in node.users if forward else node.all_input_nodes:
            if other in seen:
                continue
            seen.add(other)
            if is_call(other, *PRODUCTS) or is_ours(other):
                found.append(other)
            elif is_call(other, *BETWEEN) or (forward and is_call(other, *WAITS)):
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
    from ..call.arguments import DTYPE_NAMES

    name = product.target.__name__.partition(".")[0].removesuffix("_raw").removesuffix("_recorded")
    try:
        own = is_ours(product)
        operands = (
            product.all_input_nodes[:2] if own else [a for a in product.args if isinstance(a, Node)][-2:]
        )
        sizes = [*shape_of(operands[0]), shape_of(operands[1])[-1]]
        dtype = operands[0].meta["val"].dtype
        known = DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))
        return f"{name} {'x'.join(map(str, sizes))} {known}"
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
