"""What rewriting a graph needs: new nodes with their values, a collective with what its arguments say, what may be fused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor import DTensor, Shard
from torch.fx import Graph, Node, map_arg
from torch.utils._sympy.functions import FloorDiv

from ..group import sums_in_two_shots
from . import calls
from .graphs import (
    ADDMM,
    MM,
    Gathered,
    LeftError,
    aten,
    depends,
    is_call,
    module_of,
    shape_of,
    wait_of,
)
from .unfused import size_of

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
        if known.count(-1) > 1 or (-1 in known and 0 in known):
            known = [size if isinstance(size, int) else self.size(size) for size in shape]
        return self.call(aten.reshape.default, node, known)

    def item(self, made: Node, index: int) -> Node:
        return self.call(operator.getitem, made, index)

    def size(self, value: torch.SymInt) -> Node:
        """A node with this value, made of the sizes that the graph is given."""
        given = sizes_given(self.graph)

        def made_of(part: sympy.Expr) -> Any:
            if part.is_Integer:
                return int(part)
            if part in given:
                source = given[part]
                return self.call(aten.sym_size.int, *source) if isinstance(source, tuple) else source
            for kind, combine in (
                (sympy.Mul, operator.mul),
                (sympy.Add, operator.add),
                (FloorDiv, operator.floordiv),
            ):
                if isinstance(part, kind):
                    first, *others = map(made_of, part.args)
                    for other in others:
                        first = self.call(combine, first, other)
                    return first
            raise LeftError(f"an axis of unknown size, {part}")

        return made_of(value.node.expr)

    def move(self, node: Node, source: int, destination: int) -> Node:
        if source == destination:
            return node
        order = list(range(len(shape_of(node))))
        order.insert(destination, order.pop(source))
        return self.call(aten.permute.default, node, order)


def sizes_given(graph: Graph) -> dict[sympy.Expr, Node | tuple[Node, int]]:
    """Sizes among what the graph is given, by their expressions: numbers, or tensors with the number of an axis."""
    given: dict[sympy.Expr, Node | tuple[Node, int]] = {}
    inputs = [(node, node.meta.get("val")) for node in graph.nodes if node.op == "placeholder"]
    for node, value in inputs:
        if isinstance(value, torch.SymInt):
            given.setdefault(value.node.expr, node)
    for node, value in inputs:
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                given.setdefault(size.node.expr, (node, axis))
    return given


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


def is_lhs(user: Node, rows: Node) -> bool:
    if is_call(user, MM):
        return user.args[0] is rows and user.args[1] is not rows
    plain = is_call(user, ADDMM) and not user.kwargs
    return plain and user.args[1] is rows and user.args[2] is not rows and user.args[0] is not rows


def right_of(product: Node) -> int:
    """The place of the right operand among its arguments."""
    return 2 if is_call(product, ADDMM) else 1


def require_kernel(shared: Node, *others: Node) -> None:
    """What holds for every kernel, as far as the graph knows it; the rest is counted when it runs. `shared`: its last axis is as
    long on all ranks. That of the others is each rank's own, and decides nothing: ranks must not rewrite their graphs
    differently."""
    if has_uneven_shards():
        raise LeftError("the ranks have shards of several sizes")
    dtype = shared.meta["val"].dtype
    if dtype not in KERNEL_DTYPES:
        raise LeftError(f"expected dtype bf16, fp16 or fp32, got {dtype}")
    if any(other.meta["val"].dtype != dtype for other in others):
        raise LeftError("its operands differ in dtype")
    size, multiple = shape_of(shared)[-1], 16 // dtype.itemsize
    if isinstance(size, int) and size % multiple:
        raise LeftError(
            f"extents must be multiples of {multiple} for {dtype} (TMA takes rows of 16 bytes), got {size}"
        )


def require_faster(
    collective: Collective,
    name: str,
    a: Node,
    b: Node,
    *,
    columns: bool = False,
    kept: bool = False,
    copied: bool = False,
) -> None:
    """The fused op `name` of a [rows, K] and b [K, N] is to be faster than the pair, by the estimate or as it was measured. A
    strategy for an unknown M is chosen when the op runs."""
    (k, n), rows, value = shape_of(b), shape_of(a)[0], a.meta["val"]
    if name == "all_gather_matmul" and not columns:
        rows = rows * collective.ranks
    if (
        not all(isinstance(size, int) for size in (rows, n, k))
        or n * value.itemsize % 16
        or k * value.itemsize % 16
    ):
        return
    group = calls.group_of(collective.group, value.device.type)
    reason = calls.slower(calls.problem_for(name, (rows, n, k), value.dtype, group), kept, copied)
    if reason:
        raise LeftError(reason)


def has_uneven_shards() -> bool:
    """Whether a DTensor that is being compiled for has shards of several sizes: this rank's is not every rank's. All ranks know
    that alike, of DTensors. Those of the forward graph are gone when the backward graph is compiled, in the same context."""
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return False
    if not getattr(context, "syncopate_uneven", False):
        context.syncopate_uneven = _has_uneven(context.fake_mode)
    return context.syncopate_uneven


def _has_uneven(mode: FakeTensorMode) -> bool:
    for tensor in mode.fake_tensor_converter.tensor_memo.values():
        if isinstance(tensor, DTensor):
            shards = dict.fromkeys(range(tensor.dim()), 1)
            for placement, size in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
                if isinstance(placement, Shard):
                    shards[placement.dim] *= size
            if any(isinstance(n, int) and n % shards[axis] for axis, n in enumerate(tensor.shape)):
                return True
    return False


def two_shots(collective: Collective) -> bool:
    """Whether torch's two-shot all-reduce runs on its ranks, which NCCL's is no faster than."""
    cuda = collective.input.meta["val"].device.type == "cuda"
    group = c10d._resolve_process_group(collective.group)
    return cuda and not calls.over_gloo(collective.group) and sums_in_two_shots(group)


def bias_of(product: Node, whole: bool = False) -> Node | None:
    """Of an addmm, where the kernels take it: one value a column, of the product's dtype. `whole`: or one for each element."""
    if not is_call(product, ADDMM):
        return None
    bias = product.args[0]
    value, own = bias.meta["val"], product.meta["val"]
    alike = [own.shape[1:], own.shape] if whole else [own.shape[1:]]
    return bias if value.shape in alike and value.dtype == own.dtype else None


