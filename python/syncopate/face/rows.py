"""The rows of a sequence that each rank holds, of tensors: what the operators that take such shards mean by `sharding`.

    q = sy.shard_rows(whole_q, group, sharding="zigzag", dim=2)         [B, H, S, D] → [B, H, rows, D]
    o, _ = sy.ops.attention(q, k, v, group, causal=True, sharding="zigzag")
    whole_o = sy.unshard_rows(o, group, sharding="zigzag", dim=2)

    2 ranks         contiguous      rank 0 | rank 1                  parts of S / ranks rows
                    zigzag          rank 0 | rank 1 | rank 1 | rank 0    … of S / (2 · ranks) rows
                    documents       zigzag in each document, cut at multiples of 128 rows where each rank then has some: so tiles
                                    are whole, and rows of K and V that a rank does not see are not sent to it

Under a causal mask the last rows see most. With "zigzag", each rank has rows from either end, and so as much work as the others:
with "contiguous" the last of W ranks has (2 W - 1) / W times the mean, and the others wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .. import _syncopate, plans
from ..call.arguments import require_whole
from ..call.same_call import is_fake, require_same_call
from ..group import Group, of_process_group, rank_and_size, the_process_group
from ..torch.unfused import gather, scatter

SHARDINGS = ("contiguous", "zigzag", "documents")


def shard_rows(
    x: torch.Tensor,
    group: Group | Any | None = None,
    *,
    dim: int,
    sharding: str = "contiguous",
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
) -> torch.Tensor:
    """This rank's rows of a tensor that is whole, along the axis `dim`: those that sy.ops.attention means by the same `sharding`
    and `cu_seqlens` (where documents begin, and the end of the last). Of token ids, positions and targets as well as
    of q, k and v. Nothing is sent; differentiable. `group`: a torch process group; default: the world."""
    dim = _axis(x, dim)
    rank, size = rank_and_size(group)
    rows = rows_of_ranks(x.shape[dim], size, sharding, cu_seqlens)[rank]
    return torch.cat([x.narrow(dim, begin, end - begin) for begin, end in rows or [(0, 0)]], dim)


def unshard_rows(
    shard: torch.Tensor,
    group: Any | None = None,
    *,
    dim: int,
    sharding: str = "contiguous",
    length: int | None = None,
    cu_seqlens: Sequence[int] | torch.Tensor | None = None,
) -> torch.Tensor:
    """The whole, in the order of the sequence, of what shard_rows gave each rank. `length`: rows of the whole; default: as
    many on each rank as here. Collective over `group`, a torch process group. Differentiable: a shard's gradient is the sum
    over ranks of those of the whole, so that a loss that every rank computes of all of it counts once a rank."""
    dim = _axis(shard, dim)
    rank, size = rank_and_size(group)
    s = shard.shape[dim] * size if length is None else require_whole("length", length)
    rows = rows_of_ranks(s, size, sharding, cu_seqlens)
    counts = [sum(end - begin for begin, end in own) for own in rows]
    if shard.shape[dim] != counts[rank]:
        raise ValueError(
            f"expected {counts[rank]} rows of {s} along axis {dim} ({sharding}, rank {rank}), got {list(shard.shape)}: say the "
            "length of the whole"
        )
    _require_alike(shard, group, dim, sharding, length, documents_of(cu_seqlens, s))
    return whole_of(shard.movedim(dim, 0), rows, s, group).movedim(0, dim)


#: By process group, the gathers that its ranks have compared: the collective itself ends the process where they differ, or hangs.
_alike: WeakKeyDictionary[Any, set[tuple[Any, ...]]] = WeakKeyDictionary()


def _require_alike(
    shard: torch.Tensor, group: Any, dim: int, sharding: str, length: int | None, documents: Sequence[int]
) -> None:
    """Raises ValueError on all ranks where they gather tensors of other shapes or dtypes, or otherwise. Collective the first time for
    each kind of call: what a rank knows it does not ask for again, so where calls differ later the collective's deadline tells."""
    group = group.process_group if isinstance(group, Group) else the_process_group(group)
    if group is None or torch.compiler.is_compiling():
        return
    # Not the documents, which are others in each step.
    kind = tuple(shard.shape), shard.dtype, dim, sharding, length
    known = _alike.setdefault(group, set())
    if kind in known or group.size() == 1 or is_fake(group.group_name):
        return
    shape = list(shard.shape)
    if length is not None:  # ranks may have unequal shards of it
        shape[dim] = length
    how = {"dim": dim, "sharding": sharding} | ({"documents": documents} if documents else {})
    try:
        members = of_process_group(group, "cuda" if shard.is_cuda else "host")
        require_same_call("unshard_rows", members, tuple(shape), f"{shard.dtype} {how}")
    except ValueError as error:
        hint = "ranks that hold different numbers of rows say `length`, the rows of the whole"
        raise ValueError(f"{error}; {hint}" if length is None else str(error)) from None
    known.add(kind)


