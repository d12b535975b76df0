"""Plans made from Python: templates with their options, lowering, and templates of one's own."""

import json
import re
from pathlib import Path

import pytest
import syncopate as sy
from syncopate import plans

TEMPLATES = {
    plans.all_gather: ("direct", "ring", "bidirectional", "double_ring", "hierarchical"),
    plans.reduce_scatter: ("direct", "ring", "hierarchical"),
    plans.all_reduce: ("two_shot", "one_shot", "ring", "hierarchical"),
    plans.all_to_all: ("direct", "hierarchical"),
    plans.broadcast: ("direct", "chain", "tree"),
    plans.ring: ("ring", "bidirectional"),
    plans.double_ring: ("double_ring",),
}
TENSOR = sy.Tensor("A", (13, 7), "fp32")


@pytest.mark.parametrize(
    ("template", "algorithm"),
    [(template, algorithm) for template, algorithms in TEMPLATES.items() for algorithm in algorithms],
)
@pytest.mark.parametrize("pull", [False, True])
def test_every_template_has_no_finding(template, algorithm, pull):
    mesh = sy.Mesh(node=2, gpu=3)
    plan = template(mesh, TENSOR, 1, 2, algorithm=algorithm, pull=pull)
    assert plan.check() == []
    assert plan.num_ranks == mesh.size
    kinds = {op["op"] for rank in json.loads(plan.to_json())["ranks"] for op in rank["ops"]}
    assert ("pull" if pull else "push") in kinds


def test_the_default_is_the_first_algorithm():
    for template, algorithms in TEMPLATES.items():
        mesh = sy.Mesh(node=2, gpu=2)
        named = template(mesh, TENSOR, algorithm=algorithms[0])
        assert template(mesh, TENSOR).to_json() == named.to_json()


def test_a_collective_runs_over_a_mesh_axis_or_in_a_group():
    plan = plans.all_reduce(sy.Mesh(node=2, gpu=2), TENSOR, over=["gpu"])
    finals = json.loads(plan.to_json())["final"]
    assert sorted((entry["rank"], tuple(entry["of"])) for entry in finals) == [
        (0, (0, 1)),
        (1, (0, 1)),
        (2, (2, 3)),
        (3, (2, 3)),
    ]
    assert plan.check() == []
    plan = plans.all_gather(sy.Mesh(gpu=4), TENSOR, group=[3, 1])
    assert [len(rank["ops"]) for rank in json.loads(plan.to_json())["ranks"]] == [0, 1, 0, 1]


def test_a_collective_may_be_left_to_a_library_and_lowered_later():
    mesh = sy.Mesh(node=2, gpu=2)
    direct = plans.all_reduce(mesh, TENSOR, lower="direct")
    assert [op["op"] for op in json.loads(direct.to_json())["ranks"][0]["ops"]] == ["collective"]
    assert plans.lower(direct, "direct").to_json() == direct.to_json()
    for algorithm in ("auto", "ring", "hierarchical"):
        lowered = plans.lower(direct, algorithm=algorithm, split=2)
        assert lowered.check() == []
        assert '"collective"' not in lowered.to_json()


def test_collectives_are_lowered_by_synthesis_among_some_ranks_and_over_mesh_axes():
    mesh = sy.Mesh(row=2, column=4)
    for options in ({}, {"over": ["column"]}, {"group": [0, 1, 4, 5]}):
        direct = plans.all_reduce(mesh, TENSOR, lower="direct", **options)
        lowered = plans.lower(direct, "synth", topology="torus:2x4", split=0, seed=3)
        assert lowered.check() == []
        assert '"collective"' not in lowered.to_json()
        assert (
            lowered.to_json() == plans.lower(direct, "synth", topology="torus:2x4", split=0, seed=3).to_json()
        )
        made = plans.all_reduce(mesh, TENSOR, split=0, lower="synth", topology="torus:2x4", seed=3, **options)
        assert made.to_json() == lowered.to_json()


