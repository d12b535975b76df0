"""Communication plans: what moves where, after what. Thin names over the C++ plan layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _syncopate
from ._syncopate import Plan, Simulation

__all__ = [
    "Mesh",
    "Plan",
    "Simulation",
    "Tensor",
    "all_gather",
    "from_json",
    "simulate",
    "synthesise",
    "topologies",
]


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


def from_json(text: str, name: str = "<plan>") -> Plan:
    """Reads a plan of schema syncopate.plan/1; raises ValueError with the JSON path of what is wrong."""
    return _syncopate.plan_from_json(text, name)


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
    ranks: Sequence[int] = (),
) -> Plan:
    """A plan for a collective on any topology, found by greedy search; `syncopate plan synth` explains the options.

    `kind`: "all_gather", "reduce_scatter", "all_reduce", "all_to_all" or "broadcast".
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
        list(ranks),
    )


def mesh_of(ranks: int | Sequence[int]) -> Mesh:
    """A mesh of one axis "gpu" with `ranks` ranks."""
    return Mesh(gpu=int(ranks if isinstance(ranks, int) else len(ranks)))
