"""Where in a tensor lies what a rank holds of it, and whether what it is given fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .. import _syncopate
from .arguments import DTYPE_NAMES, base_of, shape_and_strides


def shard_box(plan: _syncopate.Plan, rank: int, tensor: str) -> list[tuple[int, int]] | None:
    """The box of `tensor` that `rank` holds initially; None when it holds none. Several boxes: their bounding box."""
    boxes = [region for name, region in plan.initial(rank) if name == tensor]
    if not boxes:
        return None
    return [(min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0]))]


def shard_view(plan: _syncopate.Plan, rank: int, tensor: str, buffer: torch.Tensor) -> torch.Tensor:
    return box_view(shard_box(plan, rank, tensor), buffer)


def box_view(box: list[tuple[int, int]] | None, buffer: torch.Tensor) -> torch.Tensor:
    if box is None:
        return buffer[tuple(slice(0, 0) for _ in buffer.shape)]
    return buffer[tuple(slice(begin, end) for begin, end in box)]


def final_boxes(plan: _syncopate.Plan, rank: int, tensor: str) -> list[list[tuple[int, int]]]:
    """What `rank` holds of `tensor` at the end."""
    return [box for name, box, _ in plan.final(rank) if name == tensor]


def final_box(plan: _syncopate.Plan, rank: int, tensor: str) -> list[tuple[int, int]] | None:
    """The box around all of that; None when there is nothing."""
    boxes = final_boxes(plan, rank, tensor)
    if not boxes:
        return None
    return [(min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0]))]


class OutputPlaces:
    """Where in a tensor of the user's the boxes lie that `rank` holds of `tensor` at the end: the user's is of the whole
    tensor's shape, or of the box around them all. Worked out once, as every call asks."""

    def __init__(self, plan: _syncopate.Plan, rank: int, tensor: str) -> None:
        self.tensor = tensor
        self.boxes = [
            box for box in final_boxes(plan, rank, tensor) if all(begin < end for begin, end in box)
        ]
        self.whole = tuple(next(shape for name, shape, _ in plan.tensors if name == tensor))
        self.first = [begin for begin, _ in final_box(plan, rank, tensor) or []]

    def parts(self, shape: Sequence[int]) -> list[tuple[str, list[tuple[int, int]], list[int]]]:
        """Of a user's tensor of this shape: the plan's tensor, the box in it, and where that begins in the user's."""
        first = [0] * len(shape) if tuple(shape) == self.whole else self.first
        return [
            (self.tensor, box, [b - f for (b, _), f in zip(box, first, strict=True)]) for box in self.boxes
        ]


def check_output(plan, rank, tensor, parameter, value, shape, dtype, device, ordinal) -> None:
    """As check_shard, for a tensor that the kernel makes: of the shape of what this rank holds at the end, or whole, where
    that has its place in it."""
    held = _extents(final_box(plan, rank, tensor))
    where = f"{parameter} (bound to {tensor}, rank {rank})"
    _check_shape(where, value, held, "what this rank holds at the end, of shape", [list(shape)])
    check_place(where, value, dtype, device, ordinal)


def check_shard(plan, rank, tensor, parameter, value, shape, dtype, device, ordinal) -> None:
    """Raises ValueError, naming parameter and tensor, when an argument is not this rank's shard of a plan tensor. The whole
    is none: it does not say whether its first rows are meant or the rank's own. Where others hold all, any shape will do,
    as nothing is read; what no rank holds, because it is made or filled in between, has the tensor's shape."""
    where = f"{parameter} (bound to {tensor}, rank {rank})"
    if any(shard_box(plan, other, tensor) for other in range(plan.num_ranks)):
        held, what = _extents(shard_box(plan, rank, tensor)), "this rank's shard of shape"
    else:
        held, what = list(shape), "the tensor's shape"
    _check_shape(where, value, held, what)
    check_place(where, value, dtype, device, ordinal)


def _extents(box: list[tuple[int, int]] | None) -> list[int]:
    return [end - begin for begin, end in box or [(0, 0)]]


