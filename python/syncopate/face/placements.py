"""PyTorch's DeviceMesh and DTensor placements in the words of partition IR (docs/ingest_hlo.md). Needs no torch itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def axes_of(mesh: Any) -> list[tuple[str, int]]:
    """Names and sizes of a DeviceMesh, whose ranks must be 0 … n-1 in row-major order."""
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise ValueError(f"the mesh's ranks are {ranks}; a plan needs 0 … n-1 in row-major order")
    names = mesh.mesh_dim_names or [f"mesh{i}" for i in range(mesh.ndim)]
    return list(zip(names, mesh.mesh.shape, strict=True))


def lists(axes: Sequence[tuple[str, int]], rank: int, placements: Sequence[Any], what: str) -> dict[str, Any]:
    """One placement for each mesh axis, as lists of mesh axes for each of the tensor's `rank` axes."""
    if len(placements) != len(axes):
        raise ValueError(f"{what} has {len(placements)} placements; the mesh has {len(axes)} axes")
    shard: list[list[str]] = [[] for _ in range(rank)]
    partial: dict[str, list[str]] = {}
    for (axis, _), placement in zip(axes, placements, strict=True):
        kind = type(placement).__name__  # _StridedShard is a Shard to isinstance, and is cut otherwise
        if kind == "Shard":
            if not -rank <= placement.dim < rank:
                raise ValueError(f"{what}: {placement} of a tensor with {rank} axes")
            shard[placement.dim].append(axis)
        elif kind == "Partial":
            partial.setdefault(str(placement.reduce_op), []).append(axis)
        elif kind != "Replicate":
            raise ValueError(f"{what}: {placement} is none of Shard, Replicate and Partial")
    if len(partial) > 1:
        raise ValueError(f"{what}: contributions reduced in several ways: {', '.join(partial)}")
    made: dict[str, Any] = {"shard": shard}
    for reduce, over in partial.items():
        made["partial"] = {"over": over, "reduce": reduce}
    return made
