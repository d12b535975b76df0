"""Puts custom ops where a graph has a collective next to a product. Each function takes the collective, and returns the name
of the op that it has put there, or raises LeftError with the reason why nothing was done."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node, map_arg

from . import calls
from .activations import activation_behind
from .graphs import (
    ADDMM,
    MM,
    Gathered,
    LeftError,
    aten,
    c10d,
    depends,
    gathered_forms,
    is_call,
    module_of,
    rows_of,
    scattered_form,
    shape_of,
    wait_of,
    way_to_matrix,
)
from .unfused import size_of

ops = torch.ops.syncopate
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Writer:
    """New nodes before one place of a graph, with the values that later passes read."""

    def __init__(self, place: Node, source: Node) -> None:
        self.graph: Graph = place.graph
        self.place, self.source = place, source

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.graph.inserting_before(self.place):
            node = self.graph.call_function(target, args, kwargs)
        fake_args, fake_kwargs = map_arg((args, kwargs), lambda n: n.meta["val"])
        with detect_fake_mode([self.source.meta["val"]]):
            node.meta["val"] = target(*fake_args, **fake_kwargs)
        for key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack"):
            if key in self.source.meta:
                node.meta[key] = self.source.meta[key]
        return node

    def reshape(self, node: Node, shape: Sequence[Any]) -> Node:
        if all(isinstance(n, int) for n in (*shape_of(node), *shape)) and shape_of(node) == list(shape):
            return node
        known = [size if isinstance(size, int) else -1 for size in shape]
        if known.count(-1) > 1:
            raise LeftError("several axes of unknown size")
        return self.call(aten.reshape.default, node, known)

    def move(self, node: Node, source: int, destination: int) -> Node:
        if source == destination:
            return node
        order = list(range(len(shape_of(node))))
        order.insert(destination, order.pop(source))
        return self.call(aten.permute.default, node, order)


@dataclass
class Collective:
    """One of the graph, with what its arguments say."""

    node: Node
    wait: Node
    group: str
    ranks: int
    module: str

    @classmethod
    def of(cls, node: Node, group: str) -> Collective:
        reason = calls.refusal(node.args[0].meta["val"].device.type, group)
        if reason:
            raise LeftError(reason)
        return cls(node, wait_of(node), group, size_of(group), module_of(node))

    @property
    def input(self) -> Node:
        return self.node.args[0]


def rewrite_gather(node: Node) -> str:
    """all_gather → mm."""
    gather = Collective.of(node, node.args[2])
    if not shape_of(gather.input):
        raise LeftError("a scalar is gathered")
    reason = "its product is of another form than all_gather(x) @ w"
    for form in gathered_forms(gather.wait, gather.ranks):
        _take_sizes_of_shard(gather, form)
        last = form.axis == len(shape_of(form.node)) - 1
        for rows in rows_of(form.node):
            products = [
                user
                for user in rows.users
                if _is_lhs(user, rows) and not depends(user.args[_b(user)], gather.wait)
            ]
            if products and last:
                return _gather_columns(gather, form, products)
            if products:
                return _gather_rows(gather, form, products)
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


def _is_lhs(user: Node, rows: Node) -> bool:
    if is_call(user, MM):
        return user.args[0] is rows and user.args[1] is not rows
    plain = is_call(user, ADDMM) and not user.kwargs
    return plain and user.args[1] is rows and user.args[2] is not rows and user.args[0] is not rows


def _b(product: Node) -> int:
    """The place of the second operand."""
    return 2 if is_call(product, ADDMM) else 1


def _require_kernel(a: Node, *others: Node) -> None:
    """What holds for every kernel, as far as the graph knows it; the rest is counted when it runs."""
    dtype = a.meta["val"].dtype
    if dtype not in KERNEL_DTYPES:
        raise LeftError(f"expected dtype bf16, fp16 or fp32, got {dtype}")
    if any(other.meta["val"].dtype != dtype for other in others):
        raise LeftError("its operands differ in dtype")
    multiple = 16 // dtype.itemsize
    for matrix in (a, *others):
        for size in shape_of(matrix)[-1:]:
            if isinstance(size, int) and size % multiple:
                raise LeftError(
                    f"extents must be multiples of {multiple} for {dtype} (TMA takes rows of 16 bytes), got {size}"
                )


def _ordered(write: Writer, form: Gathered, local: Sequence[Any], ranks: int, y: Node) -> Node:
    """y's rows, which come rank by rank, in the order of the gathered tensor's: [M, columns]."""
    if form.axis == 0:
        return y
    columns = shape_of(y)[1]
    by_rank = write.reshape(y, [ranks, *local, columns])
    return write.reshape(write.move(by_rank, 0, form.axis), shape_of(y))


def _bias(product: Node) -> Node | None:
    """Of an addmm, where the kernels take it: one value a column, of the product's dtype."""
    if not is_call(product, ADDMM):
        return None
    bias = product.args[0]
    value, own = bias.meta["val"], product.meta["val"]
    fits = value.dim() == 1 and value.shape[0] == own.shape[1] and value.dtype == own.dtype
    return bias if fits else None