def _check_shape(where, value, held, what, others=()) -> None:
    given, _ = shape_and_strides(value)
    if given != held and given not in others and math.prod(held) > 0:
        raise ValueError(f"{where}: expected {what} {held}, got {given}")


def check_place(where, value, dtype, device, ordinal) -> None:
    base, (_, strides) = base_of(value), shape_and_strides(value)
    if DTYPE_NAMES[base.dtype] != dtype:
        raise ValueError(f"{where}: expected dtype {dtype}, got {DTYPE_NAMES[base.dtype]}")
    if device == "cuda" and (not base.is_cuda or base.device.index != ordinal):
        raise ValueError(f"{where}: expected a tensor on cuda:{ordinal}, got one on {base.device}")
    if device == "host" and base.device.type != "cpu":
        raise ValueError(f"{where}: expected a tensor on the host, got one on {base.device}")
    if base.numel() and strides[-1] != 1:
        raise ValueError(f"{where}: the last axis must be contiguous, its stride is {strides[-1]}")


DEVICE_TYPES = {"cuda": "cuda", "host": "cpu"}  # torch's names of the devices


def require_tensors(**given: object) -> None:
    """Raises as require_memory does."""
    for name, value in given.items():
        require_memory(name, value)


def require_memory(name: str, tensor: torch.Tensor) -> None:
    """Raises TypeError, naming the operand, for what is no tensor, or stands for others, and ValueError for one whose memory does not
    hold its values: kernels read what is there."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if torch.compiler.is_compiling():  # the op that is traced looks at what comes
        return
    kind = type(tensor)
    if kind not in _PLAIN and _stands_for_others(tensor):
        ways = (way for way in ("to_local", "wait") if hasattr(tensor, way))
        instead = next((f"its {way}()" for way in ways), "a torch.Tensor")
        raise TypeError(f"{name}: a {kind.__name__} has no memory of its own: give {instead}")
    if _is_within_func(tensor):
        raise TypeError(
            f"{name}: it stands for others within torch.func, where functions and objects of sy.ops cannot be called: see "
            "torch.ops.syncopate"
        )
    if tensor.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got a nested one")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            f"{name}: it is another tensor's negation or conjugate, not carried out yet: give its resolve_neg() or resolve_conj()"
        )


_PLAIN = torch.Tensor, torch.nn.Parameter
_is_within_func = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda _: False)


def _stands_for_others(tensor: torch.Tensor) -> bool:
    """Whether a subclass holds other tensors, or none, in place of memory."""
    from torch._subclasses import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(tensor) or isinstance(tensor, FakeTensor)


def require_apart(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError, naming it, for what a call writes where two elements lie in one place, as of an expanded tensor."""
    passed = 0
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1 and tensor.numel():
            if stride <= passed:
                raise ValueError(
                    f"{name}: its elements overlap, its strides are {list(tensor.stride())}: what a call writes has a place for "
                    "each"
                )
            passed += (extent - 1) * stride


def require_pair(out: object) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse, where a call of attention is to write them. Raises TypeError for anything else."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"out: expected (o, lse), got {type(out).__name__}")
    require_tensors(o=out[0], lse=out[1])
    return out[0], out[1]


def written(*tensors: torch.Tensor) -> None:
    """Tells autograd that kernels write these, so that a backward that needs what they held is an error."""
    torch.autograd.graph.increment_version(tensors)


def check_rows(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError, naming the operand, unless TMA can read this matrix where it is."""
    apart = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 else 0
    if tensor.numel() and (tensor.data_ptr() % 16 or apart % 16):
        raise ValueError(
            f"{name}: its rows must begin at multiples of 16 bytes, as TMA reads them; they are {apart} bytes apart, the "
            f"first one is {tensor.data_ptr() % 16} beyond: make it contiguous"
        )


def check_operand(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    """Raises ValueError, naming the operand, unless it has this shape and dtype and lies on `device`."""
    require_memory(name, tensor)
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected dtype {dtype}, got {tensor.dtype}")
    if tensor.device.type != DEVICE_TYPES[device]:
        raise ValueError(f"{name}: expected a tensor on {device}, got one on {tensor.device}")
