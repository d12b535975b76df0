"""The kernels of a chain as one launch: each program runs its tiles of the first kernel, then those of the second, and so on.

For persistent kernels of one grid. The launch is cooperative, so all programs start at once, whatever else the GPU does: then
whoever waits, waits for tiles that some running program makes before it comes to the same stage. It saves the launches,
and no stage waits for a free multiprocessor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..call.prepared import MOST_PACKED
from ..device import jit

PREFIX = "s{}_"


def single_source(kernels: Sequence[Any]) -> str:
    """The kernel that calls all of these (JITFunctions in modules that are loaded), each with its own parameters."""
    imports, parameters, calls = [], [], []
    for index, kernel in enumerate(kernels):
        prefix = PREFIX.format(index)
        module, name = kernel.__module__, kernel.__name__
        imports.append(f"from {module} import {name} as sy_stage_{index}")
        own = []
        for parameter in kernel.params:
            constexpr = ": tl.constexpr" if parameter.is_constexpr else ""
            parameters.append(f"    {prefix}{parameter.name}{constexpr},")
            own.append(f"{prefix}{parameter.name}")
        calls.append(f"    sy_stage_{index}({', '.join(own)})")
    return "\n".join(
        [
            '"""A chain of kernels as one launch."""',
            "import triton",
            "import triton.language as tl",
            *imports,
            "",
            "",
            "@triton.jit",
            "def sy_chain(",
            *parameters,
            "):",
            *calls,
            "",
        ]
    )


def single_kernel(kernels: Sequence[Any]) -> Any:
    for kernel in kernels:
        if kernel.__module__ not in sys.modules:
            raise ValueError(f"{kernel.__name__} is of no module that is loaded")
    return jit.load_module(single_source(kernels), "sy_chain").sy_chain


def joined(kernels: Sequence[Any], arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arguments of all stages by the names that they have in the one kernel, defaults filled in."""
    return {
        PREFIX.format(index) + parameter.name: value
        for index, (kernel, given) in enumerate(zip(kernels, arguments, strict=True))
        for parameter, value in zip(kernel.params, jit.in_order(kernel, given), strict=True)
    }


def why_not(
    grids: Sequence[tuple[int, ...]], options: Sequence[Mapping[str, Any]], overlaps: Sequence[bool]
) -> str:
    """Why stages cannot be one launch; empty: they can."""
    if len({tuple(grid) for grid in grids}) > 1:
        return f"their grids differ: {', '.join(str(tuple(grid)) for grid in grids)}"
    if any(n != 1 for n in grids[0][1:]):
        return "their grid has more than one axis"
    if any(dict(chosen) != dict(options[0]) for chosen in options):
        return "their launch options differ"
    if not all(overlaps[1:]):
        return "a stage overwrites what an earlier one touches"
    return ""


class SingleLaunch:
    """That kernel, compiled for the arguments of one prepared chain; on a GPU."""

    def __init__(self, prepared: Any, given: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        self._prepared = prepared
        self._kernels = [stage.kernel for stage in prepared.stages]
        self._grid = list(prepared.stages[0].grid)
        one = single_kernel(self._kernels)
        full, grid = self._arguments(given), tuple(self._grid)
        self._compiled = jit.Variants(
            lambda arguments: jit.compile_kernel(one, arguments, grid, dict(options), cooperative=True), full
        )
        self._packed: dict[Any, Any] = {}

    def resident(self, multiprocessors: int) -> bool:
        """Whether all programs run at once."""
        return self._grid[0] <= multiprocessors * self._compiled.first.kernel.max_programs_per_multiprocessor

    def _arguments(self, given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        full = [self._prepared.arguments(index, items) for index, items in enumerate(given)]
        return joined(self._kernels, full)

    def launch(self, key: Any, given: Sequence[Mapping[str, Any]]) -> None:
        packed = self._packed.get(key)
        if packed is None:
            if len(self._packed) >= MOST_PACKED:
                self._packed.clear()
            packed = self._packed[key] = self._compiled.pack(self._arguments(given))
        kernel, arguments = packed
        op, stream = self._prepared.op, jit.current_stream()
        op.begin_call(stream)
        ran = False
        try:
            kernel.launch(self._grid, stream, arguments)
            ran = True
        finally:
            op.end_call(stream, ran)
