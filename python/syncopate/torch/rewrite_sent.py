"""Puts custom ops where a graph sends a product's result to a reduce-scatter or an all-reduce. As rewrite_gather.py."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from .graphs import (
    ADDMM,
    MM,
    LeftError,
    aten,
    depends,
    is_call,
    is_ours,
    scattered_form,
    shape_of,
    summed,
    way_to_matrix,
)
from .writer import (
    Collective,
    Writer,
    bias_of,
    by_rank,
    replace,
    require_faster,
    require_kernel,
    right_of,
    two_shots,
)

ops = torch.ops.syncopate


def rewrite_scatter(node: Node) -> str:
    """mm → reduce_scatter."""
    tensor, reduce, size, group = node.args
    scatter = Collective.of(node, group)
    if reduce not in ("sum", "avg"):
        raise LeftError(f"it reduces by {reduce}")
    form = scattered_form(tensor, size)
    shape = shape_of(form.node)
    columns = form.axis == len(shape) - 1
    a, b, bias = operands(tensor, form.node)
    whole = bias is not None and len(shape_of(bias)) == 2
    if bias is not None and not whole and columns:
        raise LeftError("columns are scattered, and the product adds something")
    write = Writer(scatter.wait, node)
    if columns:  # of a @ b: rows of its transpose
        turned = [
            write.call(aten.permute.default, operand, [1, 0])
            for operand in (b, a, bias)
            if operand is not None
        ]
        require_faster(scatter, "matmul_reduce_scatter", *turned[:2])
        y = write.call(
            ops.matmul_reduce_scatter_raw.default, *turned[:2], group, *turned[2:], module=scatter.module
        )
        y = write.call(aten.permute.default, y, [1, 0])
    else:
        a = by_rank(write, a, shape[:-1], form.axis, size)
        if whole:
            bias = by_rank(write, bias, shape[:-1], form.axis, size)
        require_faster(scatter, "matmul_reduce_scatter", a, b)
        y = write.call(ops.matmul_reduce_scatter_raw.default, a, b, group, bias, module=scatter.module)
    _finish(scatter, write, y, reduce)
    return "matmul_reduce_scatter"


def _finish(collective: Collective, write: Writer, y: Node, reduce: str) -> None:
    """y, the sum over ranks of the product, in the place of the collective."""
    y = write.reshape(y, shape_of(collective.wait))
    if reduce == "avg":
        y = write.call(aten.div.Tensor, y, collective.ranks)
    replace(collective.wait, y)
    collective.wait.graph.erase_node(collective.wait)
    replace(collective.node, y)


def operands(tensor: Node, whole: Node | None = None) -> tuple[Node, Node, Node | None]:
    """a, b and what is added, of a @ b + added, which the collective's input `tensor` is, or is put together of (`whole`).
    Of a sum of products, the longest one and the sum of the others."""
    way = way_to_matrix(tensor if whole is None else whole)
    matrix = way[-1]
    if is_ours(matrix.args[0] if is_call(matrix, operator.getitem) else matrix):
        raise LeftError("its product is fused with a collective already")
    single = [*way[1:], *([way[0]] if whole is None or whole is tensor else [])]
    if any(len(node.users) > 1 for node in single):
        raise LeftError("the product is read elsewhere, too")
    if whole is not None and whole is not tensor and any(not depends(tensor, user) for user in whole.users):
        raise LeftError("the product is read elsewhere, too")
    if is_call(matrix, MM):
        a, b = matrix.args
        require_kernel(b, a)
        return a, b, None
    if is_call(matrix, ADDMM) and not matrix.kwargs:
        _, a, b = matrix.args
        bias = bias_of(matrix, whole=True)
        if bias is None:
            raise LeftError("what the product adds is of another shape or dtype")
        require_kernel(b, a)
        return a, b, bias
    parts = summed(matrix)
    if len(parts) > 1 and all(is_call(part, MM) or bias_of(part) is not None for part in parts):
        longest = max(parts, key=_depth)
        a, b = longest.args[right_of(longest) - 1 :]
        require_kernel(b, a)
        write = Writer(matrix, matrix)
        added, *others = (part for part in parts if part is not longest)
        for part in others:
            added = write.call(aten.addmm.default, added, *part.args[right_of(part) - 1 :])
        for part in (longest, *others):
            if is_call(part, ADDMM):
                added = write.call(aten.add.Tensor, added, bias_of(part))
        return a, b, added
    raise LeftError(f"the product's result is changed before it is sent, by {matrix.name}")


def _depth(product: Node) -> int:
    """K, as far as the graph knows it."""
    depth = shape_of(product.args[right_of(product)])[0]
    return depth if isinstance(depth, int) else 0


def rewrite_reduce(node: Node) -> str:
    """mm → all_reduce."""
    tensor, reduce, group = node.args
    total = Collective.of(node, group)
    if reduce not in ("sum", "avg"):
        raise LeftError(f"it reduces by {reduce}")
    a, b, bias = operands(tensor)
    write, way = Writer(total.wait, node), "matmul_all_reduce"
    try:
        require_faster(total, "matmul_all_reduce", a, b)
    except LeftError as slower:
        if not two_shots(total):
            raise
        way += f" by torch's two-shot, fused it is {slower}"
    y = write.call(ops.matmul_all_reduce_raw.default, a, b, group, bias, module=total.module)
    _finish(total, write, y, reduce)
    return way
