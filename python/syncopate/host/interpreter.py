"""Running an emitted kernel in Triton's interpreter, on the very memory that the executor moves chunks in.

Triton's own grid executor copies every argument to the host before a launch and back after it. For memory that
other ranks write meanwhile, the copy back would undo their writes; here arguments are passed as they are.
"""

from __future__ import annotations

import functools
import os
import threading
import traceback
from contextlib import nullcontext

from .bounds import Bounds, KernelError, held, is_user_file, place_text, program_text
from .interpreter_logic import repair_logic
from .interpreter_speed import spare_repetition

_interpreting = threading.RLock()  # Triton's interpreter has one program in one thread at a time


def enable() -> None:
    """Makes Triton interpret kernels. Must run before triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"


def launch(kernel, grid: tuple[int, ...], arguments: dict[str, object], bounds: Bounds | None = None) -> None:
    """Runs every program of `grid`, one after the other (x outermost), with CPU tensors as arguments. `bounds`: what it may
    touch; none: whatever it does. Raises KernelError, with the kernel's line, for what goes wrong in it."""
    from triton.runtime.interpreter import GridExecutor, InterpreterError

    while not hasattr(kernel, "rewrite"):  # an autotuned kernel has the interpreted one inside
        if not hasattr(kernel, "fn"):
            raise RuntimeError(
                "on host, kernels run in Triton's interpreter: set TRITON_INTERPRET=1 before triton is imported"
            )
        kernel = kernel.fn
    repair_bf16()
    repair_comparisons()
    repair_logic()
    spare_repetition()

    class SharedMemoryExecutor(GridExecutor):
        def _init_args_hst(self, args_dev, kwargs):
            return args_dev, kwargs

        def _restore_args_dev(self, args_dev, args_hst, kwargs, kwargs_hst):
            pass

    run = SharedMemoryExecutor(kernel.rewrite(), kernel.arg_names, tuple(grid))
    with _interpreting, nullcontext() if bounds is None else held(bounds):
        try:
            run(**arguments)
        except InterpreterError as error:
            raise _of_kernel(error) from error


def _of_kernel(error: Exception) -> Exception:
    """An exception of the interpreter as one of the kernel's line; a wait that expired stays what it is. The interpreter wraps
    what goes wrong anew in each helper around: it is told once, with its own line and that on which the kernel calls."""
    from triton.runtime import interpreter

    from ..device.fault import SyncopateFault

    wrapped = [error]
    while isinstance(wrapped[-1], interpreter.InterpreterError) and wrapped[-1].__cause__ is not None:
        wrapped.append(wrapped[-1].__cause__)
    cause = wrapped[-1]
    if isinstance(cause, SyncopateFault):
        return cause
    call = _user_place(wrapped[1]) if len(wrapped) > 2 else ""
    called = f" (called at {call})" if call else ""
    if isinstance(cause, KernelError):
        return KernelError(f"{cause}{called}") if called else cause
    place = _user_place(cause)
    where = f"{place}: " if place else ""
    program = program_text(interpreter.interpreter_builder)
    return KernelError(f"{where}{program}: {type(cause).__name__}: {cause}{called}")


def _user_place(error: BaseException) -> str:
    """The innermost of the user's lines that the exception came through; empty: none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    return place_text(frames[-1].filename, frames[-1].lineno or 0) if frames else ""


@functools.cache
def repair_comparisons() -> None:
    """Makes what a comparison gives a bool. Triton's interpreter gives it the type of what is compared: a scalar one becomes a
    block of integers, which a mask may not be from 3.9 on."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    binary_op = interpreter.InterpreterBuilder.binary_op

    @functools.wraps(binary_op)
    def compute(self, *operands):
        result = binary_op(self, *operands)
        if result.data.dtype == np.bool_:
            result.dtype = tl.int1
        return result

    interpreter.InterpreterBuilder.binary_op = compute


@functools.cache
def repair_bf16() -> None:
    """Makes the interpreter compute with bf16 values.

    Triton's, to 3.9, keeps them as 16-bit words and computes with these as if they were integers; its conversion from fp32
    cuts bits off. Here operands are widened to fp32, and results rounded to nearest, ties to even, as on a GPU.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    if interpreter._get_np_dtype(tl.bfloat16) != np.uint16:
        return  # a Triton that computes with bf16 itself
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def is_bf16(value) -> bool:
        return isinstance(value, handle) and value.dtype.scalar == tl.bfloat16

    def widen(value):
        words = np.asarray(value.data, dtype=np.uint16).astype(np.uint32)
        return handle((words << 16).view(np.float32), tl.float32)

    def narrow(value):
        numbers = np.asarray(value.data, dtype=np.float32)
        words = numbers.view(np.uint32)
        rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
        quiet = (words >> 16) | 0x40  # a NaN must stay one
        return handle(np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16), tl.bfloat16)

    def in_fp32(method, decides: int):
        """`method` on widened operands; operand `decides` gives its result's type."""

        @functools.wraps(method)
        def compute(self, *operands):
            if not any(map(is_bf16, operands)):
                return method(self, *operands)
            result = method(self, *(widen(o) if is_bf16(o) else o for o in operands))
            compares = result.data.dtype == np.bool_
            return narrow(result) if is_bf16(operands[decides]) and not compares else result

        return compute

    for name, decides in (
        ("unary_op", 0), ("create_erf", 0), ("create_rsqrt", 0), ("binary_op", 0),
        ("ternary_op", 2), ("create_fma", 2), ("create_dot", 2),
    ):  # fmt: skip
        setattr(builder, name, in_fp32(getattr(builder, name), decides))

    cast = builder.cast_impl

    def cast_impl(self, source, target):
        if is_bf16(source) and target.scalar != tl.bfloat16:
            return cast(self, widen(source), target)
        if target.scalar == tl.bfloat16 and not is_bf16(source):
            return narrow(
                cast(self, source, target.with_element_ty(tl.float32) if target.is_block() else tl.float32)
            )
        return cast(self, source, target)

    builder.cast_impl = cast_impl
    builder.get_bf16 = lambda self, value: narrow(handle(np.array([value], dtype=np.float32), tl.float32))
