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
from typing import Any

import torch

from . import _syncopate
from ._syncopate import Plan, Simulation
from .call.arguments import dtype_name
from .face import placements

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
    "push_reduce",
    "push_reduce_to_all",
    "reduce_scatter",
    "ring",
    "shard_rows",
    "simulate",
    "synthesise",
    "topologies",
]

#: How a transfer may be carried out, by name; which are legal for one, fuse says.
BACKENDS: tuple[str, ...] = _syncopate.BACKENDS
INLINE = ("tma_inline", "ldst_inline")  # those by which the kernel itself sends and fetches


@dataclass(frozen=True)
class Mesh:
    """Named axes; a rank is the row-major index of its coordinates."""

    axes: tuple[tuple[str, int], ...]

    def __init__(self, **axes: int) -> None:
        object.__setattr__(self, "axes", tuple(axes.items()))

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


def _tensor(tensor: Tensor) -> tuple[str, list[int], str]:
    return (tensor.name, list(tensor.shape), tensor.dtype)


def _make(name: str, mesh: Mesh, tensor: Tensor, lower: str, options: dict[str, object]) -> Plan:
    if lower not in ("template", "direct", "synth"):
        raise ValueError(f'{name}: lower is "{lower}"; expected "template", "direct" or "synth"')
    if lower == "synth":
        search = {key: options.pop(key) for key in ("split", "topology", "seed") if key in options}
        return _lower(_make(name, mesh, tensor, "direct", options), "synth", **search)
    return _syncopate.make_plan(name, list(mesh.axes), _tensor(tensor), lower == "direct", **options)


def all_gather(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    peer_by_peer: bool = False,
    lower: str = "template",
    **options: object,
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
    **options: object,
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
    **options: object,
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
    **options: object,
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
    **options: object,
) -> Plan:
    """Everyone ends with what the member at position `root` of the group has.

    Algorithms: direct, chain, tree.
    """
    return _make("broadcast", mesh, tensor, lower, dict(options, axis=axis, split=split, root=root))


def ring(
    mesh: Mesh, tensor: Tensor, axis: int = 0, split: int = 1, *, steps: int = -1, **options: object
) -> Plan:
    """Shards are passed on round a ring, `steps` times (-1: until everyone has had all), as in ring attention.

    Algorithms: ring, bidirectional.
    """
    return _make("ring", mesh, tensor, "template", dict(options, axis=axis, split=split, steps=steps))


def double_ring(mesh: Mesh, tensor: Tensor, axis: int = 0, split: int = 1, **options: object) -> Plan:
    """The same in inner rings inside nodes while an outer ring moves shards between them."""
    return _make("double_ring", mesh, tensor, "template", dict(options, axis=axis, split=split))


def lower(
    plan: Plan,
    to: str | Sequence[str] = "template",
    *,
    algorithm: str = "auto",
    split: int = 1,
    pull: bool = False,
    inner: int = 0,
    topology: str | None = None,
    seed: int = 0,
) -> Plan:
    """`plan` with transfers in the place of its collectives.

    `to`: "template", "synth" (those that a search finds for `topology`, as of simulate(), and `seed`), or "direct",
    which leaves them; or several words, such as ["synth", "all_reduce=template", "2:5=direct"], for collectives of one
    kind, or for the one that op 5 of rank 2 is part of. The last that fits counts; without any, "template".
    `algorithm` is for each collective whose template has it; the others take their default. `split`: chunks per piece;
    0 with "synth": as many as are fastest.
    """
    words = [to] if isinstance(to, str) else list(to)
    return _syncopate.lower_collectives(plan, words, algorithm, split, pull, inner, topology, seed)


_lower = lower  # where a template's own option has that name


Box = Sequence[tuple[int, int]]
Place = tuple[int, str, Box]
Op = tuple[int, int]


class Builder:
    """A plan written as a program: say what is moved, one transfer after another; `after` follows from the data.

    A place is (rank, tensor name, box), a box one (begin, end) per axis. Ops are named (rank, index). What is wrong with
    a place is raised by build().
    """

    def __init__(self, mesh: Mesh, *, pull: bool = False) -> None:
        self._builder = _syncopate.Builder(list(mesh.axes), pull)

    def tensor(self, tensor: Tensor) -> str:
        """Adds a tensor and returns its name."""
        return self._builder.tensor(_tensor(tensor), False)

    def scratch(self, tensor: Tensor) -> str:
        """Adds staging space; where the name is taken, another one is made of it. Returns the name."""
        return self._builder.tensor(_tensor(tensor), True)

    def initial(self, place: Place, *, partial: bool = False) -> None:
        """What a rank holds before the first op: the value, or its contribution to a reduction."""
        self._builder.initial(place, partial)

    def produced(self, place: Place, *, partial: bool = False) -> None:
        """What the kernel will write there."""
        self._builder.produced(place, partial)

    def final(self, place: Place, *, of: str | Sequence[int] | None = None) -> None:
        """What a rank must hold at the end: the value, or with `of` the reduction over "all" or over these ranks."""
        if of is None:
            self._builder.final(place)
        else:
            self._builder.final_of(place, None if of == "all" else list(of))

    def transfer(
        self,
        source: Place,
        target: Place,
        *,
        reduce: str | None = None,
        after: Sequence[Op] = (),
        backend: str = "auto",
    ) -> Op:
        """Moves a chunk, or with `reduce` ("sum", "max") joins it to what the target holds. Returns the op's name."""
        return self._builder.transfer(source, target, reduce, list(after), backend)

    def build(self) -> Plan:
        """The plan; the builder is empty afterwards."""
        return self._builder.take()


