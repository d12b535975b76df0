"""Which activation follows a product. Inductor has taken it apart by then, each version of torch in its own way; so it is
recognised by its values: the pointwise nodes behind the product are computed on numbers, and compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from .graphs import RESHAPES, has_shape_of, is_call
from .unfused import activated

aten = torch.ops.aten
MOST_NODES = 16  # gelu with tanh has 9, and reshapes
NAMES = ("relu", "silu", "gelu")
CONVERSIONS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
POINTWISE = {
    op
    for packet in (
        "relu", "sigmoid", "tanh", "exp", "neg", "reciprocal", "mul", "add", "sub", "div", "pow", "erf",
        "maximum", "clamp_min", "silu", "gelu",
    )
    for op in (getattr(getattr(aten, packet), name) for name in getattr(aten, packet).overloads())
}  # fmt: skip


#: Of what a product may be: steps of 0.05, and values next to zero and far from it, where a threshold would show.
SAMPLES = torch.cat(
    [
        torch.linspace(-9, 9, 361, dtype=torch.float64),
        torch.tensor([-1e4, -1e-8, -1e-30, 1e-30, 1e-8, 1e4], dtype=torch.float64),
    ]
)


def activation_behind(product: Node) -> tuple[str, Node]:
    """Its name and the node that holds its result; ("", product) if there is none that the kernels know, or if
    something else reads the product, too."""
    with _disable_current_modes():  # the compiler's: tensors without values
        return _activation_behind(product)


def _activation_behind(product: Node) -> tuple[str, Node]:
    values: dict[Node, torch.Tensor] = {product: SAMPLES}
    found = "", product
    for node in _behind(product):
        try:
            values[node] = _value(node, values)
        except (RuntimeError, TypeError):
            break
        if _is_only_way_out(node, values):
            for name in NAMES:
                if _is_same(values[node], activated(SAMPLES, name), name):
                    found = name, node
    return found


def _behind(product: Node) -> list[Node]:
    """The pointwise nodes that are made of the product and constants only, in order."""
    inside, order = {product}, []
    node = product.next
    while node.op != "root" and len(order) < MOST_NODES:
        sources = node.all_input_nodes
        known = node.op == "call_function" and _is_known(node, product)
        if known and sources and all(source in inside for source in sources):
            inside.add(node)
            order.append(node)
        node = node.next
    return order


def _is_known(node: Node, product: Node) -> bool:
    """Whether it computes each element of its result from those at the same place, in a dtype that holds the product's."""
    if node.target not in (*POINTWISE, *RESHAPES, *CONVERSIONS):
        return False
    made, exact = node.meta["val"], product.meta["val"]
    wide = made.dtype.is_floating_point and made.dtype.itemsize >= exact.dtype.itemsize
    if not wide or torch.promote_types(made.dtype, exact.dtype) != made.dtype or made.device != exact.device:
        return False
    return is_call(node, *RESHAPES) or all(has_shape_of(source, node) for source in node.all_input_nodes)


def _is_same(values: torch.Tensor, exact: torch.Tensor, name: str) -> bool:
    """relu only selects, so each bit counts; the others are computed in several ways."""
    return torch.equal(values, exact) if name == "relu" else torch.allclose(values, exact, 1e-6, 1e-12)


def _value(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor:
    if is_call(node, *RESHAPES, *CONVERSIONS):
        return values[node.args[0]]
    arguments: tuple[Any, ...] = torch.fx.map_arg(node.args, lambda source: values[source])
    return node.target(*arguments, **node.kwargs)


def _is_only_way_out(last: Node, inside: dict[Node, torch.Tensor]) -> bool:
    """Whether nobody else outside reads what was computed up to `last`."""
    return all(user in inside for node in inside if node is not last for user in node.users)
