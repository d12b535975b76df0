"""Communication plans: what moves where, after what. Thin names over the C++ plan layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _syncopate
from ._syncopate import Plan

__all__ = ["Mesh", "Plan", "Tensor", "all_gather", "from_json", "from_placements", "import_plan"]


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


def import_plan(text: str, format: str = "auto", *, pick: int = -1, ranks: int = 0, name: str = "<plan>") -> Plan:
    """The plan in a text that another system made, as `syncopate plan import` reads it; not yet checked.

    `format`: "auto", "msccl_xml", "mscclpp_json", "hlo", "stablehlo", "partition", "loop". `pick`: which candidate of
    HLO or StableHLO; `ranks`: how many devices, where its text does not say. Raises InputError with the place of
    what is wrong.
    """
    return _syncopate.import_plan(text, name, format, pick, ranks)


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
    axes = list(mesh.axes) if isinstance(mesh, Mesh) else _axes_of(mesh)
    if not isinstance(tensor, Tensor):
        tensor = Tensor(name, tuple(tensor.shape), _dtype_name(tensor.dtype))
    program = {
        "schema": "syncopate.partition/1",
        "mesh": [list(axis) for axis in axes],
        "tensors": {
            tensor.name: {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "before": _placement(axes, tensor, before, "before"),
                "after": _placement(axes, tensor, after, "after"),
                "split": split,
                "produced": produced,
            }
        },
    }
    return _syncopate.import_plan(json.dumps(program), "<placements>", "partition", -1, 0)


def _axes_of(mesh: Any) -> list[tuple[str, int]]:
    """Names and sizes of a DeviceMesh."""
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise ValueError(f"the mesh's ranks are {ranks}; a plan needs 0 … n-1 in row-major order")
    names = mesh.mesh_dim_names or [f"mesh{i}" for i in range(mesh.ndim)]
    return list(zip(names, mesh.mesh.shape, strict=True))


def _dtype_name(dtype: Any) -> str:
    names = {
        "bfloat16": "bf16",
        "float16": "fp16",
        "float32": "fp32",
        "float64": "fp64",
        "float8_e4m3fn": "fp8e4m3",
        "float8_e5m2": "fp8e5m2",
        "bool": "uint8",
    }
    short = str(dtype).removeprefix("torch.")
    return names.get(short, short)


def _placement(axes: list[tuple[str, int]], tensor: Tensor, placements: Sequence[Any], what: str) -> dict[str, Any]:
    """DTensor's list, one placement a mesh axis, as partition IR's lists of mesh axes, one a tensor axis."""
    if len(placements) != len(axes):
        raise ValueError(f"{what} has {len(placements)} placements; the mesh has {len(axes)} axes")
    shard: list[list[str]] = [[] for _ in tensor.shape]
    partial: dict[str, list[str]] = {}
    for (axis, _), placement in zip(axes, placements, strict=True):
        kind = type(placement).__name__
        if kind == "Shard":
            if not -len(shard) <= placement.dim < len(shard):
                raise ValueError(f"{what}: {placement} of a tensor with {len(shard)} axes")
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


def mesh_of(ranks: int | Sequence[int]) -> Mesh:
    """A mesh of one axis "gpu" with `ranks` ranks."""
    return Mesh(gpu=int(ranks if isinstance(ranks, int) else len(ranks)))
