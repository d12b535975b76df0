"""Rotary position embedding, in both layouts of pairs, with a gradient flag and with positions that are data."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, unset


@triton.jit
def halves(
    x_ptr, cos_ptr, sin_ptr, out_ptr, T, H, D: tl.constexpr, BLOCK_H: tl.constexpr, BACKWARD: tl.constexpr
):
    """The first half of a head pairs with the second; x [T, H, D], cos and sin [T, D / 2]."""
    t = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + t * (D // 2) + d)
    sin = tl.load(sin_ptr + t * (D // 2) + d)
    if BACKWARD:
        sin = -sin
    at = (t * H + heads[:, None]) * D + d[None, :]
    mask = (heads < H)[:, None]
    left = tl.load(x_ptr + at, mask=mask, other=0.0)
    right = tl.load(x_ptr + at + D // 2, mask=mask, other=0.0)
    tl.store(out_ptr + at, left * cos[None, :] - right * sin[None, :], mask=mask)
    tl.store(out_ptr + at + D // 2, right * cos[None, :] + left * sin[None, :], mask=mask)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)


def angles(t, d):
    at = torch.arange(t)[:, None] * (0.5 ** torch.arange(d // 2))[None]
    return at.cos(), at.sin()


@case
def pairs_of_halves(seed):
    t, h, d = 5, 3, 16
    x, (cos, sin) = normal((t, h, d), seed), angles(t, d)
    args = {
        "x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "out_ptr": unset((t, h, d)), "T": t, "H": h, "D": d, "BLOCK_H": 2,
        "BACKWARD": True,
    }  # fmt: skip
    return Case(
        halves, (t, 2), args, {"out_ptr": rotated(x, cos, -sin)}, tolerance=1e-6, axes=(5, 2), gather={"x_ptr": 0},
        scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def interleaved(x_ptr, cos_ptr, sin_ptr, out_ptr, T, BT: tl.constexpr, D: tl.constexpr):
    """Neighbours pair: tl.split takes them apart, tl.join and tl.reshape put them together."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    mask = (t < T)[:, None]
    d = tl.arange(0, D)
    half = tl.arange(0, D // 2)
    x = tl.load(x_ptr + t[:, None] * D + d[None, :], mask=mask, other=0.0)
    even, odd = tl.split(tl.reshape(x, (BT, D // 2, 2)))
    cos = tl.load(cos_ptr + t[:, None] * (D // 2) + half[None, :], mask=mask, other=0.0)
    sin = tl.load(sin_ptr + t[:, None] * (D // 2) + half[None, :], mask=mask, other=0.0)
    y = tl.join(even * cos - odd * sin, odd * cos + even * sin).reshape(BT, D)
    tl.store(out_ptr + t[:, None] * D + d[None, :], y, mask=mask)


@case
def pairs_of_neighbours(seed):
    t, d = 11, 16
    x, (cos, sin) = normal((t, d), seed), angles(t, d)
    even, odd = x[:, ::2], x[:, 1::2]
    wanted = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(t, d)
    args = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "out_ptr": unset((t, d)), "T": t, "BT": 4, "D": d}
    return Case(
        interleaved, (3,), args, {"out_ptr": wanted}, tolerance=1e-6, axes=(3,), gather={"x_ptr": 0},
        scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def at_positions(x_ptr, pos_ptr, cos_ptr, sin_ptr, out_ptr, D: tl.constexpr):
    """A token's angles are those of its position, which is data."""
    t = tl.program_id(0)
    p = tl.load(pos_ptr + t)
    d = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + p * (D // 2) + d)
    sin = tl.load(sin_ptr + p * (D // 2) + d)
    left = tl.load(x_ptr + t * D + d)
    right = tl.load(x_ptr + t * D + D // 2 + d)
    tl.store(out_ptr + t * D + d, left * cos - right * sin)
    tl.store(out_ptr + t * D + D // 2 + d, right * cos + left * sin)


@triton.jit
def at_positions_stated(x_ptr, pos_ptr, cos_ptr, sin_ptr, out_ptr, D: tl.constexpr):
    # @sy.reads cos_ptr[:, :]
    # @sy.reads sin_ptr[:, :]
    t = tl.program_id(0)
    p = tl.load(pos_ptr + t)
    d = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + p * (D // 2) + d)
    sin = tl.load(sin_ptr + p * (D // 2) + d)
    left = tl.load(x_ptr + t * D + d)
    right = tl.load(x_ptr + t * D + D // 2 + d)
    tl.store(out_ptr + t * D + d, left * cos - right * sin)
    tl.store(out_ptr + t * D + D // 2 + d, right * cos + left * sin)


def positions_case(kernel, seed, **more):
    t, d = 6, 16
    x, (cos, sin), pos = (
        normal((t, d), seed),
        angles(9, d),
        torch.tensor([8, 0, 3, 3, 1, 7], dtype=torch.int32),
    )
    wanted = rotated(x[:, None], cos[pos.long()], sin[pos.long()])[:, 0]
    args = {"x_ptr": x, "pos_ptr": pos, "cos_ptr": cos, "sin_ptr": sin, "out_ptr": unset((t, d)), "D": d}
    return Case(kernel, (t,), args, {"out_ptr": wanted}, tolerance=1e-6, **more)


@case
def positions_from_memory(seed):
    return positions_case(
        at_positions, seed,
        refused="the address `cos_ptr + p * (D // 2) + d` cannot be known before the kernel runs: it depends on data "
        "loaded by `tl.load(pos_ptr + t)`",
    )  # fmt: skip


@case
def positions_with_directives(seed):
    return positions_case(
        at_positions_stated,
        seed,
        inexact="any position",
        axes=(6,),
        gather={"x_ptr": 0},
        scatter={"out_ptr": 0},
    )
