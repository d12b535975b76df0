"""The backward of the custom ops, fused as well. With g the gradient of y:

    all_gather_matmul       x: reduce_scatter(g @ wᵀ)         w: all_gather(xᵀ, columns) @ g    the gathered x is not kept
    matmul_reduce_scatter   x: all_gather(g) @ wᵀ             w: xᵀ @ the same gathered g, where it lies in the heap
    matmul_all_to_all       x: all_to_all(g) @ wᵀ             w: xᵀ @ what came
    all_to_all_matmul       x: all_to_all(g @ wᵀ)             w: all_to_all(x)ᵀ @ g
    matmul_all_reduce       x: all_gather(s) @ wᵀ             w: xᵀ @ the same gathered s; s: reduce_scatter(g), unfused. With
                            replicated_grad g is the sum already, and the products are plain ones
    feed_forward            by those of its two halves
    attention               by what forward has left, fused (ops/attention_backward.py)

These are the adjoints that torch's functional collectives have. Where every rank computes the same loss from the whole y of an
all-reduce (RowwiseParallel with a replicated output), g is not to be summed again: `replicated_grad`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .. import _syncopate
from ..call.forward_mode import in_forward_mode, refuse_tangents
from . import unfused
from .custom_ops import library, nothing_of

ops = torch.ops.syncopate


def derived(pre: torch.Tensor, grad: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient of the activation's input, `pre`."""
    if activation == "relu":
        return torch.where(pre > 0, grad, torch.zeros_like(grad))
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(grad, pre, approximate="tanh")
    return torch.ops.aten.silu_backward(grad, pre) if activation == "silu" else grad


def _remember(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.group_name = next(given for given in inputs if isinstance(given, str))
    ctx.options = dict(keyword_only_inputs)
    lists = [given if isinstance(given, (list, tuple)) else [given] for given in inputs]
    ctx.save_for_backward(*[t for given in lists for t in given if isinstance(t, torch.Tensor)])


def _gathered_product(x, w, grad, group_name, module, needs) -> tuple[Any, Any]:
    """Of x and w, of y = all_gather(x) @ w."""
    grad_x = grad_w = None
    if needs[0]:
        grad_x = ops.matmul_reduce_scatter(grad, w.t(), group_name, module=module)
    if needs[1]:
        grad_w = ops.all_gather_matmul(x.t().contiguous(), grad, group_name, axis=1, module=module)
    return grad_x, grad_w


def _gathered_columns(x, w, grad, group_name, module, needs) -> tuple[Any, Any]:
    """The same where columns are gathered."""
    grad_x = grad_w = None
    if needs[0]:
        grad_x = ops.matmul_reduce_scatter(w, grad.t(), group_name, module=module).t()
    if needs[1]:
        grad_w = ops.all_gather_matmul(x.t().contiguous(), grad, group_name, module=module)
    return grad_x, grad_w


def all_gather_matmul(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, w, *bias = ctx.saved_tensors
    module, axis, activation = (ctx.options[name] for name in ("module", "axis", "activation"))
    grad = grad.contiguous()
    if activation:
        pre = ops.all_gather_matmul(x, w, ctx.group_name, bias[0] if bias else None, axis=axis, module=module)
        grad = derived(pre, grad, activation)
    of = _gathered_columns if axis else _gathered_product
    grad_x, grad_w = of(x, w, grad, ctx.group_name, module, ctx.needs_input_grad)
    return grad_x, grad_w, None, _of_bias(grad, bias)


def _of_bias(whole: torch.Tensor, bias: list[torch.Tensor]) -> torch.Tensor | None:
    """The gradient of the bias, if there is one: `whole` is that of what it was added to."""
    if not bias:
        return None
    return whole.sum(0) if bias[0].dim() == 1 else whole


def _products(
    ctx: Any, grads: list[torch.Tensor], returned: bool
) -> tuple[torch.Tensor, list[torch.Tensor], list[Any]]:
    """Of several products: x, each w, and what stands for the list of biases, if one was given: the gradient of each."""
    of_products = grads[: len(grads) - returned]
    x, *saved = ctx.saved_tensors  # once: what is checkpointed is made anew for each asking
    ws, biases = saved[: len(of_products)], saved[len(of_products) :]
    if not biases:  # no list of them: the dispatcher leaves out what is the default
        return x, ws, []
    return x, ws, [[_of_bias(grad, [bias]) for grad, bias in zip(of_products, biases, strict=True)]]


def all_gather_matmuls(ctx: Any, grads: list[torch.Tensor]) -> tuple[Any, ...]:
    axis = ctx.options["axis"]
    x, ws, of_biases = _products(ctx, grads, ctx.options["return_gathered"])
    grad = torch.cat(list(grads[: len(ws)]), 1)
    w = torch.cat([one.t() for one in ws]).t()  # [K, N of all], as the transpose of a contiguous one
    needs = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1])
    of = _gathered_columns if axis else _gathered_product
    grad_x, grad_w = of(x, w, grad, ctx.group_name, ctx.options["module"], needs)
    if needs[0] and ctx.options["return_gathered"]:
        whole = grads[-1]
        grad_x = grad_x + (
            unfused.scatter(whole.t(), ctx.group_name).t() if axis else unfused.scatter(whole, ctx.group_name)
        )
    grad_ws = list(grad_w.split([one.shape[1] for one in ws], 1)) if needs[1] else [None] * len(ws)
    return grad_x, grad_ws, None, *of_biases


