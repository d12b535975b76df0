"""Communication plans: what moves where, after what. Thin names over the C++ plan layer.

Templates write the plans of well-known collectives. All take the mesh, the tensor (the whole, not the shard) and

    axis        the tensor axis along which shards, or the chunks of a whole, are cut
    split       chunks per shard
    pull        the receiver reads, instead of the sender writing
    algorithm   who sends what to whom; "auto" is the first of those listed
    over        names of mesh axes: one collective in each group of ranks that differ only there
    group       or only these ranks, in this order
    inner       of the two-level algorithms: ranks of the inner level; 0 for the mesh's last axis
    produced    the kernel writes what ranks start with, tile by tile
    transient   what arrives is for the kernel only, and need not be there at the end (so that tiles may fetch it inline, and read
                their rank's own part where the caller has it)
    minor_axis, minor_split
                cut along a second axis too: all first slices travel before any second one
    minor_sizes or the slices' extents, such as (512, 1536, 6144)
    lower       "template"; or "direct": one collective op on each rank, which a library executes (with axis, over,
                group and produced only); or "synth": the transfers that a search finds for a `topology` (with the
                same options, split and seed)

and raise UsageError, a ValueError, with what is wrong. Each C++ header (include/syncopate/plan/templates/NAME.hpp) draws who sends
what when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from . import _syncopate
from ._syncopate import (
    Builder,
    Plan,
    Simulation,
    attended_rows,
    attention,
    import_plan,
    join,
    lower,
    push_exchange,
    push_groups,
    push_reduce,
    push_reduce_to_all,
    shard_rows,
    simulate,
    synthesise,
    topologies,
)
from .call.arguments import dtype_name
from .face import placements

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "BACKENDS",
    "INLINE",
    "Builder",
    "Mesh",
    "Plan",
    "Simulation",
    "Tensor",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "attended_rows",
    "attention",
    "broadcast",
    "double_ring",
    "from_json",
    "from_placements",
    "import_plan",
    "join",
    "lower",
    "push_exchange",
    "push_groups",
    "push_reduce",
    "push_reduce_to_all",
    "reduce_scatter",
    "ring",
    "shard_rows",
    "simulate",
    "synthesise",
    "topologies",
]


class Options(TypedDict, total=False):
    """What all templates take beside what each names itself; above."""

    algorithm: str
    group: Sequence[int]
    inner: int
    minor_axis: int
    minor_sizes: Sequence[int]
    minor_split: int
    over: Sequence[str]
    produced: bool
    pull: bool
    transient: bool
    # with lower="synth"
    seed: int
    topology: str


#: How a transfer may be carried out, by name; which are legal for one, fuse says.
BACKENDS: tuple[str, ...] = _syncopate.BACKENDS
INLINE = ("tma_inline", "ldst_inline")  # those by which the kernel itself sends and fetches


@dataclass(frozen=True)
class Mesh:
    """Named axes; a rank is the row-major index of its coordinates."""

    axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int) -> None:
        object.__setattr__(self, "axes", tuple(axes.items()))

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"

    @property
    def size(self) -> int:
        """How many ranks it has."""
        ranks = 1
        for _, size in self.axes:
            ranks *= size
        return ranks


@dataclass(frozen=True)
class Tensor:
    """A logical global array: name, shape in elements, dtype: its name ("bf16", "fp16", "fp32", …), or torch's dtype, which
    becomes that."""

    name: str
    shape: tuple[int, ...]
    dtype: str | torch.dtype = "bf16"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "shape", tuple(index(extent) for extent in self.shape))
        except TypeError:
            raise TypeError(
                f"shape: expected whole numbers, (rows, columns, …), got {self.shape!r}"
            ) from None
        object.__setattr__(self, "dtype", dtype_name(self.dtype))


def _make(name: str, mesh: Mesh, tensor: Tensor, lower: str, options: dict[str, object]) -> Plan:
    if lower not in ("template", "direct", "synth"):
        raise ValueError(f'{name}: lower is "{lower}"; expected "template", "direct" or "synth"')
    if lower == "synth":
        search = {key: options.pop(key) for key in ("split", "topology", "seed") if key in options}
        return _syncopate.lower(_make(name, mesh, tensor, "direct", options), "synth", **search)
    return _syncopate.make_plan(name, mesh, tensor, lower == "direct", **options)


def all_gather(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    peer_by_peer: bool = False,
    lower: str = "template",
    **options: Unpack[Options],
) -> Plan:
    """Every rank holds a shard of `tensor` and ends with the whole.

    Algorithms: direct, ring, bidirectional, double_ring, hierarchical. `peer_by_peer` (direct): all minor
    slices for one peer before the next peer's, instead of every peer's first slice before any second one.
    """
    return _make(
        "all_gather", mesh, tensor, lower, dict(options, axis=axis, split=split, peer_by_peer=peer_by_peer)
    )


def reduce_scatter(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    reduce: str = "sum",
    lower: str = "template",
    **options: Unpack[Options],
) -> Plan:
    """Every rank holds its contribution to the whole and ends with one shard, reduced over all.

    Algorithms: direct, ring, hierarchical. `reduce`: "sum" or "max".
    """
    return _make("reduce_scatter", mesh, tensor, lower, dict(options, axis=axis, split=split, reduce=reduce))


def all_reduce(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    reduce: str = "sum",
    lower: str = "template",
    **options: Unpack[Options],
) -> Plan:
    """Every rank holds its contribution to the whole and ends with the whole, reduced over all; all with the same bits.

    Algorithms: two_shot, one_shot, ring, hierarchical. `reduce`: "sum" or "max".
    """
    return _make("all_reduce", mesh, tensor, lower, dict(options, axis=axis, split=split, reduce=reduce))


def all_to_all(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    to_axis: int = -1,
    lower: str = "template",
    **options: Unpack[Options],
) -> Plan:
    """Every rank holds a shard along `axis` and ends with one along `to_axis` (-1: the next axis).

    Algorithms: direct, hierarchical.
    """
    return _make("all_to_all", mesh, tensor, lower, dict(options, axis=axis, split=split, to_axis=to_axis))


def broadcast(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    root: int = 0,
    lower: str = "template",
    **options: Unpack[Options],
) -> Plan:
    """Everyone ends with what the member at position `root` of the group has.

    Algorithms: direct, chain, tree.
    """
    return _make("broadcast", mesh, tensor, lower, dict(options, axis=axis, split=split, root=root))


def ring(
    mesh: Mesh, tensor: Tensor, axis: int = 0, split: int = 1, *, steps: int = -1, **options: Unpack[Options]
) -> Plan:
    """Shards are passed on round a ring, `steps` times (-1: until everyone has had all), as in ring attention.

    Algorithms: ring, bidirectional.
    """
    return _make("ring", mesh, tensor, "template", dict(options, axis=axis, split=split, steps=steps))


def double_ring(
    mesh: Mesh, tensor: Tensor, axis: int = 0, split: int = 1, **options: Unpack[Options]
) -> Plan:
    """The same in inner rings inside nodes while an outer ring moves shards between them."""
    return _make("double_ring", mesh, tensor, "template", dict(options, axis=axis, split=split))


Rows = list[tuple[int, int]]  # runs of rows of a sequence: (begin, end), rising


def from_json(text: str, name: str = "<plan>") -> Plan:
    """Reads a plan of schema syncopate.plan/1; raises ValueError with the JSON path of what is wrong."""
    return _syncopate.plan_from_json(text, name)


def from_placements(
    mesh: Any,
    tensor: Any,
    before: Sequence[Any],
    after: Sequence[Any],
    *,
    name: str = "A",
    split: int = 1,
    produced: bool = False,
) -> Plan:
    """The plan that takes `tensor` from the placements `before` to `after`, as DTensor.redistribute would.

    `mesh`: a torch DeviceMesh over ranks 0 … n-1 in order, or a Mesh. `tensor`: a Tensor; or a torch tensor or
    DTensor, whose (global) shape and dtype are taken and which the plan calls `name`. `before` and `after`: one
    torch.distributed.tensor placement for each axis of the mesh: Shard, Replicate, Partial ("sum" or "max"). Uneven
    shards are cut as DTensor does. `split`: chunks into which each piece that moves is cut. `produced`: a kernel
    writes what is there before.

    Raises InputError for what data movement cannot do, such as Replicate to Partial, and ValueError for placements
    or meshes that cannot be told in partition IR.
    """
    axes = list(mesh.axes) if isinstance(mesh, Mesh) else placements.axes_of(mesh)
    if not isinstance(tensor, Tensor):
        tensor = Tensor(name, tuple(tensor.shape), tensor.dtype)
    program = {
        "schema": "syncopate.partition/1",
        "mesh": [list(axis) for axis in axes],
        "tensors": {
            tensor.name: {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "before": placements.lists(axes, len(tensor.shape), before, "before"),
                "after": placements.lists(axes, len(tensor.shape), after, "after"),
                "split": split,
                "produced": produced,
            }
        },
    }
    try:
        return import_plan(json.dumps(program), "partition", name="from_placements")
    except _syncopate.InputError as error:
        # Without the place in the text made here, which the caller does not see.
        message = re.sub(r"^from_placements:\d+:\d+: ", "from_placements: ", str(error))
        raise _syncopate.InputError(message) from None


def mesh_of(ranks: int | Sequence[int]) -> Mesh:
    """A mesh of one axis "gpu" with `ranks` ranks."""
    return Mesh(gpu=int(ranks if isinstance(ranks, int) else len(ranks)))
