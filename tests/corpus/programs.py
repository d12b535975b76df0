"""Persistent kernels whose tiles follow from ids in other ways than by addresses: what a tile stores follows from its own id
or from its program's, or branches on one."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, unset


@triton.jit
def by_tile(x_ptr, y_ptr, n, B: tl.constexpr):
    """A while loop over tiles. The id of a tile is data, and what its branches follow from."""
    tile = tl.program_id(0)
    while tile < tl.cdiv(n, B):
        at = tile * B + tl.arange(0, B)
        x = tl.load(x_ptr + at, mask=at < n)
        if tile % 2 == 1:
            x = -x
        tl.store(y_ptr + at, x + tile, mask=at < n)
        tile += tl.num_programs(0)


@triton.jit
def by_program(x_ptr, y_ptr, n, B: tl.constexpr):
    """The program that runs a tile is data, so tiles have to stay with their programs."""
    pid = tl.program_id(0)
    for tile in range(pid, tl.cdiv(n, B), tl.num_programs(0)):
        at = tile * B + tl.arange(0, B)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + pid, mask=at < n)


@triton.jit
def by_next_tile(x_ptr, y_ptr, n, B: tl.constexpr):
    """The id of the program's next tile is data, and counted on through a variable of its own."""
    tile = tl.program_id(0)
    while tile < tl.cdiv(n, B):
        at = tile * B + tl.arange(0, B)
        following = tile + tl.num_programs(0)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + following, mask=at < n)
        tile = following


def added(kernel, seed, programs, wanted, **more):
    n, block = 250, 32
    x, tile = normal((n,), seed), torch.arange(n) // block
    args = {"x_ptr": x, "y_ptr": unset((n,)), "n": n, "B": block}
    return Case(kernel, (programs,), args, {"y_ptr": wanted(x, tile)}, gather={"x_ptr": 0}, **more)


@case
def the_id_of_a_tile_as_data(seed):
    return added(
        by_tile, seed, 3, lambda x, tile: torch.where(tile % 2 == 1, -x, x) + tile, axes={"n": cdiv(250, 32)},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@case
def the_id_of_a_program_as_data(seed):
    return added(by_program, seed, 3, lambda x, tile: x + tile % 3, axes=(3,))


@case
def the_id_of_the_next_tile_as_data(seed):
    return added(by_next_tile, seed, 8, lambda x, tile: x + (tile + 8), axes=(8,))