def push_reduce(
    mesh: Mesh,
    tensor: Tensor,
    axis: int = 0,
    split: int = 1,
    *,
    reduce: str = "sum",
    all: bool = False,
    by_part: bool = False,
    pulled: int = 0,
    split_axis: int | None = None,
    backends: Sequence[str] = (),
) -> Plan:
    """Reduce-scatter of what every rank's kernel makes: each pushes its contribution to a shard of `tensor` along `axis`
    to the shard's owner, where contributions are reduced ("sum" or "max") in rank order.

    `split`: chunks per shard, along `split_axis` (default: `axis`). `all`: all-reduce, each summed chunk goes on to all
    ranks. `by_part`: the first chunks of all shards go first, then the second ones, …; else shard by shard. `pulled`: so many
    of a shard's contributions, those made last, are pulled by its owner instead (ranks - 1: all), and the chunk engine, or by
    ldst_inline a sum's kernel, adds them up where they are. `backends`: by what the contributions to the next rank go, to the
    one after it, …; open past the end.
    """
    shape = list(tensor.shape)
    return _syncopate.push_reduce(
        list(mesh.axes),
        tensor.name,
        shape,
        tensor.dtype,
        axis,
        split,
        reduce,
        all,
        by_part,
        pulled,
        split_axis,
        list(backends),
    )


def push_reduce_to_all(
    mesh: Mesh,
    tensor: Tensor,
    to: str,
    split: int = 1,
    *,
    split_axis: int = 0,
    reduce: str = "sum",
    all: bool = True,
    rows: int | None = None,
) -> Plan:
    """The all-reduce in one step of what every rank's kernel makes: each sends all of its contribution to `tensor` to every
    rank, and each sums all of it into `to`, in rank order. For little data, where two steps take longer than the bytes.
    `all` False: a reduce-scatter that sends as much, of which each rank ends with its even share of rows; tiles need not end
    where shares do. `rows`: so many are asked for, the others pad the tensor to whole tiles.

    `split`: chunks along `split_axis`.
    """
    return _syncopate.push_reduce_to_all(
        list(mesh.axes),
        tensor.name,
        to,
        list(tensor.shape),
        tensor.dtype,
        split,
        split_axis,
        reduce,
        all,
        rows,
    )


def push_exchange(
    mesh: Mesh,
    tensor: Tensor,
    to: str,
    split: int = 1,
    *,
    produced: bool = True,
    transient: bool = False,
    for_kernel: bool = False,
    minor_axis: int = -1,
    minor_split: int = 1,
    minor_sizes: Sequence[int] = (),
    peer_by_peer: bool = False,
) -> Plan:
    """The all-to-all of equal buffers: block p (of rows) of each rank's own `tensor` becomes block r of `to` on rank p.

    `split`: chunks per block. `produced` False: `tensor` is held initially, not made by the kernel. `transient`, then: ranks
    pull their blocks, for their kernels only. `for_kernel`: blocks are pushed, for the kernels only; a kernel that can reads
    the own one where the user has it. `minor_axis`, `minor_split`, `minor_sizes` cut what leaves along a second axis;
    `peer_by_peer`: all slices for one peer before the next one's, instead of every peer's first before any second.
    """
    return _syncopate.push_exchange(
        list(mesh.axes),
        tensor.name,
        to,
        list(tensor.shape),
        tensor.dtype,
        split,
        produced,
        transient,
        for_kernel,
        minor_axis,
        minor_split,
        list(minor_sizes),
        peer_by_peer,
    )


Rows = list[tuple[int, int]]  # runs of rows of a sequence: (begin, end), rising


def shard_rows(
    length: int,
    ranks: int,
    sharding: str = "contiguous",
    block: int = 1,
    documents: Sequence[int] = (),
    group: int = 1,
) -> list[Rows]:
    """The rows of a sequence that each rank holds, cut at multiples of `block`: "contiguous", "zigzag" (the r-th and the r-th
    from behind of 2 · ranks parts) or "documents" (so in each; `documents`: where each begins, and the end of the
    last). `group`: so many neighbours share tiles, and only what all of them hold is cut so."""
    return _syncopate.shard_rows(length, list(documents), ranks, sharding, block, group)


