"""Communication plans: what moves where, after what. Thin names over the C++ plan layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _syncopate
from ._syncopate import Plan

__all__ = ["Mesh", "Plan", "Tensor", "all_gather", "from_json", "push_exchange", "push_reduce"]


@dataclass(frozen=True)
class Mesh:
    """Named axes; a rank is the row-major index of its coordinates."""

    axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int) -> None:
        object.__setattr__(self, "axes", tuple(axes.items()))


@dataclass(frozen=True)
class Tensor:
    """A logical global array: name, shape in elements, dtype name ("bf16", "fp16", "fp32", …)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "bf16"


def all_gather(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    pull: bool = False,
    minor_axis: int = -1,
    minor_split: int = 1,
    engine_peers: int = 0,
) -> Plan:
    """The direct all-gather: every rank sends its shard of `tensor` along `axis` to every other rank.

    `split`: chunks per shard along `axis`. `minor_axis`, `minor_split`: cut each chunk further along another axis;
    all peers' first slices then travel before any second slice. `pull`: the receiver copies, not the sender.
    `engine_peers`: so many of each rank's peers, the last ones, are served by the chunk engine (ldst_dedicated) beside
    the copy engine; on cuda only.
    """
    return _syncopate.all_gather(
        list(mesh.axes),
        tensor.name,
        list(tensor.shape),
        tensor.dtype,
        axis,
        split,
        pull,
        minor_axis,
        minor_split,
        engine_peers,
    )


def push_reduce(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    reduce: str = "sum",
    all: bool = False,
    produced: bool = True,
) -> Plan:
    """Reduce-scatter of what every rank's kernel makes: each pushes its contribution to a shard of `tensor` along `axis`
    to the shard's owner, where contributions are reduced ("sum" or "max") in rank order.

    `split`: chunks per shard. `all`: all-reduce, each summed chunk goes on to all ranks. `produced` False: the
    contributions are held initially.
    """
    return _syncopate.push_reduce(
        list(mesh.axes), tensor.name, list(tensor.shape), tensor.dtype, axis, split, reduce, all, produced
    )


def push_exchange(mesh: Mesh, tensor: Tensor, to: str, split: int = 1, *, produced: bool = True) -> Plan:
    """The all-to-all of equal buffers: block p (of rows) of each rank's own `tensor` becomes block r of `to` on rank p.

    `split`: chunks per block. `produced` False: `tensor` is held initially, not made by the kernel.
    """
    return _syncopate.push_exchange(
        list(mesh.axes), tensor.name, to, list(tensor.shape), tensor.dtype, split, produced
    )


def from_json(text: str, name: str = "<plan>") -> Plan:
    """Reads a plan of schema syncopate.plan/1; raises ValueError with the JSON path of what is wrong."""
    return _syncopate.plan_from_json(text, name)


def mesh_of(ranks: int | Sequence[int]) -> Mesh:
    """A mesh of one axis "gpu" with `ranks` ranks."""
    return Mesh(gpu=int(ranks if isinstance(ranks, int) else len(ranks)))
