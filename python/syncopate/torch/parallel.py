"""Styles for torch.distributed.tensor.parallel.parallelize_module that run fused without a compiler: drop-ins for torch's.

    from syncopate.torch.parallel import ColwiseParallel, RowwiseParallel, SharedInput      # or sy.parallel
    parallelize_module(block, mesh, {
        "attention": SharedInput("wq", "wk", "wv"),                  # one gather for the three
        "attention.wq": ColwiseParallel(input_layouts=Shard(1)), …
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    })

A Linear whose input is sharded along an axis of rows is an all-gather and a product, one whose output is to be sharded
so a product and a reduce-scatter, one whose output is to be replicated a product and an all-reduce. Anything else is
done as torch's style of that name does it, and so is what the ranks have no equal shares of.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, parallel
from torch.distributed.tensor.placement_types import Placement

__all__ = ["ColwiseParallel", "RowwiseParallel", "SharedInput"]

ops = torch.ops.syncopate


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def even(tensor: torch.Tensor, axis: int, mesh: DeviceMesh) -> bool:
    """Whether the ranks have equal shares of it along `axis`. Of a DTensor all of them know that alike."""
    return not isinstance(tensor, DTensor) or tensor.shape[axis] % mesh.size() == 0


def version_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Another one after each change in place, of a DTensor or of its shard. Tensors of the inference mode do not count them."""
    shard = getattr(tensor, "_local_tensor", tensor)  # to_local() would be recorded for the gradient
    return id(tensor), *(0 if one.is_inference() else one._version for one in (tensor, shard))


def rows_axis(placement: Placement, dims: int) -> int | None:
    """The axis that a placement shards, if it is one of rows, not of columns."""
    if not isinstance(placement, Shard):
        return None
    axis = placement.dim % dims
    return axis if axis < dims - 1 else None


def path_of(module: nn.Module) -> str:
    """The path of a module that is being called, from the outermost module whose call it is within; without one, or while it
    is compiled, what the module prints as. Kept once it is found."""
    known = module.__dict__.get("_syncopate_path")
    if known is not None or torch.compiler.is_compiling():
        return known or str(module)
    frame, outermost = inspect.currentframe(), None
    while frame is not None:
        caller = frame.f_locals.get("self")
        outermost = caller if isinstance(caller, nn.Module) else outermost
        frame = frame.f_back
    paths = (name for name, one in outermost.named_modules() if one is module) if outermost else iter(())
    module.__dict__["_syncopate_path"] = path = next(paths, "") or str(module)
    return path


class _Fused:
    """What the two styles share: forward is replaced, parameters stay DTensors, as torch's style makes them."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        forward = getattr(type(module), "forward", None)
        own = forward is not nn.Linear.forward or "forward" in vars(module)  # which may do other things
        if own or device_mesh.ndim != 1:
            return super()._apply(module, device_mesh)
        hooks = module._forward_pre_hooks, module._forward_hooks
        before = [set(kind) for kind in hooks]
        made = super()._apply(module, device_mesh)
        for kind, own in zip(hooks, before, strict=True):  # torch's style would gather and scatter in hooks
            for added in set(kind) - own:
                del kind[added]

        def forward(linear: nn.Module, input: torch.Tensor) -> torch.Tensor:  # noqa: A002: the Linear's own name
            return self._forward(linear, device_mesh, partial(type(linear).forward, linear), input)

        made.forward = MethodType(forward, made)  # a method: a copy of the module gets one of its own
        return made

    def _wrapped(self, y: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> torch.Tensor:
        if self.use_local_output:
            return y
        return DTensor.from_local(y, mesh, [placement], run_check=False)

    def _plain(self, module: nn.Module, mesh: DeviceMesh, plain: Any, x: torch.Tensor) -> torch.Tensor:
        """As torch's style does it."""
        desired = getattr(self, "desired_input_layouts", None)
        x = self._prepare_input_fn(self.input_layouts, desired, module, (x,), mesh)
        return self._prepare_output_fn(self.output_layouts, self.use_local_output, module, plain(x), mesh)


