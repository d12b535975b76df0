"""Which activation follows a product. Inductor has taken it apart by then, each version of torch in its own way; so it is
recognised by its values: the pointwise nodes behind the product are computed on numbers, and compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from .graphs import CONVERSIONS, RESHAPES, is_call
from .unfused import activated

aten = torch.ops.aten
MOST_NODES = 16  # gelu with tanh has 9, and reshapes
NAMES = ("relu", "silu", "gelu")
POINTWISE = {
    op
    for packet in (
        "relu", "sigmoid", "tanh", "exp", "neg", "reciprocal", "mul", "add", "sub", "div", "pow", "erf",
        "maximum", "clamp_min", "silu", "gelu",
    )
    for op in (getattr(getattr(aten, packet), name) for name in getattr(aten, packet).overloads())
}  # fmt: skip


def activation_behind(product: Node) -> tuple[str, Node]:
    """Its name and the node that holds its result; ("", product) if there is none that the kernels know, or if
    something else reads the product, too."""
    with _disable_current_modes():  # the compiler's: tensors without values
        return _activation_behind(product)


def _activation_behind(product: Node) -> tuple[str, Node]:
    values: dict[Node, torch.Tensor] = {product: torch.linspace(-9, 9, 361, dtype=torch.float64)}
    found = "", product
    for node in _behind(product):
        try:
            values[node] = _value(node, values)
        except (RuntimeError, TypeError):
            break
        if _is_only_way_out(node, values):
            for name in NAMES:
                exact = activated(values[product], name)
                if torch.allclose(values[node], exact, rtol=1e-6, atol=1e-7):
                    found = name, node
    return found


def _behind(product: Node) -> list[Node]:
    """The pointwise nodes that are made of the product and constants only, in order."""
    inside, order = {product}, []
    node = product.next
    while node.op != "root" and len(order) < MOST_NODES:
        sources = node.all_input_nodes
        known = node.op == "call_function" and node.target in (*POINTWISE, *RESHAPES, *CONVERSIONS)
        if known and sources and all(source in inside for source in sources):
            inside.add(node)
            order.append(node)
        node = node.next
    return order


def _value(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor:
    if is_call(node, *RESHAPES, *CONVERSIONS):
        return values[node.args[0]]
    arguments: tuple[Any, ...] = torch.fx.map_arg(node.args, lambda source: values[source])
    return node.target(*arguments, **node.kwargs)


def _is_only_way_out(last: Node, inside: dict[Node, torch.Tensor]) -> bool:
    """Whether nobody else outside reads what was computed up to `last`."""
    return all(user in inside for node in inside if node is not last for user in node.users)
