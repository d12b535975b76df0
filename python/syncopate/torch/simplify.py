"""What a graph is made simpler by before its collectives are looked at:

waits          of several for one collective the first, also of a wait's wait, and of several alike moves of what came the first
whole slices   x[0 : all of it] → x, as DTensors of unknown sizes have between a gather and its product
casts          all_gather(x).to(bf16) → all_gather(x.to(bf16)), as autocast has: the same values, and half as much is sent
sums           reduce_scatter(a @ v) + reduce_scatter(b @ w) → reduce_scatter(a @ v + b @ w), and all-reduces alike, as the gradient of
               what several column-wise products read has, and a block whose attention and MLP stand side by side: one
               instead of several, and rounded less often
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map

from .graphs import (
    ADDMM,
    COLLECTIVES,
    MM,
    RESHAPES,
    SPLITS,
    Gathered,
    aten,
    c10d,
    depends,
    has_shape_of,
    is_call,
    line_of,
    module_of,
    scattered_form,
    summed,
    text_of,
    way_to_matrix,
)
from .report import Rewrite
from .writer import KERNEL_DTYPES, Writer

CAST = torch.ops.prims.convert_element_type.default
#: What only moves elements of a tensor, or of the tensors that it was cut into.
MOVES = (
    *RESHAPES,
    *SPLITS,
    operator.getitem,
    aten.cat.default,
    aten.slice.Tensor,
    aten.permute.default,
)
SUMS = (c10d.reduce_scatter_tensor.default, c10d.all_reduce.default)


def simplify(graph: Graph, kind: str) -> list[Rewrite]:
    """Rows for the collectives that are there no more."""
    wait_once(graph)
    drop_whole_slices(graph)
    cast_before_gathers(graph)
    return sum_before_sending(graph, kind)


def wait_once(graph: Graph) -> None:
    """Of several waits for one collective, as torch has them from 2.14 on where several products read it, or one behind another, as
    eager code has them that is traced, the first is left. Torch then has each product read moves of its own of what came, as it
    takes waits for effects: they become one as well."""
    first: dict[Node, Node] = {}
    several = False
    for node in list(graph.nodes):
        if is_call(node, c10d.wait_tensor.default):
            collective = node.args[0]
            while is_call(collective, c10d.wait_tensor.default):
                collective = collective.args[0]
            several |= _put_in_place(node, first.setdefault(collective, node))
    alike: dict[Any, Node] = {}
    for node in list(graph.nodes) if several else ():
        given_back = any(user.op == "output" for user in node.users)  # where each is a tensor of its own
        if is_call(node, *MOVES, CAST) and not given_back:
            _put_in_place(node, alike.setdefault((node.target, node.args, node.kwargs), node))


def _put_in_place(node: Node, earlier: Node) -> bool:
    """`earlier` in the place of `node`; whether they are two."""
    if earlier is not node:
        node.replace_all_uses_with(earlier)
        node.graph.erase_node(node)
    return earlier is not node


def drop_whole_slices(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        whole = node.args[0]
        given_back = any(user.op == "output" for user in node.users)  # perhaps beside what it is a view of
        if len(node.args) < 5 and has_shape_of(node, whole) and not given_back:
            node.replace_all_uses_with(whole)
            graph.erase_node(node)


def cast_before_gathers(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=c10d.all_gather_into_tensor.default):
        moved, casts = _read_by_moves(node)
        targets = {cast.args[1] for cast in casts or ()}
        if len(targets) != 1:
            continue
        (dtype,) = targets
        value = node.args[0].meta["val"]
        if dtype not in KERNEL_DTYPES or dtype.itemsize >= value.dtype.itemsize:
            continue
        node.update_arg(0, Writer(node, casts[0]).call(CAST, node.args[0], dtype))
        for one in moved:
            one.meta["val"] = tree_map(lambda value, to=dtype: value.to(to), one.meta["val"])
        for cast in casts:
            cast.replace_all_uses_with(cast.args[0])
            graph.erase_node(cast)


def _read_by_moves(gather: Node) -> tuple[list[Node], list[Node] | None]:
    """The gather, its wait and all that moves what it gathers, and the casts that read that; None: something else does."""
    moved, casts, open_ = [], [], [gather]
    while open_:
        node = open_.pop()
        moved.append(node)
        for user in node.users:
            if is_call(user, CAST):
                casts.append(user)
            elif is_call(user, aten.sym_size.int):
                continue
            elif is_call(user, *MOVES, c10d.wait_tensor.default):
                if user not in moved and user not in open_:
                    open_.append(user)
            else:
                return moved, None
    alone = all(source in moved for node in moved for source in node.all_input_nodes if node is not gather
                and not isinstance(source.meta.get("val"), torch.SymInt))  # fmt: skip
    return moved, list(dict.fromkeys(casts)) if alone else None


def _product_of(part: Node) -> Node | None:
    """The product that it is, or that is cast to it."""
    while is_call(part, CAST, *RESHAPES) and len(part.args[0].users) == 1:
        part = part.args[0]
    return part if is_call(part, MM, ADDMM) else None


@dataclass
class Sent:
    """A sum over ranks of a product's result, read by one node: `tail` is what that reads, `form` what is sent, `matrix` what
    the product, or a sum of products, has made."""

    tail: Node
    wait: Node
    node: Node
    form: Gathered
    matrix: Node

    @classmethod
    def behind(cls, tail: Node) -> Sent | None:
        """None: `tail` is no such thing."""
        way = [tail]
        while is_call(way[-1], *RESHAPES):
            way.append(way[-1].args[0])
        wait = way[-1]
        if not is_call(wait, c10d.wait_tensor.default) or any(len(one.users) != 1 for one in way):
            return None
        node = wait.args[0]
        if not is_call(node, *SUMS) or len(node.users) != 1 or node.args[1] not in ("sum", "avg"):
            return None
        tensor = node.args[0]
        scatters = is_call(node, c10d.reduce_scatter_tensor.default)
        form = scattered_form(tensor, node.args[2]) if scatters else Gathered(tensor, 0)
        matrix = way_to_matrix(form.node)[-1]
        products = all(map(_product_of, summed(matrix)))
        return cls(tail, wait, node, form, matrix) if products and cls._only_sent(matrix, node) else None

    @staticmethod
    def _only_sent(matrix: Node, collective: Node) -> bool:
        open_ = list(matrix.users)
        while open_:
            node = open_.pop()
            if node is collective:
                continue
            if not is_call(node, *MOVES) or not node.users:
                return False
            open_.extend(node.users)
        return True

    def like(self, other: Sent) -> bool:
        """Whether the sum of both may be sent as one."""
        return (
            self.wait is not other.wait
            and self.node.target is other.node.target
            and self.node.args[1:] == other.node.args[1:]
            and self.form.axis == other.form.axis
            and has_shape_of(self.form.node, other.form.node)
            and has_shape_of(self.matrix, other.matrix)
            and self.matrix.meta["val"].dtype == other.matrix.meta["val"].dtype
            and not depends(self.matrix, other.wait)
            and not depends(other.matrix, self.wait)
        )


def _is_addition(node: Node) -> bool:
    """Of two different ones of one shape and type."""
    return (
        is_call(node, aten.add.Tensor)
        and not node.kwargs
        and all(isinstance(arg, Node) and has_shape_of(arg, node) for arg in node.args)
        and node.args[0] is not node.args[1]
        and len({arg.meta["val"].dtype for arg in node.args}) == 1
    )


def _terms(node: Node) -> Iterator[Node]:
    """What an addition is the sum of."""
    for arg in node.args:
        if _is_addition(arg) and len(arg.users) == 1:
            yield from _terms(arg)
        else:
            yield arg


def sum_before_sending(graph: Graph, kind: str) -> list[Rewrite]:
    rows = []
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        different: list[Sent] = []
        for term in list(_terms(node)) if not node._erased and _is_addition(node) else ():
            sent = Sent.behind(term)
            first = next((one for one in different if sent and one.like(sent)), None)
            if first is not None:
                rows.append(_join(graph, kind, first, sent))
            elif sent is not None:
                different.append(sent)
    return rows


def _join(graph: Graph, kind: str, first: Sent, second: Sent) -> Rewrite:
    """Adds what `second` sends to what `first` does, and takes it out of the sum behind."""
    product = _product_of(summed(second.matrix)[0])
    at = " ".join(filter(None, (line_of(first.node), module_of(first.node)))) or first.node.name
    row = Rewrite(
        kind,
        COLLECTIVES[second.node.target],
        text_of(product),
        f"sent in one with that of {at}",
        "",
        line_of(second.node),
        module_of(second.node),
    )
    (addition,) = second.tail.users
    total = Writer(addition, first.matrix).call(aten.add.Tensor, first.matrix, second.matrix)
    first.matrix.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    first.matrix = total
    (other,) = (arg for arg in addition.args if arg is not second.tail)
    addition.replace_all_uses_with(other)
    for dead in (addition, *_between(second.tail, second.wait), second.wait, second.node):
        graph.erase_node(dead)
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    return row


def _between(tail: Node, wait: Node) -> Iterator[Node]:
    """The reshapes from `tail` back to `wait`, without it."""
    while tail is not wait:
        source = tail.args[0]
        yield tail
        tail = source