def attended_rows(
    length: int,
    rows: Rows,
    *,
    causal: bool = False,
    window: int = 0,
    block: int = 1,
    documents: Sequence[int] = (),
) -> Rows:
    """What these rows of a sequence see, in whole blocks of `block` rows, as a kernel loads them."""
    return _syncopate.attended_rows(length, list(documents), causal, window, rows, block)


def attention(
    mesh: Mesh,
    shape: Sequence[int],
    dtype: str | torch.dtype,
    rows: Sequence[Rows],
    attended: Sequence[Rows] = (),
    *,
    circulation: str = "all_gather",
    ulysses: int = 1,
    inner: int = 0,
    split: int = 1,
    only_kv: bool = False,
    q_o_stay: bool = False,
) -> Plan:
    """Attention over a sharded sequence (plan/templates/attention.hpp draws it). Tensors Q, O [B, H, S, D], K, V [B, HKV, S, D]
    and L [B, H, S].

    `shape`: B, H, HKV, S, D. `rows`: by rank, which it holds (`shard_rows`); `attended`: which of K and V it needs
    (`attended_rows`); default: all. `circulation`: "all_gather", "ring" or "double_ring" (`inner` ranks in an inner ring).
    `ulysses`: so many neighbours exchange heads for rows. `split`: chunks into which each run of rows is cut.
    `only_kv`: K and V alone, where Q, O and L are each rank's own affair. `q_o_stay`: K, V and L, where Q and O stay where
    each rank has them.
    """
    return _syncopate.attention_plan(
        mesh.size, list(shape), dtype_name(dtype), list(rows), list(attended), circulation, ulysses, inner, split, only_kv, q_o_stay
    )  # fmt: skip


def join(parts: Sequence[Plan], tensors: Sequence[Tensor] = ()) -> Plan:
    """Several plans over one mesh as one, for a program of several stages: each rank's list is that of the first part, then
    that of the second, … `tensors`: more of them, which no op moves. Raises where meshes differ or a name comes twice."""
    return _syncopate.join_plans(list(parts), [(t.name, list(t.shape), t.dtype) for t in tensors])


def from_json(text: str, name: str = "<plan>") -> Plan:
    """Reads a plan of schema syncopate.plan/1; raises ValueError with the JSON path of what is wrong."""
    return _syncopate.plan_from_json(text, name)


def import_plan(
    text: str, format: str = "auto", *, pick: int = -1, ranks: int = 0, module: str = "", name: str = "<plan>"
) -> Plan:
    """The plan in a text that another system made, as `syncopate plan import` reads it; not yet checked.

    `format`: "auto", "msccl_xml", "mscclpp_json", "hlo", "stablehlo", "partition", "loop". `pick`: which candidate of
    HLO or StableHLO; `module`: which module, where there are several; `ranks`: how many devices, where its text does
    not say. Raises InputError with the place of what is wrong.
    """
    return _syncopate.import_plan(text, name, format, pick, ranks, module)


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
        return _syncopate.import_plan(json.dumps(program), "from_placements", "partition", -1, 0)
    except _syncopate.InputError as error:
        # Without the place in the text made here, which the caller does not see.
        message = re.sub(r"^from_placements:\d+:\d+: ", "from_placements: ", str(error))
        raise _syncopate.InputError(message) from None


def simulate(plan: Plan, topology: str | None = None, *, posts: bool = True) -> Simulation:
    """When each op of `plan` would run: `makespan_us`, `bound_us`, `busiest_link`, `ops` ((start, end) of each), `svg()`.

    `topology`: a name (`topologies()`), a generated one ("ring:8", "torus:4x4", "mesh:4x4", "switch:16"), or a file;
    default: h200x8, h200x8x2 above 8 ranks, a switch above 16. `posts`: whether ops set a flag after their chunk.
    """
    return _syncopate.simulate(plan, topology, posts)


def topologies() -> list[str]:
    """The names of the topologies that come with Syncopate."""
    return _syncopate.topology_names()


def synthesise(
    kind: str,
    mesh: Mesh,
    tensor: Tensor,
    topology: str,
    *,
    axis: int = 0,
    to_axis: int = 1,
    chunks: int = 1,
    root: int = 0,
    seed: int = 0,
    sms: bool = True,
    ranks: Sequence[int] = (),
) -> Plan:
    """A plan for a collective on any topology, found by greedy search; `syncopate plan synth` explains the options.

    `kind`: "all_gather", "reduce_scatter", "all_reduce", "all_to_all" or "broadcast". `sms=False` is `--no-sms`.
    """
    return _syncopate.synthesise(
        kind,
        list(mesh.axes),
        tensor.name,
        list(tensor.shape),
        tensor.dtype,
        topology,
        axis,
        to_axis,
        chunks,
        root,
        seed,
        sms,
        list(ranks),
    )


def mesh_of(ranks: int | Sequence[int]) -> Mesh:
    """A mesh of one axis "gpu" with `ranks` ranks."""
    return Mesh(gpu=int(ranks if isinstance(ranks, int) else len(ranks)))
