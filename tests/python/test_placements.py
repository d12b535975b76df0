"""Plans from DTensor placements: what each rank holds is what DTensor says it holds, and the plans verify."""

import itertools

import pytest
import syncopate as sy
import torch
import torch.distributed as dist
from syncopate import _syncopate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

SHAPE = (10, 7)


@pytest.fixture(params=range(6))
def mesh_of_rank(request):
    """A 2 × 3 mesh as rank `request.param` sees it; nothing is sent."""
    dist.init_process_group("fake", rank=request.param, world_size=6, store=FakeStore())
    yield request.param, init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "model"))
    dist.destroy_process_group()


def test_what_a_rank_holds_is_what_dtensor_says(mesh_of_rank):
    rank, mesh = mesh_of_rank
    kinds = [Replicate(), Shard(0), Shard(1), Shard(-1)]
    for before in itertools.product(kinds, kinds):
        plan = sy.plans.from_placements(mesh, torch.empty(SHAPE), before, [Replicate(), Replicate()])
        resolved = [Shard(p.dim % 2) if isinstance(p, Shard) else p for p in before]
        shape, offset = compute_local_shape_and_global_offset(SHAPE, mesh, resolved)
        boxes = [tuple(box) for _, box in plan.initial(rank)]
        expected = [tuple((o, o + s) for o, s in zip(offset, shape, strict=True))] if 0 not in shape else []
        assert boxes == expected, (before, rank)


def test_every_conversion_of_values_and_sums_verifies():
    kinds = [Replicate(), Shard(0), Shard(1), Partial("sum")]
    mesh = sy.Mesh(data=2, model=3)
    tensor = sy.Tensor("X", SHAPE, "fp32")
    for before, after in itertools.product(itertools.product(kinds, kinds), repeat=2):
        made = any(
            isinstance(a, Partial) and not isinstance(b, Partial) for b, a in zip(before, after, strict=True)
        )
        if made:
            with pytest.raises(_syncopate.InputError, match="contributions have to be computed"):
                sy.plans.from_placements(mesh, tensor, before, after)
        else:
            assert sy.plans.from_placements(mesh, tensor, before, after, split=2).check() == [], (
                before,
                after,
            )


def test_a_torch_tensor_gives_shape_and_dtype():
    plan = sy.plans.from_placements(
        sy.Mesh(gpu=2), torch.empty(4, 4, dtype=torch.bfloat16), [Shard(0)], [Replicate()], name="W"
    )
    assert plan.tensors == [("W", [4, 4], "bf16")]


def test_what_cannot_be_told_is_refused():
    mesh, tensor = sy.Mesh(gpu=2), sy.Tensor("A", (4,), "fp32")
    with pytest.raises(ValueError, match="before has 2 placements; the mesh has 1 axes"):
        sy.plans.from_placements(mesh, tensor, [Shard(0), Shard(0)], [Replicate()])
    with pytest.raises(ValueError, match="of a tensor with 1 axes"):
        sy.plans.from_placements(mesh, tensor, [Shard(1)], [Replicate()])
    with pytest.raises(_syncopate.InputError, match='is "avg"; a plan can reduce by "sum" and "max"'):
        sy.plans.from_placements(mesh, tensor, [Partial("avg")], [Replicate()])
    with pytest.raises(ValueError, match="none of Shard, Replicate and Partial"):
        sy.plans.from_placements(mesh, tensor, ["rows"], [Replicate()])
    with pytest.raises(_syncopate.InputError, match="^from_placements: tensors.A.after is partial"):
        sy.plans.from_placements(mesh, tensor, [Replicate()], [Partial("sum")])


def test_loop_ir_is_imported_from_a_text():
    text = """{"schema": "syncopate.loop/1", "mesh": [["gpu", 3]],
      "tensors": {"K": {"shape": [9], "dtype": "fp32", "shard": [["gpu"]]}},
      "loops": [{"name": "step", "over": "gpu", "shift": -1}],
      "communicate": [{"tensor": "K", "at": "step"}]}"""
    plan = sy.plans.import_plan(text)
    assert plan.num_ranks == 3
    assert plan.check() == []
