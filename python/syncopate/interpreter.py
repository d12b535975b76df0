"""Running an emitted kernel in Triton's interpreter, on the very memory that the executor moves chunks in.

Triton's own grid executor copies every argument to the host before a launch and back after it. For memory that
other ranks write meanwhile, the copy back would undo their writes; here arguments are passed as they are.
"""

from __future__ import annotations

import os


def enable() -> None:
    """Makes Triton interpret kernels. Must run before triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"


def launch(kernel, grid: tuple[int, ...], arguments: dict[str, object]) -> None:
    """Runs every program of `grid`, one after the other (x outermost), with CPU tensors as arguments."""
    from triton.runtime.interpreter import GridExecutor

    class SharedMemoryExecutor(GridExecutor):
        def _init_args_hst(self, args_dev, kwargs):
            return args_dev, kwargs

        def _restore_args_dev(self, args_dev, args_hst, kwargs, kwargs_hst):
            pass

    function = getattr(kernel, "fn", kernel)
    if hasattr(kernel, "rewrite"):
        function = kernel.rewrite()
    SharedMemoryExecutor(function, kernel.arg_names, tuple(grid))(**arguments)
