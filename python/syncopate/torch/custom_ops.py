"""torch.ops.syncopate.*: the operators as custom ops, which torch.compile and torch.export take as they are.

    all_gather_matmul(x, w, group_name, bias=None, *, activation="", axis=0, module="") → act(all_gather(x) @ w + bias)
    all_gather_matmuls(x, [w, …], group_name, [bias, …], *, return_gathered=False, axis=0, module="")
                                                                                → [all_gather(x) @ w + bias, …(, all_gather(x))]
    matmul_reduce_scatter(x, w, group_name, bias=None, *, module="")                               → reduce_scatter(x @ w)
    matmul_all_reduce(x, w, group_name, bias=None, *, replicated_grad=False, module="")            → all_reduce(x @ w)
    matmul_all_to_all(x, w, group_name, bias=None, *, module="")                                   → all_to_all(x @ w)
    all_to_all_matmul(x, w, group_name, bias=None, *, module="")                                   → all_to_all(x) @ w
    all_to_all_matmuls(x, [w, …], group_name, [bias, …], *, return_exchanged=False, module="")
                                                                                → [all_to_all(x) @ w + bias, …(, all_to_all(x))]
    feed_forward(x, w1, w2, group_name, *, activation="", module="")    → reduce_scatter(act(all_gather(x) @ w1) @ w2)
    attention(q, k, v, group_name, *, causal=False, kind="auto", window=0, scale=None, sharding="contiguous", cu_seqlens=None, bounded=None,
              length=None, module="") → o, lse

Shapes and activations are those of syncopate.ops ("gelu" is the one with tanh), rows of attention those of sy.shard_rows. matmul_reduce_scatter and matmul_all_reduce add each
rank's bias to its product, so that the sum has as many biases as ranks: give bias / ranks on each, or zeros on all ranks but
one, as sy.parallel.RowwiseParallel does. A bias is [N], or has an element for each of the product [rows, N] that it is added to; of several
products there is one for each, or none at all.
`group_name`: of a torch process group (ProcessGroup.group_name). `module`: the name of the user's module, for errors. Operands
of a layout that the kernels do not take are copied; what they cannot do at all (dtype, sizes, group, device) is done by the
collective and the product one after the other, and counted (report.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _syncopate
from . import calls, fused, recipes, report, unfused
from .autocast import autocast

library = torch.library.Library("syncopate", "DEF")

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

for _schema, _ in recipes.load():
    library.define(_schema, tags=TAGS)
recipes.start()


def custom_op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Defines an op that Python carries out, with one implementation for both devices. `fake`: shapes only. Each op takes one
    argument more, `rows`: the report of the graph that it is in, which the pass of Inductor's writes there. Errors say in
    which `module`."""
    name = schema.partition("(")[0]
    given, arrow, results = schema.rpartition(") -> ")

    def define(implementation: Callable[..., Any]) -> Callable[..., Any]:
        library.define(f"{given}, str rows=''{arrow}{results}", tags=TAGS)
        _implement(name, _told(implementation))
        if not name.endswith("_backward"):
            autocast(library, name)
        _fake(name, fake)
        return implementation

    return define


