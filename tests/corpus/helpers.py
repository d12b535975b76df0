"""Helpers that kernels of other files import, as public kernels do."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def grouped_order(pid, rows, columns, GROUP: tl.constexpr):
    """Tile `pid` of a grid of rows × columns, GROUP rows at a time, down the columns of each group."""
    width = GROUP * columns
    first = (pid // width) * GROUP
    height = min(rows - first, GROUP)
    return first + (pid % width) % height, (pid % width) // height


@triton.jit
def block_offsets(block, SIZE: tl.constexpr, limit):
    """Positions of a block and which of them are below `limit`."""
    at = block * SIZE + tl.arange(0, SIZE)
    return at, at < limit
