"""Puts custom ops where a graph has an all-to-all behind a product, or before one. As rewrite_gather.py."""

from __future__ import annotations

import torch
from torch.fx import Node

from .graphs import ADDMM, MM, Gathered, LeftError, depends, is_call, rows_of, shape_of, way_to_matrix
from .rewrite_gather import both_gradients
from .rewrite_sent import operands
from .writer import (
    Collective,
    Writer,
    bias_of,
    is_lhs,
    position,
    product_of,
    replace,
    replace_several,
    require_faster,
    require_kernel,
    right_of,
    used_besides,
    with_added,
)

ops = torch.ops.syncopate


def rewrite_exchange(node: Node) -> str:
    """mm → all_to_all, or all_to_all → mm, of equal blocks."""
    tensor, out_splits, in_splits, group = node.args
    exchange = Collective.of(node, group)
    if len({*out_splits, *in_splits}) > 1:
        raise LeftError("its blocks are not equal")
    if is_call(way_to_matrix(tensor)[-1], MM, ADDMM):
        a, b, bias = operands(tensor)
        write = Writer(exchange.wait, node)
        require_faster(exchange, "matmul_all_to_all", a, b)
        y = write.call(ops.matmul_all_to_all_raw.default, a, b, group, bias, module=exchange.module)
        replace(exchange.wait, write.reshape(y, shape_of(exchange.wait)))
        return "matmul_all_to_all"
    matrices = list(rows_of(exchange.wait))
    products = [
        user
        for rows in matrices
        for user in rows.users
        if is_lhs(user, rows) and not depends(user.args[right_of(user)], exchange.wait)
    ]
    if not products:
        raise LeftError("its product is of another form than all_to_all(x) @ w")
    return _multiplied(exchange, set(matrices), products)


def _multiplied(exchange: Collective, matrices: set[Node], products: list[Node]) -> str:
    """What has come is multiplied by products, and perhaps read elsewhere."""
    form = Gathered(exchange.wait, 0)
    ws = [product.args[right_of(product)] for product in products]
    require_kernel(exchange.input, *ws)
    besides = used_besides(exchange, form, matrices, products)
    if besides and both_gradients(exchange, form, products, "all_to_all_matmul"):
        return "sent_matmul_backward"
    write = Writer(min(products, key=position), products[0])
    *leading, k = shape_of(exchange.input)
    x = write.reshape(exchange.input, [product_of(leading), k])
    if len(products) == 1 and not besides:
        (product,) = products
        require_faster(exchange, "all_to_all_matmul", x, ws[0])
        bias = bias_of(product)
        y = write.call(
            ops.all_to_all_matmul_raw.default, x, ws[0], exchange.group, bias, module=exchange.module
        )
        replace(product, y if bias is not None else with_added(write, y, product))
        return "all_to_all_matmul"
    whole = exchange.wait if besides else None
    replace_several(write, exchange, "all_to_all_matmul", x, products, whole, return_exchanged=besides)
    return f"all_to_all_matmuls of {len(products)}" + (" returning x" if besides else "")