def whole_of(shard: torch.Tensor, rows: Sequence[plans.Rows], s: int, group: Any) -> torch.Tensor:
    """The `s` rows along axis 0, in the order of the sequence, of which each rank has those of `rows`. Collective."""
    if s == 0:
        return shard.clone()  # nothing is sent
    counts = [sum(end - begin for begin, end in own) for own in rows]
    short = max(counts) - len(shard)  # ranks send alike many
    padded = torch.cat([shard, shard.new_zeros(short, *shard.shape[1:])]) if short else shard
    whole = _gathered(padded, group)
    place = torch.empty(s, dtype=torch.int64)  # of each row of the sequence, in what is gathered
    for other, own in enumerate(rows):
        held = torch.cat([torch.arange(begin, end) for begin, end in own or [(0, 0)]])
        place[held] = torch.arange(len(held)) + other * max(counts)
    return whole.index_select(0, place.to(whole.device))


def rows_of_ranks(
    length: int, ranks: int, sharding: str, cu_seqlens: Sequence[int] | torch.Tensor | None = None
) -> list[plans.Rows]:
    """Of each rank, the runs of rows that it holds."""
    documents = documents_of(cu_seqlens, length)
    return _syncopate.ops.usual_rows(length, documents, ranks, require_sharding(sharding))


def require_sharding(sharding: str) -> str:
    if sharding not in SHARDINGS:
        raise ValueError(f"there is no sharding {sharding!r}: one of {', '.join(SHARDINGS)}")
    return sharding


def documents_of(
    cu_seqlens: Sequence[int] | torch.Tensor | None, s: int, *, counted: bool = False
) -> list[int]:
    """Where each document begins, and the end of the last; empty: there is one. An offset that is repeated, as where a list is
    filled up to a fixed length, is a document of no rows, and left out. Raises ValueError for what is no such list. `counted`: S is a
    rank's own rows times the ranks."""
    if cu_seqlens is None:
        return []
    given, values = cu_seqlens, []
    # What is no list, what is no number, and what has no values, as on the device meta.
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        given = given.tolist() if isinstance(given, torch.Tensor) else given
        given = list(given)
        if all(int(n) == n for n in given):
            values = [int(n) for n in given]
    rising = len(values) >= 2 and all(a <= b for a, b in pairwise(values))
    if not rising or values[0] != 0 or values[-1] != s:
        said = "" if not (counted and rising) else "; ranks that hold different numbers of rows say `length`"
        raise ValueError(f"cu_seqlens: expected offsets that rise from 0 to {s}, got {values or given}{said}")
    made = sorted(set(values))
    return made if len(made) > 2 else []


@contextmanager
def unequal_rows(length: int | None) -> Iterator[None]:
    """Around a call that takes its own rows for as many as each rank has, unless `length` is said: where calls differ, it may be."""
    try:
        yield
    except ValueError as error:
        said = set(re.findall(r"attention\w* \[\d+, \d+, \d+, (\d+),", str(error)))
        if length is None and "calls differ" in str(error) and len(said) > 1:
            raise ValueError(
                f"{error}; ranks that hold different numbers of rows say `length`, the rows of the whole sequence"
            ) from error
        raise


def _axis(x: torch.Tensor, dim: int) -> int:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(x).__name__}")
    if hasattr(x, "placements"):
        raise TypeError("a DTensor says itself which rows a rank holds: give its to_local()")
    require_whole("dim", dim)
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: a tensor of shape {list(x.shape)} has no axis {dim}")
    return dim % x.dim()


class _Moved(torch.autograd.Function):
    """x [rows, …] of all ranks, one behind another; or with `adds` the adjoint, this rank's part of their sum. Each is the other's
    derivative, of any order: torch's collectives would leave second ones to themselves, and pass on this rank's alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group_name: str, adds: bool) -> torch.Tensor:
        ctx.group_name, ctx.adds = group_name, adds
        move = scatter if adds else gather
        return move(x.reshape(len(x), -1), group_name).view(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _Moved.apply(grad, ctx.group_name, not ctx.adds), None, None


def _gathered(x: torch.Tensor, group: Any | None) -> torch.Tensor:
    group = group.process_group if isinstance(group, Group) else the_process_group(group)
    if group is None:
        raise ValueError("group: it gathers by torch, so it takes a torch process group")
    return _Moved.apply(x, group.group_name, False)