def with_added(write: Writer, y: Node, product: Node) -> Node:
    """y, and what the product adds to a @ b."""
    return write.call(aten.add.Tensor, y, product.args[0]) if is_call(product, ADDMM) else y


def used_besides(gather: Collective, form: Gathered, rows: set[Node], products: Sequence[Node]) -> bool:
    """Whether anything but these products reads what is gathered."""
    chain = {gather.wait, form.node, *rows}
    for node in gather.wait.users:  # split, its items, cat
        if node is not form.node and form.node is not gather.wait and depends(form.node, node):
            chain.add(node)
            chain.update(item for item in node.users if depends(form.node, item))
    for node in rows:  # the reshapes, and a transposition, between the two
        while node is not form.node and node.all_input_nodes:
            chain.add(node)
            node = node.all_input_nodes[0]
    inside = {*chain, *products}
    return any(user not in inside for node in chain for user in node.users)


def in_order(write: Writer, form: Gathered, local: Sequence[Any], ranks: int, y: Node) -> Node:
    """y's rows, which come rank by rank, in the order of the gathered tensor's: [M, columns]."""
    if form.axis == 0:
        return y
    columns = shape_of(y)[1]
    by_rank = write.reshape(y, [ranks, *local, columns])
    return write.reshape(write.move(by_rank, 0, form.axis), shape_of(y))


def by_rank(write: Writer, rows: Node, leading: Sequence[Any], axis: int, ranks: int) -> Node:
    """rows [product of `leading`, columns] with the shards along `axis` one after the other."""
    if axis == 0:
        return rows
    cut = [*leading[:axis], ranks, leading[axis] // ranks, *leading[axis + 1 :]]
    split = write.reshape(rows, [*cut, shape_of(rows)[1]])
    return write.reshape(write.move(split, axis, 0), shape_of(rows))


def product_of(sizes: Sequence[Any]) -> Any:
    made = 1
    for size in sizes:
        made = made * size
    return made


def position(node: Node) -> Any:
    return node._sort_key


def replace(old: Node, new: Node) -> None:
    if old is not new:
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def replace_all(new: Mapping[Node, Node]) -> None:
    """By node. All of the new ones are there by then: a rewriting that fails has replaced nothing."""
    for old, one in new.items():
        replace(old, one)


def replace_several(
    write: Writer,
    collective: Collective,
    name: str,
    x: Node,
    products: Sequence[Node],
    whole: Node | None,
    ordered: Callable[[Node], Node] = lambda y: y,
    *,
    columns: bool = False,
    **options: Any,
) -> None:
    """One op in the place of several products of what the collective brings, or of one and `whole`, which is read besides. `name`: of
    the op for one of them. `ordered`: of what the op makes of a product, that one's rows."""
    ws = [product.args[right_of(product)] for product in products]
    widest = max(ws, key=lambda w: shape_of(w)[1])
    besides = whole is not None
    require_faster(collective, name, x, widest, columns=columns, kept=True, copied=besides)
    biases = [bias_of(product) for product in products]
    taken = all(biases)  # all have one, or none is taken
    op = getattr(torch.ops.syncopate, f"{name}s_raw").default
    given = (x, ws, collective.group, biases if taken else None)
    made = write.call(op, *given, **options, module=collective.module)
    new = {}
    for index, product in enumerate(products):
        y = ordered(write.item(made, index))
        new[product] = y if taken else with_added(write, y, product)
    if whole is not None:
        new[whole] = write.reshape(write.item(made, len(products)), shape_of(whole))
    replace_all(new)