def test_each_collective_may_be_lowered_its_own_way():
    direct = plans.all_gather(sy.Mesh(gpu=4), TENSOR, lower="direct")
    ways = ["synth", "all_gather=direct"]
    assert plans.lower(direct, ways, topology="ring:4").to_json() == direct.to_json()
    assert '"collective"' not in plans.lower(direct, [*ways, "2:0=synth"], topology="ring:4").to_json()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, 5),
            ValueError,
            "axis 5 is not an axis of tensor A",
        ),
        (lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, algorithm="rng"), ValueError, 'no algorithm "rng"'),
        (lambda: plans.ring(sy.Mesh(gpu=2), TENSOR, steps=2), ValueError, "ring: steps is 2"),
        (
            lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, root=1),
            ValueError,
            "root is not one of its options",
        ),
        (
            lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, colour=1),
            TypeError,
            "there is no option 'colour'",
        ),
        (lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, pull="x"), TypeError, "option 'pull' has a value"),
        (lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, lower="best"), ValueError, 'lower is "best"'),
        (
            lambda: plans.all_gather(sy.Mesh(gpu=2), TENSOR, lower="synth"),
            ValueError,
            "synth needs a topology",
        ),
        (
            lambda: plans.all_gather(sy.Mesh(gpu=2), sy.Tensor("A", (4,), "bf17")),
            ValueError,
            'no dtype "bf17"',
        ),
        (
            lambda: plans.lower(plans.all_gather(sy.Mesh(gpu=2), TENSOR), "best"),
            ValueError,
            'cannot be lowered by "best"',
        ),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def documented(name: str):
    """The function of that name in the examples of docs/plans.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "plans.md").read_text()
    (source,) = (
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"def {name}(" in block
    )
    names: dict = {"sy": sy}
    exec(source, names)
    return names[name]


def test_a_template_of_ones_own():
    halo_exchange = documented("halo_exchange")  # which has no types and no imports of its own
    plan = halo_exchange(sy.Mesh(gpu=4), sy.Tensor("X", (64, 8), "fp16"), rows=2)
    assert plan.check() == []
    assert [len(rank["ops"]) for rank in json.loads(plan.to_json())["ranks"]] == [1, 2, 2, 1]


def reduce_to_root(mesh: sy.Mesh, tensor: sy.Tensor, *, pull: bool) -> sy.plans.Plan:
    """Contributions are halved in number each round, in a tree, through staging space."""
    plan = plans.Builder(mesh, pull=pull)
    name = plan.tensor(tensor)
    staging = plan.scratch(tensor)
    box = [(0, size) for size in tensor.shape]
    for rank in range(mesh.size):
        plan.initial((rank, name, box), partial=True)
    plan.final((0, name, box), of="all")
    distance = 1
    while distance < mesh.size:
        for rank in range(0, mesh.size - distance, 2 * distance):
            plan.transfer((rank + distance, name, box), (rank, staging, box))
            plan.transfer((rank, staging, box), (rank, name, box), reduce="sum")
        distance *= 2
    return plan.build()


@pytest.mark.parametrize("pull", [False, True])
def test_a_builder_finds_the_dependences(pull):
    for ranks in range(1, 10):
        plan = reduce_to_root(sy.Mesh(gpu=ranks), TENSOR, pull=pull)
        assert plan.check() == []
    ops = json.loads(reduce_to_root(sy.Mesh(gpu=4), TENSOR, pull=False).to_json())["ranks"]
    # The second arrival at rank 0 reuses the staging space, so it waits for the sum that read the first one.
    assert ops[2]["ops"][1]["after"] == [[0, 0], [2, 0]]


def test_a_builder_says_what_is_wrong():
    plan = plans.Builder(sy.Mesh(gpu=2))
    name = plan.tensor(TENSOR)
    with pytest.raises(ValueError, match='no tensor "B"'):
        plan.initial((0, "B", [(0, 1), (0, 1)]))
    with pytest.raises(ValueError, match='no reduction "mean"'):
        plan.transfer((0, name, [(0, 1), (0, 1)]), (1, name, [(0, 1), (0, 1)]), reduce="mean")
    plan.transfer((0, name, [(0, 1), (0, 99)]), (1, name, [(0, 1), (0, 99)]))
    with pytest.raises(ValueError, match=r"transfer 0: \[0:1, 0:99\] is no box inside tensor A"):
        plan.build()