def _used_besides(gather: Collective, form: Gathered, rows: set[Node], products: Sequence[Node]) -> bool:
    """Whether anything but these products reads what is gathered."""
    chain = {gather.wait, form.node, *rows}
    for node in gather.wait.users:  # split, its items, cat
        if node is not form.node and form.node is not gather.wait and depends(form.node, node):
            chain.add(node)
            chain.update(item for item in node.users if depends(form.node, item))
    inside = {*chain, *products}
    return any(user not in inside for node in chain for user in node.users)


def _gather_rows(gather: Collective, form: Gathered, products: list[Node]) -> str:
    for product in products:
        _require_kernel(gather.input, product.args[_b(product)])
    local = shape_of(gather.input)[:-1]
    k = shape_of(gather.input)[-1]
    rows = set(rows_of(form.node))
    besides = _used_besides(gather, form, rows, products)
    write = Writer(min(products, key=_position), products[0])
    x = write.reshape(gather.input, [_product(local), k])
    ws = [product.args[_b(product)] for product in products]
    if len(products) == 1 and not besides:
        (product,) = products
        bias = _bias(product)
        fusable = bias is not None or is_call(product, MM)
        activation, last = activation_behind(product) if fusable else ("", product)
        if last.meta["val"].dtype != product.meta["val"].dtype:
            activation, last = "", product
        y = write.call(ops.all_gather_matmul.default, x, ws[0], gather.group, bias,
                       activation=activation, module=gather.module)  # fmt: skip
        made = _ordered(write, form, local, gather.ranks, y)
        if not fusable:
            made = write.call(aten.add.Tensor, made, product.args[0])
        _replace(last, write.reshape(made, shape_of(last)))
        return " ".join(filter(None, ["all_gather_matmul", "bias" if bias is not None else "", activation]))
    made = write.call(ops.all_gather_matmuls.default, x, ws, gather.group,
                      return_gathered=besides, module=gather.module)  # fmt: skip
    for index, product in enumerate(products):
        y = _ordered(write, form, local, gather.ranks, write.call(operator.getitem, made, index))
        if is_call(product, ADDMM):
            y = write.call(aten.add.Tensor, y, product.args[0])
        _replace(product, y)
    if besides:
        whole = write.call(operator.getitem, made, len(products))
        _replace(gather.wait, write.reshape(whole, shape_of(gather.wait)))
    return "all_gather_matmuls" + f" of {len(products)}" + (" returning x" if besides else "")


def _gather_columns(gather: Collective, form: Gathered, products: list[Node]) -> str:
    """The gathered axis is the one that the product sums over."""
    if len(products) > 1 or _used_besides(gather, form, set(rows_of(form.node)), products):
        raise LeftError("columns are gathered, and read by more than one product")
    (product,) = products
    w = product.args[_b(product)]
    _require_kernel(gather.input, w)
    shape = shape_of(gather.input)
    bias = _bias(product)
    if is_call(product, ADDMM) and bias is None:
        raise LeftError("columns are gathered, and the product adds a matrix")
    write = Writer(product, product)
    x = write.reshape(gather.input, [_product(shape[:-1]), shape[-1]])
    y = write.call(ops.all_gather_matmul.default, x, w, gather.group, bias, axis=1, module=gather.module)
    _replace(product, y)
    return "all_gather_matmul of columns"