def _of_sent(exchanged: bool) -> Any:
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, w, *bias = ctx.saved_tensors
        module, grad = ctx.options["module"], grad.contiguous()
        _, of_w, *_ = ctx.needs_input_grad
        if ctx.needs_input_grad[0]:
            made = ops.sent_matmul_backward(
                grad, x, w, ctx.group_name, exchanged=exchanged, of_w=of_w, of_bias=_axes(bias), module=module
            )
            return _asked(made, of_w, bool(bias))
        grad_w = grad_bias = None
        if of_w and exchanged:
            grad_w = torch.mm(x.t(), unfused.exchange(grad, ctx.group_name))
        elif of_w:
            grad_w = ops.all_gather_matmul(
                grad.t().contiguous(), x, ctx.group_name, axis=1, module=module
            ).t()
        if bias:  # of the rows that come: those of all ranks, or a block of each
            if exchanged:
                grad_bias = _of_bias(unfused.exchange(grad, ctx.group_name), bias)
            elif _axes(bias) == 2:
                grad_bias = unfused.gather(grad, ctx.group_name)
            else:
                grad_bias = unfused.reduce(grad.sum(0), ctx.group_name)
        return None, grad_w, None, grad_bias

    return backward


def _axes(bias: list[torch.Tensor]) -> int:
    return bias[0].dim() if bias else 0


def _asked(made: tuple[torch.Tensor, ...], of_w: bool, of_bias: bool) -> tuple[Any, ...]:
    grad_x, grad_w, grad_bias = made
    return grad_x, grad_w if of_w else None, None, grad_bias if of_bias else None


