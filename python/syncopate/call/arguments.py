"""The arguments of a launch as the front end takes them: by name, tensors described, scalars by value."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from .. import _syncopate

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
    torch.float8_e4m3fnuz: "fp8e4m3fnuz",
    torch.float8_e5m2fnuz: "fp8e5m2fnuz",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def dtype_name(dtype: Any) -> str:
    """A dtype's name in plans: of torch's dtypes, and of the names that are usual ("bf16", "bfloat16", "torch.float32", "F32", …).
    TypeError for what is neither, ValueError for others."""
    if not isinstance(dtype, (str, torch.dtype)):
        raise TypeError(f'dtype: expected a torch.dtype, or its name, such as "bf16", got {dtype!r}')
    try:
        return _syncopate.dtype_name(dtype) if isinstance(dtype, str) else DTYPE_NAMES[dtype]
    except (KeyError, ValueError):
        raise ValueError(f'there is no dtype "{dtype}"; there are {", ".join(DTYPES)}') from None


def torch_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype, of it or of a name as dtype_name takes it."""
    return dtype if isinstance(dtype, torch.dtype) else DTYPES[dtype_name(dtype)]


LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def is_descriptor(value: Any) -> bool:
    return hasattr(value, "base") and hasattr(value, "block_shape")


def describe(value: Any) -> tuple[list[int], list[int], str, list[int]]:
    """(shape, strides, dtype, block) of a tensor or descriptor argument, as the front end takes it: one without axes as its
    one element."""
    base = value.base if is_descriptor(value) else value
    block = [int(n) for n in value.block_shape] if is_descriptor(value) else []
    if base.dtype not in DTYPE_NAMES:
        raise TypeError(f"tensors of dtype {base.dtype} are not supported")
    shape, strides = shape_and_strides(value)
    return shape, strides, DTYPE_NAMES[base.dtype], block


def shape_and_strides(value: Any) -> tuple[list[int], list[int]]:
    """Of a tensor, or of what a descriptor describes, which need not be all of its base; of one element without axes [1]."""
    shape = value.shape
    strides = value.strides if is_descriptor(value) else value.stride()
    return ([int(n) for n in shape], [int(n) for n in strides]) if shape else ([1], [1])


def elements_of(values: Any, what: str = "values") -> list[int]:
    """The elements of an integer tensor, or of a sequence, in row-major order. Raises TypeError, naming what it is of, where one is no
    integer."""
    if is_tensor(values):
        values = base_of(values).reshape(-1).tolist()
    given = list(values)
    made = [int(value) for value in given]
    for value, whole in zip(given, made, strict=True):
        if value != whole:
            raise TypeError(f"{what}: expected integers, got {value!r}")
    return made


def scalar(value: Any) -> Any:
    """A scalar argument as the front end takes it: dtypes by name, constexprs by value."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "__array_interface__"):
        if value.ndim:
            raise TypeError("expected a tensor of torch's, got an array of NumPy's")
        return value.item()
    return str(value)


def function_of(kernel: Any) -> Any:
    """The Python function of a kernel, which may be wrapped (autotune, heuristics)."""
    function = inspect.unwrap(getattr(kernel, "fn", kernel))
    while hasattr(function, "fn"):
        function = function.fn
    return function


def name_in_file(kernel: Any) -> str:
    """What the front end is asked for: the file may have several functions of one name, as in both branches of an `if`."""
    function = function_of(kernel)
    return f"{function.__name__}@{function.__code__.co_firstlineno}"


def bind_launch(
    kernel: Any, signature: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a launch by name, defaults filled in. TypeError says which are missing, and who chooses them."""
    given = signature.bind_partial(*args, **kwargs)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if name not in given.arguments and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        chosen = chosen_by(kernel)
        needed = ", ".join(f"{name}{chosen.get(name, '')}" for name in missing)
        raise TypeError(f"{function_of(kernel).__name__} needs a value for {needed}")
    given.apply_defaults()
    return given


def chosen_by(kernel: Any) -> dict[str, str]:
    """Of the parameters that @triton.autotune and @triton.heuristics choose, how: a fused kernel is given the choice."""
    autotuned: dict[str, dict[Any, None]] = {}
    computed: list[str] = []
    layer = kernel
    while hasattr(layer, "fn"):
        for config in getattr(layer, "configs", ()):
            for name, value in config.kwargs.items():
                autotuned.setdefault(name, {})[value] = None
        values = getattr(layer, "values", None)
        computed += values if isinstance(values, Mapping) else ()
        layer = layer.fn
    chosen = {name: " (which @triton.heuristics computes: pass its result)" for name in computed}
    for name, values in autotuned.items():
        chosen[name] = f" (which @triton.autotune chooses: pass one of {', '.join(map(str, values))})"
    return chosen


def base_of(value: Any) -> torch.Tensor:
    return value.base if is_descriptor(value) else value


def launch_key(value: Any) -> Hashable:
    """What a packed launch depends on: a tensor's address; a number with its type and sign, as 1, 1.0 and True are equal, and so
    are 0.0 and -0.0, but nan is not equal to itself."""
    if is_tensor(value):
        return base_of(value).data_ptr()
    if type(value) is float:
        return value.hex()
    return value if type(value) is int else (type(value), value)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_descriptor(value)


def require_whole(name: str, value: Any, least: int | None = None) -> int:
    """It. Raises TypeError, naming the argument, for what is no whole number, as a float or a bool is none, and ValueError for less than
    `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
    return value