def _gather_contracted(gather: Collective, form: Gathered, rows: Node) -> str:
    """all_gather(x)ᵀ @ c, as the gradient of a weight: columns of xᵀ are gathered. "": there is none such."""
    turned = [user for user in rows.users if is_call(user, aten.permute.default)]
    products = [user for node in turned for user in node.users if is_call(user, MM) and user.args[0] is node]
    if not products:
        return ""
    if len(products) > 1 or len(turned) > 1 or _used_besides(gather, form, {rows, *turned}, products):
        raise LeftError("a product sums over the gathered rows, and they are read elsewhere, too")
    (product,) = products
    c = product.args[1]
    local, k = shape_of(gather.input)[:-1], shape_of(gather.input)[-1]
    write = Writer(product, product)
    c = _by_rank(write, c, shape_of(form.node)[:-1], form.axis, gather.ranks)
    x = write.call(aten.permute.default, write.reshape(gather.input, [_product(local), k]), [1, 0])
    x = write.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    _require_kernel(x, c)
    y = write.call(ops.all_gather_matmul.default, x, c, gather.group, axis=1, module=gather.module)
    _replace(product, y)
    return "all_gather_matmul of columns"


def rewrite_scatter(node: Node) -> str:
    """mm → reduce_scatter."""
    tensor, reduce, size, group = node.args
    scatter = Collective.of(node, group)
    if reduce not in ("sum", "avg"):
        raise LeftError(f"it reduces by {reduce}")
    form = scattered_form(tensor, size)
    shape = shape_of(form.node)
    columns = form.axis == len(shape) - 1
    a, b, bias = _operands(tensor, form.node)
    if bias is not None and columns:
        raise LeftError("columns are scattered, and the product adds something")
    write = Writer(scatter.wait, node)
    if columns:  # of a @ b: rows of its transpose
        turned = [write.call(aten.permute.default, operand, [1, 0]) for operand in (b, a)]
        y = write.call(ops.matmul_reduce_scatter.default, *turned, group, module=scatter.module)
        y = write.call(aten.permute.default, y, [1, 0])
    else:
        a = _by_rank(write, a, shape[:-1], form.axis, size)
        y = write.call(ops.matmul_reduce_scatter.default, a, b, group, bias, module=scatter.module)
    _finish(scatter, write, y, reduce)
    return "matmul_reduce_scatter"