def op_in_cpp(fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An op that C++ carries out (python/torch_ops/ops.cpp) once the decorated function, of its name, has made a call of its
    kind. `fake`: shapes only."""

    def define(implementation: Callable[..., Any]) -> Callable[..., Any]:
        name = implementation.__name__
        _implement(f"{name}_setup", _left_for_cpp(_told(implementation)))
        autocast(library, name)
        for suffix in ("_raw", "_recorded"):
            _fake(name + suffix, _left_for_cpp(fake, stands_in=False))
        return implementation

    return define


def _implement(name: str, run: Callable[..., Any]) -> None:
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)


def _fake(name: str, fake: Callable[..., Any]) -> None:
    def shapes(*args: Any, rows: str = "", module: str = "", **options: Any) -> Any:
        return fake(*args, **options)

    torch.library.register_fake(f"syncopate::{name}", shapes, lib=library)


def _told(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """It reports the rows of its graph, and its errors say in which module."""

    @functools.wraps(implementation)
    @torch._disable_dynamo  # behind a graph break it would compile what runs here, kernels in the interpreter included
    def run(*args: Any, rows: str = "", module: str = "", **options: Any) -> Any:
        if rows:
            report.ran(rows)
            _syncopate.know_rows(rows)
        try:
            return implementation(*args, **options)
        except Exception as error:
            if module and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in {module}")
            raise

    return run


def _left_for_cpp(call: Callable[..., Any], stands_in: bool = True) -> Callable[..., Any]:
    """An error of it is raised by the op in C++ around it, as torch's C interface lets none through. `stands_in`: with a
    result in its place, so that torch logs nothing."""

    def run(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except BaseException as error:
            _syncopate.set_pending(error)
            if not stands_in:
                raise
            return nothing_of(getattr(call, "__name__", ""))

    return run


def nothing_of(op: str) -> Any:
    """What stands for the result of an op in C++ whose error waits; `op`: its name, or what follows the first one."""
    nothing = torch.empty(0)
    if "matmuls" in op:
        return [nothing]
    return (nothing, nothing) if "attention" in op else nothing


def require(fits: bool, expected: str, *given: torch.Tensor) -> None:
    if not fits:
        raise ValueError(f"expected {expected}, got {', '.join(str(list(t.shape)) for t in given)}")


def require_product(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    columns: int = 1,
    activation: str = "",
    shards: int = 1,
) -> None:
    """`columns`, `shards`: of how many ranks x is gathered, along K or along rows."""
    fits = x.dim() == w.dim() == 2 and x.shape[1] * columns == w.shape[0]
    require(fits, "x [rows, K] and w [K, N]", x, w)
    require_alike(x, w)
    if bias is not None:
        require_bias(bias, x.shape[0] * shards, w)
        require_alike(x, bias)
    require_known(activation)


def require_bias(bias: torch.Tensor, rows: int, w: torch.Tensor) -> None:
    fits = bias.dim() == 1 or (bias.dim() == 2 and bias.shape[0] == rows)
    require(fits and bias.shape[-1] == w.shape[1], f"a bias [N] or [{rows}, N] for w [K, N]", bias, w)


def require_alike(*operands: torch.Tensor) -> None:
    first, *others = operands
    if any(t.dtype != first.dtype or t.device.type != first.device.type for t in others):
        given = ", ".join(f"{t.dtype} on {t.device.type}" for t in operands)
        raise ValueError(f"expected operands of one dtype and device, got {given}")


def require_known(activation: str) -> None:
    if activation:
        from ..ops.product_kernel import (
            require_activation,  # and Triton, which looks then at whether it is to interpret
        )

        require_activation(activation)


def columns_of(axis: int, group_name: str) -> int:
    """By how much the gathered K is longer than x's. `axis`: of x [rows, K]."""
    if axis not in (0, 1):
        raise ValueError(f"axis: expected 0 (rows) or 1 (columns), got {axis}")
    return unfused.size_of(group_name) if axis else 1


def require_shares(x: torch.Tensor, group_name: str) -> None:
    size = unfused.size_of(group_name)
    require(x.shape[0] % size == 0, f"rows that {size} ranks can share", x)


def _learn_pair(name: str, group_name: str, **options: Any) -> None:
    """The call goes on without Python, as the unfused pair that it is."""
    if calls.taken.entry is not None:
        recipes.learn_pair(name, group_name, calls.taken.entry, **options)


COLLECTIVES = {
    "all_gather_into_tensor": unfused.gather,
    "reduce_scatter_tensor": unfused.scatter,
    "all_reduce_": unfused.reduce,
    "all_to_all_single": unfused.exchange,
}
library.define("_collect(Tensor x, str collective, str group_name) -> Tensor")  # of recipes
_implement("_collect", lambda x, collective, group_name: COLLECTIVES[collective](x, group_name))


def _gather(x, w, group_name, bias=None, *, activation="", axis=0):
    shards = 1 if axis else unfused.size_of(group_name)
    require_product(x, w, bias, columns_of(axis, group_name), activation, shards)
    return x.new_empty(x.shape[0] * shards, w.shape[1])


@op_in_cpp(_gather)
def all_gather_matmul(x, w, group_name, bias=None, *, activation="", axis=0):
    shards = 1 if axis else unfused.size_of(group_name)
    require_product(x, w, bias, columns_of(axis, group_name), activation, shards)
    y = fused.pair("all_gather_matmul", x, w, group_name, bias, activation=activation, axis=axis)
    if y is not None:
        return y
    _learn_pair("all_gather_matmul", group_name, biased=bias is not None, activation=activation, axis=axis)
    return unfused.all_gather_matmul(x, w, group_name, bias, activation, axis)


def require_products(
    x: torch.Tensor,
    ws: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor] | None,
    columns: int = 1,
    shards: int = 1,
) -> None:
    """As require_product of each."""
    require(bool(ws), "at least one w", x)
    each = [None] * len(ws) if biases is None else biases
    if len(each) != len(ws):
        raise ValueError(f"biases: expected one for each of {len(ws)} w, or None, got {len(each)}")
    for w, bias in zip(ws, each, strict=True):
        require_product(x, w, bias, columns, shards=shards)


def _gathers(x, ws, group_name, biases=None, *, return_gathered=False, axis=0):
    size = unfused.size_of(group_name)
    require_products(x, ws, biases, columns_of(axis, group_name), 1 if axis else size)
    m, k = (x.shape[0], x.shape[1] * size) if axis else (x.shape[0] * size, x.shape[1])
    made = [x.new_empty(m, w.shape[1]) for w in ws]
    return made + ([x.new_empty(m, k)] if return_gathered else [])