def all_to_all_matmul(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, w, *bias = ctx.saved_tensors
    module, grad_x, grad_w = ctx.options["module"], None, None
    if ctx.needs_input_grad[0]:
        grad_x = ops.matmul_all_to_all(grad.contiguous(), w.t(), ctx.group_name, module=module)
    if ctx.needs_input_grad[1]:
        grad_w = torch.mm(unfused.exchange(x, ctx.group_name).t(), grad)
    return grad_x, grad_w, None, _of_bias(grad, bias)


def all_to_all_matmuls(ctx: Any, grads: list[torch.Tensor]) -> tuple[Any, ...]:
    x, ws, of_biases = _products(ctx, grads, ctx.options["return_exchanged"])
    grad = torch.cat(list(grads[: len(ws)]), 1)
    grad_x, grad_ws = None, [None] * len(ws)
    if ctx.needs_input_grad[0]:
        w = torch.cat([one.t() for one in ws])
        grad_x = ops.matmul_all_to_all(grad, w, ctx.group_name, module=ctx.options["module"])
        if ctx.options["return_exchanged"]:
            grad_x = grad_x + unfused.exchange(grads[-1], ctx.group_name)
    if any(ctx.needs_input_grad[1]):
        grad_w = torch.mm(unfused.exchange(x, ctx.group_name).t(), grad)
        grad_ws = list(grad_w.split([one.shape[1] for one in ws], 1))
    return grad_x, grad_ws, None, *of_biases


def matmul_all_reduce(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, w, *bias = ctx.saved_tensors
    module, grad = ctx.options["module"], grad.contiguous()
    of_x, of_w, *_ = ctx.needs_input_grad
    if of_x and not ctx.options["replicated_grad"]:
        made = ops.matmul_all_reduce_backward(
            grad, x, w, ctx.group_name, of_w=of_w, of_bias=_axes(bias), module=module
        )
        return _asked(made, of_w, bool(bias))
    if not ctx.options["replicated_grad"]:  # no product is beside it
        grad = unfused.reduce(grad, ctx.group_name)
    grad_x = torch.mm(grad, w.t()) if of_x else None
    grad_w = torch.mm(x.t(), grad) if of_w else None
    return grad_x, grad_w, None, _of_bias(grad, bias)


def feed_forward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """The inner activations are made again: the first half runs once more, beside its gather."""
    x, w1, w2 = ctx.saved_tensors
    module, activation = ctx.options["module"], ctx.options["activation"]
    pre = ops.all_gather_matmul(x, w1, ctx.group_name, module=module)
    h = unfused.activated(pre, activation)
    of_w2 = ctx.needs_input_grad[2]
    grad_h, grad_w2, _ = ops.sent_matmul_backward(
        grad.contiguous(), h, w2, ctx.group_name, exchanged=False, of_w=of_w2, of_bias=False, module=module
    )
    grad_pre = derived(pre, grad_h, activation)
    grad_x, grad_w1 = _gathered_product(x, w1, grad_pre, ctx.group_name, module, ctx.needs_input_grad)
    return grad_x, grad_w1, grad_w2 if of_w2 else None, None


def attention(ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None) -> tuple[Any, ...]:
    options = {name: value for name, value in ctx.options.items() if name != "module"}
    saved = ctx.saved_tensors  # once: what is checkpointed is made anew for each asking
    given = torch.zeros_like(saved[3]) if grad is None else grad.contiguous()
    of_lse = None if grad_lse is None else grad_lse.contiguous()
    grads = ops.attention_backward(given, of_lse, *saved, ctx.group_name, **options)
    return *grads, None


def _remember_attention(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    *operands, ctx.group_name = inputs
    ctx.options = dict(keyword_only_inputs)
    ctx.set_materialize_grads(False)  # mostly nothing is asked for of lse
    ctx.save_for_backward(*operands, *output)


def once(name: str, backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Asking for the derivatives of what it makes is an error. torch's once_differentiable makes one only where a gradient
    that comes has derivatives itself, and is no list; but what is made depends on the operands, too."""

    def without_derivatives(made: torch.Tensor) -> torch.Tensor:
        said = torch._C._functions.DelayedError(f"syncopate.{name} has no second derivatives", 1)
        return said(made.detach().requires_grad_())

    @wraps(backward)
    def run(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            made = backward(ctx, *grads)
        return tree_map_only(torch.Tensor, without_derivatives, made) if torch.is_grad_enabled() else made

    return run


def _refuse_transforms(name: str, args: tuple[Any, ...]) -> None:
    """RuntimeError where torch.func asks for derivatives, which it takes of other autograd functions than these."""
    if _is_transformed() and torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        raise RuntimeError(
            f"syncopate.{name.removesuffix('_recorded').removesuffix('_kept')} has no derivatives within torch.func (grad, vjp, jacrev): ask for "
            "them by backward() or torch.autograd.grad"
        )


_is_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


class Telling:
    """The library, where kernels of autograd are registered so that an op in C++ around them raises what they raise: torch's C
    interface lets none through, not even what ends a recomputation early."""

    @staticmethod
    def impl(name: str, kernel: Callable[..., Any], *keys: Any, **options: Any) -> None:
        @wraps(kernel)
        def run(*args: Any, **given: Any) -> Any:
            try:
                if in_forward_mode():
                    lists = [one if isinstance(one, (list, tuple)) else [one] for one in args]
                    operands = [one for listed in lists for one in listed]
                    refuse_tangents({f"operand {number}": one for number, one in enumerate(operands)})
                _refuse_transforms(name, args)
                return kernel(*args, **given)
            except BaseException as error:
                if not _syncopate.is_nested():
                    raise
                _syncopate.set_pending(error)
                return nothing_of(name)

        library.impl(name, run, *keys, **options)


def _record(
    name: str, backward: Callable[..., tuple[Any, ...]], remember: Callable[..., None] = _remember
) -> None:
    """Makes op `name` differentiable by `backward`, for which `remember` keeps what it needs. As torch.library.register_autograd
    does, which takes ten microseconds more of each call."""
    op = getattr(ops, f"{name}_recorded").default
    usual = {given.name: given.default_value for given in op._schema.arguments if given.kwarg_only}

    def forward(ctx: Any, *given: Any) -> Any:
        *inputs, keys, options = given
        with torch._C._AutoDispatchBelowAutograd():
            made = op.redispatch(keys & torch._C._after_autograd_keyset, *inputs, **options)
        remember(ctx, inputs, usual | options, made)
        ctx.num_given = len(given)
        return made

    def gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        made = backward(ctx, *grads)[: ctx.num_given]
        return *made, *[None] * (ctx.num_given - len(made))

    of = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    recorded = type(name, (torch.autograd.Function,), of)

    def run(keys: Any, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
            return recorded.apply(*inputs, keys, options)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & torch._C._after_autograd_keyset, *inputs, **options)

    Telling.impl(f"{name}_recorded", run, "Autograd", with_keyset=True)


_record("attention", once("attention", attention), _remember_attention)
_record("all_gather_matmul", all_gather_matmul)  # by ops that have gradients again
for _name, _backward in {
    "matmul_reduce_scatter": _of_sent(exchanged=False),
    "matmul_all_to_all": _of_sent(exchanged=True),
    "all_to_all_matmul": all_to_all_matmul,
    "matmul_all_reduce": matmul_all_reduce,
    "feed_forward": feed_forward,
}.items():
    _record(_name, once(_name, _backward))
for _name, _backward in {
    "all_gather_matmuls": all_gather_matmuls,
    "all_to_all_matmuls": all_to_all_matmuls,
}.items():
    torch.library.register_autograd(  # which knows lists of tensors
        f"syncopate::{_name}_recorded",
        once(_name, _backward),
        setup_context=_remember,
        lib=Telling,
    )