def _by_rank(write: Writer, rows: Node, leading: Sequence[Any], axis: int, ranks: int) -> Node:
    """rows [product of `leading`, columns] with the shards along `axis` one after the other."""
    if axis == 0:
        return rows
    cut = [*leading[:axis], ranks, leading[axis] // ranks, *leading[axis + 1 :]]
    split = write.reshape(rows, [*cut, shape_of(rows)[1]])
    return write.reshape(write.move(split, axis, 0), shape_of(rows))


def _finish(collective: Collective, write: Writer, y: Node, reduce: str) -> None:
    """y, the sum over ranks of the product, in the place of the collective."""
    y = write.reshape(y, shape_of(collective.wait))
    if reduce == "avg":
        y = write.call(aten.div.Tensor, y, collective.ranks)
    _replace(collective.wait, y)
    _replace(collective.node, y)


def _operands(tensor: Node, whole: Node | None = None) -> tuple[Node, Node, Node | None]:
    """a, b and what is added, of a @ b + added, which the collective's input `tensor` is, or is put together of (`whole`).
    A sum of products is one of their operands side by side."""
    way = way_to_matrix(tensor if whole is None else whole)
    matrix = way[-1]
    if "syncopate" in str(matrix.target):
        raise LeftError("its product is fused with a collective already")
    single = [*way[1:], *([way[0]] if whole is None or whole is tensor else [])]
    if any(len(node.users) > 1 for node in single):
        raise LeftError("the product is read elsewhere, too")
    if whole is not None and whole is not tensor and any(not depends(tensor, user) for user in whole.users):
        raise LeftError("the product is read elsewhere, too")
    if is_call(matrix, MM):
        _require_kernel(*matrix.args)
        return (*matrix.args, None)
    if is_call(matrix, ADDMM) and not matrix.kwargs:
        _, a, b = matrix.args
        bias = _bias(matrix)
        if bias is None:
            raise LeftError("the product adds more than a value a column")
        _require_kernel(a, b)
        return a, b, bias
    parts = _summed(matrix)
    if len(parts) > 1 and all(is_call(part, MM) for part in parts):
        write = Writer(matrix, matrix)
        a = write.call(aten.cat.default, [part.args[0] for part in parts], 1)
        b = write.call(aten.cat.default, [part.args[1] for part in parts], 0)
        _require_kernel(a, b)
        return a, b, None
    raise LeftError(f"the product's result is changed before it is sent, by {matrix.name}")


def _summed(node: Node) -> list[Node]:
    """What `node` is the sum of, each of them read by it alone."""
    if not is_call(node, aten.add.Tensor) or node.kwargs:
        return [node]
    parts = []
    for arg in node.args:
        way = way_to_matrix(arg) if isinstance(arg, Node) else [node]
        if any(len(one.users) > 1 for one in way):
            return [node]
        parts += _summed(way[-1])
    return parts


def rewrite_reduce(node: Node) -> str:
    """mm → all_reduce."""
    tensor, reduce, group = node.args
    total = Collective.of(node, group)
    if reduce not in ("sum", "avg"):
        raise LeftError(f"it reduces by {reduce}")
    a, b, bias = _operands(tensor)
    write = Writer(total.wait, node)
    y = write.call(ops.matmul_all_reduce.default, a, b, group, bias, module=total.module)
    _finish(total, write, y, reduce)
    return "matmul_all_reduce"


def rewrite_exchange(node: Node) -> str:
    """mm → all_to_all, or all_to_all → mm, of equal blocks."""
    tensor, out_splits, in_splits, group = node.args
    exchange = Collective.of(node, group)
    if len({*out_splits, *in_splits}) > 1:
        raise LeftError("its blocks are not equal")
    if is_call(way_to_matrix(tensor)[-1], MM, ADDMM):
        a, b, bias = _operands(tensor)
        write = Writer(exchange.wait, node)
        y = write.call(ops.matmul_all_to_all.default, a, b, group, bias, module=exchange.module)
        _replace(exchange.wait, write.reshape(y, shape_of(exchange.wait)))
        return "matmul_all_to_all"
    for rows in rows_of(exchange.wait):
        products = [user for user in rows.users if _is_lhs(user, rows)]
        form = Gathered(exchange.wait, 0)
        if not products:
            continue
        if len(products) > 1 or _used_besides(exchange, form, {rows}, products):
            raise LeftError("what is exchanged is read by more than one product")
        (product,) = products
        b = product.args[_b(product)]
        _require_kernel(rows, b)
        write = Writer(product, product)
        x = write.reshape(exchange.input, [_product(shape_of(tensor)[:-1]), shape_of(tensor)[-1]])
        bias = _bias(product)
        y = write.call(ops.all_to_all_matmul.default, x, b, group, bias, module=exchange.module)
        if is_call(product, ADDMM) and bias is None:
            y = write.call(aten.add.Tensor, y, product.args[0])
        _replace(product, y)
        return "all_to_all_matmul"
    raise LeftError("its product is of another form than all_to_all(x) @ w")


def _product(sizes: Sequence[Any]) -> Any:
    made = 1
    for size in sizes:
        made = made * size
    return made


def _position(node: Node) -> Any:
    return node._sort_key


def _replace(old: Node, new: Node) -> None:
    if old is not new:
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


#: By the collective's target.
REWRITES = {
    c10d.all_gather_into_tensor.default: rewrite_gather,
    c10d.reduce_scatter_tensor.default: rewrite_scatter,
    c10d.all_reduce.default: rewrite_reduce,
    c10d.all_to_all_single.default: rewrite_exchange,
}