@op_in_cpp(_gathers)
def all_gather_matmuls(x, ws, group_name, biases=None, *, return_gathered=False, axis=0):
    shards = 1 if axis else unfused.size_of(group_name)
    require_products(x, ws, biases, columns_of(axis, group_name), shards)
    made = fused.several("all_gather_matmul", x, ws, group_name, return_gathered, axis, biases)
    if made is not None:
        return made
    options = {"count": len(ws), "biased": biases is not None, "returned": return_gathered, "axis": axis}
    _learn_pair("all_gather_matmuls", group_name, **options)
    return unfused.all_gather_matmuls(x, ws, group_name, return_gathered, axis, biases)


def _pair(name, x, w, group_name, bias, shared=False):
    """A product and a collective: by the operator, or one after the other where none takes them. `shared`: ranks share rows."""
    require_product(x, w, bias)
    if shared:
        require_shares(x, group_name)
    y = fused.pair(name, x, w, group_name, bias)
    if y is not None:
        return y
    _learn_pair(name, group_name, biased=bias is not None)
    return getattr(unfused, name)(x, w, group_name, bias)


def _scatter(x, w, group_name, bias=None):
    require_product(x, w, bias)
    return x.new_empty(x.shape[0] // unfused.size_of(group_name), w.shape[1])


@op_in_cpp(_scatter)
def matmul_reduce_scatter(x, w, group_name, bias=None):
    return _pair("matmul_reduce_scatter", x, w, group_name, bias, shared=True)


def _whole(x, w, group_name, bias=None, *, replicated_grad=False):
    require_product(x, w, bias)
    return x.new_empty(x.shape[0], w.shape[1])


@op_in_cpp(_whole)
def matmul_all_reduce(x, w, group_name, bias=None, *, replicated_grad=False):
    return _pair("matmul_all_reduce", x, w, group_name, bias)


@op_in_cpp(_whole)
def matmul_all_to_all(x, w, group_name, bias=None):
    return _pair("matmul_all_to_all", x, w, group_name, bias, shared=True)


@op_in_cpp(_whole)
def all_to_all_matmul(x, w, group_name, bias=None):
    return _pair("all_to_all_matmul", x, w, group_name, bias, shared=True)


def _exchanges(x, ws, group_name, biases=None, *, return_exchanged=False):
    require_products(x, ws, biases)
    return [x.new_empty(x.shape[0], w.shape[1]) for w in ws] + [x.new_empty(x.shape)] * return_exchanged


@op_in_cpp(_exchanges)
def all_to_all_matmuls(x, ws, group_name, biases=None, *, return_exchanged=False):
    require_products(x, ws, biases)
    require_shares(x, group_name)
    made = fused.several("all_to_all_matmul", x, ws, group_name, return_exchanged, biases=biases)
    if made is not None:
        return made
    options = {"count": len(ws), "biased": biases is not None, "returned": return_exchanged}
    _learn_pair("all_to_all_matmuls", group_name, **options)
    return unfused.all_to_all_matmuls(x, ws, group_name, return_exchanged, biases)


def require_block(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: str) -> None:
    fits = x.dim() == w1.dim() == w2.dim() == 2 and x.shape[1] == w1.shape[0] and w1.shape[1] == w2.shape[0]
    require(fits, "x [rows, K], w1 [K, F] and w2 [F, N]", x, w1, w2)
    require_alike(x, w1, w2)
    require_known(activation)


def _block(x, w1, w2, group_name, *, activation=""):
    require_block(x, w1, w2, activation)
    return x.new_empty(x.shape[0], w2.shape[1])


@op_in_cpp(_block)
def feed_forward(x, w1, w2, group_name, *, activation=""):
    require_block(x, w1, w2, activation)
    y = fused.feed_forward(x, w1, w2, group_name, activation)
    if y is not None:
        return y
    _learn_pair("feed_forward", group_name, activation=activation)
    return unfused.feed_forward(x, w1, w2, group_name, activation)


#: What the dispatcher leaves out, as it is the default; so that forward and backward find the same operator.
ATTENTION = {
    "causal": False,
    "kind": "auto",
    "window": 0,
    "scale": None,
    "sharding": "contiguous",
    "cu_seqlens": None,
    "bounded": None,
    "length": None,
}
ATTENTION_SCHEMA = (
    "bool causal=False, str kind='auto', int window=0, float? scale=None, str sharding='contiguous', int[]? cu_seqlens=None, "
    "int? bounded=None, int? length=None"
)


def require_attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    fits = q.dim() == k.dim() == 4 and k.shape == v.shape
    require(fits, "q [B, H, rows, D] and k, v [B, HKV, rows, D]", q, k, v)
    b, h, rows, d = q.shape
    hkv = k.shape[1]
    if (b, rows, d) != (k.shape[0], *k.shape[2:]):
        raise ValueError(f"k: expected shape {[b, hkv, rows, d]}, got {list(k.shape)}")
    for name, one in {"k": k, "v": v}.items():
        if one.dtype != q.dtype:
            raise ValueError(f"{name}: expected dtype {q.dtype}, got {one.dtype}")
        if one.device.type != q.device.type:
            raise ValueError(f"{name}: expected a tensor on {q.device}, got one on {one.device}")
    from ..ops.attention_rules import (
        require_kind,
    )  # and Triton, which looks then at whether it is to interpret

    try:
        require_kind(q.dtype, h, hkv)
    except ValueError as error:
        raise ValueError(f"attention: {error}") from None


def _attended(q, k, v, group_name, **options):
    require_attended(q, k, v)
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@op_in_cpp(_attended)
def attention(q, k, v, group_name, **options):
    require_attended(q, k, v)
    return fused.attention(q, k, v, group_name, **(ATTENTION | options))


def _attended_gradients(grad, grad_lse, q, k, v, o, lse, group_name, **options):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@custom_op(
    "attention_backward(Tensor grad, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, str group_name, *, "
    f"{ATTENTION_SCHEMA}) -> (Tensor, Tensor, Tensor)",
    _attended_gradients,
)
def attention_backward(grad, grad_lse, q, k, v, o, lse, group_name, **options):
    return fused.attention_backward(grad, grad_lse, q, k, v, o, lse, group_name, **(ATTENTION | options))


def _gradients(grad, x, w, group_name, *, exchanged=False, of_w=True, of_bias=1):
    grad_w = w.new_empty(0)
    if of_w:
        grad_w = w.new_empty(w.shape[1], w.shape[0]).t() if _is_turned(w) else w.new_empty(w.shape)
    return (
        x.new_empty(x.shape),
        grad_w,
        x.new_empty({0: (0,), 1: (w.shape[1],), 2: (x.shape[0], w.shape[1])}[of_bias]),
    )


@custom_op(
    "sent_matmul_backward(Tensor grad, Tensor x, Tensor w, str group_name, *, bool exchanged, bool of_w=True, "
    "int of_bias=1, str module='') -> (Tensor, Tensor, Tensor)",
    _gradients,
)
def sent_matmul_backward(grad, x, w, group_name, *, exchanged, of_w=True, of_bias=1):
    """Gradients of x, w and a bias of matmul_reduce_scatter, or with `exchanged` of matmul_all_to_all: what comes to this
    rank is multiplied by the transposed w as it arrives, and then by x where it lies in the heap. `of_bias`: the bias's
    axes."""
    name = "all_to_all_matmul" if exchanged else "all_gather_matmul"
    made = fused.kept(name, grad, w.t(), group_name, copied=of_bias == 2)
    if made is None:
        whole = (unfused.exchange if exchanged else unfused.gather)(grad, group_name)
        made = torch.mm(whole, w.t()), whole
    return _with_others(*made, x, w, of_w, of_bias)


def _is_turned(w: torch.Tensor) -> bool:
    """Whether w [K, N] is the transpose of a Linear's weight. Its gradient is so, too: accumulating it takes no copy then."""
    return w.stride(0) == 1 and w.stride(1) >= w.shape[0]


def _with_others(grad_x, whole, x, w, of_w, of_bias):
    """The gradients of w and of a bias, by y's whole gradient, which that of a whole bias is itself; empty ones where they are
    not asked for."""
    grad_w = x.new_empty(0)
    if of_w:
        grad_w = torch.mm(whole.t(), x).t() if _is_turned(w) else torch.mm(x.t(), whole)
    if of_bias == 2:
        return grad_x, grad_w, whole
    return grad_x, grad_w, whole.sum(0) if of_bias else x.new_empty(0)


@custom_op(
    "matmul_all_reduce_backward(Tensor grad, Tensor x, Tensor w, str group_name, *, bool of_w=True, int of_bias=1, "
    "str module='') -> (Tensor, Tensor, Tensor)",
    _gradients,
)
def matmul_all_reduce_backward(grad, x, w, group_name, *, of_w=True, of_bias=1):
    """The same of matmul_all_reduce, where the gradients of all ranks are to be summed: by a reduce-scatter, and a gather
    beside the product. What is not fused is one all-reduce."""
    made = fused.reduced(grad, w.t(), group_name, copied=of_bias == 2)
    if made is None:
        whole = unfused.reduce(grad, group_name)
        made = torch.mm(whole, w.t()), whole
    return _with_others(*made, x, w, of_w, of_bias)