class ColwiseParallel(_Fused, parallel.ColwiseParallel):
    """y = all_gather(x) @ weightᵀ + bias of this rank's columns, fused where x is sharded along an axis of rows
    (`input_layouts`, or the DTensor that comes)."""

    def _forward(self, module: nn.Module, mesh: DeviceMesh, plain: Any, x: torch.Tensor) -> torch.Tensor:
        given = x.placements[0] if isinstance(x, DTensor) else self.input_layouts[0]
        axis = rows_axis(given, x.dim())
        if axis is None or not even(x, axis, mesh) or not even(module.weight, 0, mesh):
            return self._plain(module, mesh, plain, x)
        shared = getattr(module, "_syncopate_shared", None)
        shard = local(x)
        if shared is not None:
            return self._laid_out(shared.take(module, x, shard, axis, mesh), mesh)
        bias = None if module.bias is None else module.bias.to_local()
        moved = shard.movedim(axis, 0)
        y = ops.all_gather_matmul(
            moved.reshape(-1, shard.shape[-1]), module.weight.to_local().t(), mesh.get_group().group_name, bias,
            module=path_of(module),
        )  # fmt: skip
        return self._laid_out(_unflattened(y, moved, axis, mesh), mesh)

    def _laid_out(self, y: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        if self.output_layouts[0] in (Shard(-1), Shard(y.dim() - 1)):
            return self._wrapped(y, mesh, Shard(y.dim() - 1))
        made = DTensor.from_local(y, mesh, [Shard(y.dim() - 1)], run_check=False)
        return self._prepare_output_fn(self.output_layouts, self.use_local_output, None, made, mesh)


class RowwiseParallel(_Fused, parallel.RowwiseParallel):
    """y = reduce_scatter or all_reduce(x @ weightᵀ) + bias, the bias once (each rank adds its share), fused where the output is to be sharded along an axis of rows, or
    replicated (`output_layouts`)."""

    def _forward(self, module: nn.Module, mesh: DeviceMesh, plain: Any, x: torch.Tensor) -> torch.Tensor:
        given = x.placements[0] if isinstance(x, DTensor) else self.input_layouts[0]
        wanted = self.output_layouts[0]
        columns = isinstance(given, Shard) and given.dim % x.dim() == x.dim() - 1
        axis = rows_axis(wanted, x.dim())
        shared = even(module.weight, 1, mesh) and (axis is None or x.shape[axis] % mesh.size() == 0)
        if not columns or not shared or (axis is None and wanted != Replicate()):
            return self._plain(module, mesh, plain, x)
        x, name = local(x), mesh.get_group().group_name
        operands = module.weight.to_local().t(), name, _share_of_bias(module, mesh.size())
        if axis is None:
            y = ops.matmul_all_reduce(
                x.reshape(-1, x.shape[-1]), *operands, replicated_grad=True, module=path_of(module)
            )
            return self._wrapped(y.view(*x.shape[:-1], y.shape[-1]), mesh, wanted)
        moved = x.movedim(axis, 0)
        y = ops.matmul_reduce_scatter(moved.reshape(-1, x.shape[-1]), *operands, module=path_of(module))
        y = y.view(moved.shape[0] // mesh.size(), *moved.shape[1:-1], y.shape[-1]).movedim(0, axis)
        return self._wrapped(y, mesh, wanted)


def _share_of_bias(module: nn.Module, ranks: int) -> torch.Tensor | None:
    """What each rank adds of a replicated bias: the sum over ranks is the bias. Its gradient is that of the whole bias, and
    the same on all ranks."""
    if module.bias is None:
        return None
    return _Share.apply(local(module.bias), ranks)


class _Share(torch.autograd.Function):
    """A tensor divided by the number of ranks, whose gradient is that of the whole."""

    @staticmethod
    def forward(whole: torch.Tensor, ranks: int) -> torch.Tensor:
        return whole / ranks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _unflattened(y: torch.Tensor, moved: torch.Tensor, axis: int, mesh: DeviceMesh) -> torch.Tensor:
    """Rows of all ranks, which come in the order of `moved`'s first axis, with that axis where it was."""
    return y.view(mesh.size() * moved.shape[0], *moved.shape[1:-1], y.shape[-1]).movedim(0, axis)


def _biased(y: torch.Tensor, linear: nn.Module) -> torch.Tensor:
    return y if linear.bias is None else y + linear.bias.to_local().to(y.dtype)


class SharedInput(parallel.ParallelStyle):
    """For the parent of several Linears with ColwiseParallel that all get the same sharded tensor: it is gathered once, and the
    first one that is called makes the products of all."""

    def __init__(self, *linears: str) -> None:
        super().__init__()
        self.names = linears

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        shared = _Shared([module.get_submodule(name) for name in self.names])
        for linear in shared.linears:
            linear._syncopate_shared = shared
        return module


class _Shared:
    """Products that wait for their Linears to be called."""

    def __init__(self, linears: list[nn.Module]) -> None:
        self.linears = linears
        self.x: torch.Tensor | None = None
        self.state: tuple[Any, ...] = ()
        self.made: dict[int, torch.Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: without products that wait."""
        return vars(_Shared(self.linears))

    def take(
        self, linear: nn.Module, x: torch.Tensor, shard: torch.Tensor, axis: int, mesh: DeviceMesh
    ) -> torch.Tensor:
        state = self._state_of(x)
        if self.x is not x or self.state != state or id(linear) not in self.made:
            moved = shard.movedim(axis, 0)
            for one in self.linears:
                if not isinstance(one.weight, DTensor):
                    raise ValueError(f"SharedInput: {path_of(one)} has no ColwiseParallel style")
            linears = [one for one in self.linears if even(one.weight, 0, mesh)]
            biased = all(one.bias is not None for one in linears)
            products = ops.all_gather_matmuls(
                moved.reshape(-1, shard.shape[-1]),
                [one.weight.to_local().t() for one in linears],
                mesh.get_group().group_name,
                [one.bias.to_local() for one in linears] if biased else None,
                module=", ".join(map(path_of, linears)),
            )
            self.x, self.state = x, state
            self.made = {
                id(one): _unflattened(y if biased else _biased(y, one), moved, axis, mesh)
                for one, y in zip(linears, products, strict=True)
            }
        y = self.made.pop(id(linear))
        if not self.made:
            self.x = None
        return y

    def _state_of(self, x: torch.Tensor) -> tuple[Any, ...]:
        """Changes where products of x would be other ones: with x or a parameter, or with whether gradients are recorded and what
        autocast does."""
        read = [x, *(parameter for linear in self.linears for parameter in linear.parameters())]
        if torch.compiler.is_compiling():  # Dynamo knows no versions of DTensors
            read = []
        kind = x.device.type
        cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        wanted = tuple(tensor.requires_grad for tensor in read)
        return torch.is_grad_enabled(), cast, wanted, *map(version_of, read)
