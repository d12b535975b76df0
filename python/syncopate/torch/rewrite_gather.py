"""Puts custom ops where a graph has an all-gather before a product. The function takes the collective, and returns the name of
the op that it has put there, or raises LeftError with the reason why nothing was done."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from .activations import activation_behind
from .graphs import MM, Gathered, LeftError, aten, depends, gathered_forms, is_call, rows_of, shape_of
from .writer import (
    Collective,
    Writer,
    bias_of,
    by_rank,
    in_order,
    is_lhs,
    position,
    product_of,
    replace,
    replace_all,
    replace_several,
    require_faster,
    require_kernel,
    right_of,
    used_besides,
    with_added,
)

ops = torch.ops.syncopate


def rewrite_gather(node: Node) -> str:
    """all_gather → mm."""
    gather = Collective.of(node, node.args[2])
    if not shape_of(gather.input):
        raise LeftError("a scalar is gathered")
    reason = "its product is of another form than all_gather(x) @ w"
    for form in gathered_forms(gather.wait, gather.ranks):
        _take_sizes_of_shard(gather, form)
        last = form.axis == len(shape_of(form.node)) - 1
        found = list(rows_of(form.node))  # graphs without gradients have one for each product
        products = [
            user
            for rows in found
            for user in rows.users
            if is_lhs(user, rows) and not depends(user.args[right_of(user)], gather.wait)
        ]
        if products and last:
            return _gather_columns(gather, form, products)
        if products:
            return _gather_rows(gather, form, products)
        for rows in found:
            if not last and any(is_call(user, aten.permute.default) for user in rows.users):
                made = _gather_contracted(gather, form, rows)
                if made:
                    return made
    rhs = [user for user in gather.wait.users if is_call(user, MM) and user.args[1] is gather.wait]
    if rhs:
        reason = "what is gathered is the product's second operand, such as a sharded weight"
    raise LeftError(reason)


def _take_sizes_of_shard(gather: Collective, form: Gathered) -> None:
    """Unknown sizes are read from the gathered tensor: they are the shard's, and the ranks times the shard's."""
    for user in list(form.node.users):
        if not is_call(user, aten.sym_size.int):
            continue
        with user.graph.inserting_before(user):
            size = user.graph.call_function(aten.sym_size.int, (gather.input, user.args[1]))
            size.meta["val"] = gather.input.meta["val"].shape[user.args[1]]
            if user.args[1] == form.axis:
                size = user.graph.call_function(operator.mul, (size, gather.ranks))
                size.meta["val"] = user.meta["val"]
        user.replace_all_uses_with(size)
        user.graph.erase_node(user)


def _gather_rows(gather: Collective, form: Gathered, products: list[Node]) -> str:
    for product in products:
        require_kernel(gather.input, product.args[right_of(product)])
    local = shape_of(gather.input)[:-1]
    k = shape_of(gather.input)[-1]
    rows = set(rows_of(form.node))
    besides = used_besides(gather, form, rows, products)
    if besides and both_gradients(gather, form, products, "all_gather_matmul"):
        return "sent_matmul_backward"
    write = Writer(min(products, key=position), products[0])
    x = write.reshape(gather.input, [product_of(local), k])
    ws = [product.args[right_of(product)] for product in products]
    if len(products) == 1 and not besides:
        require_faster(gather, "all_gather_matmul", x, ws[0])
        (product,) = products
        bias = bias_of(product)
        fusable = bias is not None or is_call(product, MM)
        activation, last = activation_behind(product) if fusable else ("", product)
        if last.meta["val"].dtype != product.meta["val"].dtype:
            activation, last = "", product
        y = write.call(ops.all_gather_matmul_raw.default, x, ws[0], gather.group, bias,
                       activation=activation, axis=0, module=gather.module)  # fmt: skip
        made = in_order(write, form, local, gather.ranks, y)
        if not fusable:
            made = with_added(write, made, product)
        replace(last, write.reshape(made, shape_of(last)))
        return " ".join(filter(None, ["all_gather_matmul", "bias" if bias is not None else "", activation]))
    whole, options = gather.wait if besides else None, {"return_gathered": besides, "axis": 0}
    replace_several(
        write, gather, "all_gather_matmul", x, products, whole,
        lambda y: in_order(write, form, local, gather.ranks, y), **options,
    )  # fmt: skip
    return "all_gather_matmuls" + f" of {len(products)}" + (" returning x" if besides else "")


def both_gradients(gather: Collective, form: Gathered, products: Sequence[Node], name: str) -> bool:
    """all_gather(g) @ w and all_gather(g)ᵀ @ x, as the backward of a reduce-scatter has them, or so of an all-to-all: one op makes
    both, and reads what has come where it lies. False: that is not all that is read. `name`: of the op for the first."""
    rows = {product.args[right_of(product) - 1] for product in products}
    turned = [user for node in rows for user in node.users if is_call(user, aten.permute.default)]
    seconds = [user for node in turned for user in node.users if is_call(user, MM) and user.args[0] is node]
    if (
        len(products) != 1
        or len(rows) != 1
        or len(turned) != 1
        or len(seconds) != 1
        or not is_call(products[0], MM)
    ):
        return False
    (first,), (second,) = products, seconds
    w, x = first.args[1], second.args[1]
    if used_besides(gather, form, {*rows, *turned}, [first, second]) or depends(x, gather.wait):
        return False
    if shape_of(w)[1] != shape_of(x)[1]:
        return False
    last = max(first, second, key=position)
    write = Writer(last, first)
    local = shape_of(gather.input)[:-1]
    g = write.reshape(gather.input, [product_of(local), shape_of(gather.input)[-1]])
    x = by_rank(write, x, shape_of(form.node)[:-1], form.axis, gather.ranks)
    require_faster(gather, name, g, w, kept=True)
    w = write.call(aten.permute.default, w, [1, 0])
    made = write.call(
        ops.sent_matmul_backward.default,
        g,
        x,
        w,
        gather.group,
        exchanged=name == "all_to_all_matmul",
        of_bias=False,
        module=gather.module,
    )
    y = in_order(write, form, local, gather.ranks, write.item(made, 0))
    gradient = write.call(aten.permute.default, write.item(made, 1), [1, 0])
    replace_all({first: y, second: gradient})
    return True


def _gather_columns(gather: Collective, form: Gathered, products: list[Node]) -> str:
    """The gathered axis is the one that the products sum over."""
    ws = [product.args[right_of(product)] for product in products]
    require_kernel(gather.input, *ws)
    besides = used_besides(gather, form, set(rows_of(form.node)), products)
    if besides and _read_before(gather.wait, form.node):
        raise LeftError("columns are gathered, and read before they are put together, too")
    shape = shape_of(gather.input)
    write = Writer(min(products, key=position), products[0])
    x = write.reshape(gather.input, [product_of(shape[:-1]), shape[-1]])
    if len(products) == 1 and not besides:
        (product,) = products
        bias = bias_of(product)
        require_faster(gather, "all_gather_matmul", x, ws[0], columns=True)
        y = write.call(
            ops.all_gather_matmul_raw.default, x, ws[0], gather.group, bias, axis=1, module=gather.module
        )
        replace(product, y if bias is not None else with_added(write, y, product))
        return "all_gather_matmul of columns"
    whole, options = form.node if besides else None, {"return_gathered": besides, "axis": 1}
    replace_several(write, gather, "all_gather_matmul", x, products, whole, columns=True, **options)
    return f"all_gather_matmuls of {len(products)} of columns" + (" returning x" if besides else "")


def _read_before(wait: Node, put_together: Node) -> bool:
    """Whether anything reads what came in the order of ranks, but for putting it together."""
    pieces = {wait}
    for node in wait.users:
        if depends(put_together, node):
            pieces.update((node, *(item for item in node.users if depends(put_together, item))))
    pieces.discard(put_together)
    return any(user not in pieces and user is not put_together for node in pieces for user in node.users)


def _gather_contracted(gather: Collective, form: Gathered, rows: Node) -> str:
    """all_gather(x)ᵀ @ c, as the gradient of a weight: columns of xᵀ are gathered. "": there is none such."""
    turned = [user for user in rows.users if is_call(user, aten.permute.default)]
    products = [user for node in turned for user in node.users if is_call(user, MM) and user.args[0] is node]
    if not products:
        return ""
    if len(products) > 1 or len(turned) > 1 or used_besides(gather, form, {rows, *turned}, products):
        raise LeftError("a product sums over the gathered rows, and they are read elsewhere, too")
    (product,) = products
    c = product.args[1]
    if c is gather.wait or depends(c, gather.wait):
        raise LeftError("it is multiplied by what is made of it")
    local, k = shape_of(gather.input)[:-1], shape_of(gather.input)[-1]
    write = Writer(product, product)
    c = by_rank(write, c, shape_of(form.node)[:-1], form.axis, gather.ranks)
    x = write.call(aten.permute.default, write.reshape(gather.input, [product_of(local), k]), [1, 0])
    x = write.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    require_kernel(x, c)
    require_faster(gather, "all_gather_matmul", x, c, columns=True)
    y = write.call(ops.all_gather_matmul_raw.default, x, c, gather.group, axis=1, module=gather.module)
    replace(product, y)
    return "all_gather_matmul of columns"
