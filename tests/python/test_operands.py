"""Operands and options that make no sense are named, before a group is asked for anything."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
sy = pytest.importorskip("syncopate")

from syncopate import group, ranks  # noqa: E402
from syncopate.call import arguments, places  # noqa: E402
from syncopate.ops import scales  # noqa: E402

X, W, Q = torch.zeros(8, 16), torch.zeros(16, 24), torch.zeros(1, 2, 8, 16)
MESH, A = sy.Mesh(gpu=2), sy.Tensor("A", (8, 8))


def within(**options):
    with sy.context_parallel(**options):
        pass


def fake_of(tensor):
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(tensor)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "x: expected a torch.Tensor, got list", lambda: sy.ops.all_gather_matmul([1], W)),
        (TypeError, "w: expected a torch.Tensor, got NoneType", lambda: sy.ops.matmul_all_reduce(X, None)),
        (TypeError, "w2: expected a torch.Tensor, got list", lambda: sy.ops.feed_forward(X, W, [])),
        (TypeError, "v: expected a torch.Tensor, got int", lambda: sy.ops.attention(X, X, 3)),
        (
            ValueError,
            "axis: expected 0 (rows) or 1 (columns), got 7",
            lambda: sy.ops.all_gather_matmul(X, W, axis=7),
        ),
        (
            ValueError,
            "bias: expected [N], or an element for each of the product, got []",
            lambda: sy.ops.all_gather_matmul(X, W, bias=torch.tensor(1.0)),
        ),
        (TypeError, "tilings: expected a tuple of tilings, got 5", lambda: sy.Strategy(tilings=5)),
        (
            TypeError,
            "dtype: expected a torch.dtype, such as torch.bfloat16, got 32",
            lambda: sy.strategy.choose(sy.strategy.Problem("matmul_all_reduce", 8, 8, 8, 32, ranks=2)),
        ),
        (
            ValueError,
            'there is no dtype "fp33"; there are ' + ", ".join(arguments.DTYPES),
            lambda: sy.strategy.Problem("matmul_all_reduce", 8, 8, 8, "fp33", ranks=2),
        ),
        (
            ValueError,
            'there is no dtype "torch.complex64"; there are ' + ", ".join(arguments.DTYPES),
            lambda: sy.Tensor("A", (4, 4), torch.complex64),
        ),
        (
            TypeError,
            'dtype: expected a torch.dtype, or its name, such as "bf16", got 3',
            lambda: sy.Tensor("A", (4, 4), 3),
        ),
        (
            TypeError,
            "shape: expected whole numbers, (rows, columns, …), got (4, 4.5)",
            lambda: sy.Tensor("A", (4, 4.5)),
        ),
        (
            ValueError,
            'backend: expected one of "auto", "copy_engine", "tma_dedicated", "tma_inline", "ldst_dedicated", "ldst_inline", '
            '"nccl", "host", "channel", got \'copyengine\'',
            lambda: sy.Strategy(backend="copyengine"),
        ),
        (
            ValueError,
            'kernel: expected one of "", "plain", "gluon", got \'triton\'',
            lambda: sy.Strategy(kernel="triton"),
        ),
        (
            ValueError,
            'there is no algorithm "rng"; there are auto, direct, ring, bidirectional, double_ring, hierarchical; did you mean '
            '"ring"?',
            lambda: sy.plans.all_gather(MESH, A, algorithm="rng"),
        ),
        (
            ValueError,
            'there is no reduction "avg"; there are sum, max',
            lambda: sy.plans.all_reduce(MESH, A, reduce="avg"),
        ),
        (
            ValueError,
            'there is no sharding "zig"; there are contiguous, zigzag, documents',
            lambda: sy.plans.shard_rows(8, 2, "zig"),
        ),
        (
            ValueError,
            'there is no circulation "rings"; there are all_gather, ring, double_ring; did you mean "ring"?',
            lambda: sy.plans.attention(
                MESH, (1, 1, 1, 8, 16), "bf16", [[(0, 4)], [(4, 8)]], circulation="rings"
            ),
        ),
        (
            ValueError,
            'there is no collective "allgather"; there are all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, '
            'permute; did you mean "all_gather"?',
            lambda: sy.plans.synthesise("allgather", MESH, A, "h200x2"),
        ),
        (
            ValueError,
            'device: expected "cuda" or "host", got \'gpu\'',
            lambda: group.device_name("gpu"),
        ),
        (
            ValueError,
            "scales: expected two tensors, the scales of x and those of w",
            lambda: scales.taken((X,), 8, 24, 16),
        ),
        (
            ValueError,
            "w: its rows must begin at multiples of 16 bytes, as TMA reads them; they are 100 bytes apart, the first one is 0 "
            "beyond: make it contiguous",
            lambda: places.check_rows("w", torch.zeros(16, 25)[:, :24]),
        ),
        (
            TypeError,
            "x: expected a dense tensor, got one of layout torch.sparse_coo",
            lambda: sy.ops.all_gather_matmul(X.to_sparse(), W),
        ),
        (
            TypeError,
            "x: expected a dense tensor, got a nested one",
            lambda: sy.ops.all_gather_matmul(torch.nested.nested_tensor([X, X]), W),
        ),
        (
            TypeError,
            "w: a FakeTensor has no memory of its own: give a torch.Tensor",
            lambda: sy.ops.matmul_all_reduce(X, fake_of(W)),
        ),
        (
            TypeError,
            "q: it stands for others within torch.func, where functions and objects of sy.ops cannot be called: see "
            "torch.ops.syncopate",
            lambda: torch.func.vmap(lambda q: sy.ops.attention(q, Q, Q))(torch.stack([Q, Q])),
        ),
        (
            TypeError,
            "x: it stands for others within torch.func, where functions and objects of sy.ops cannot be called: see "
            "torch.ops.syncopate",
            lambda: torch.func.jvp(lambda x: sy.ops.all_gather_matmul(x, W), (X,), (X,)),
        ),
        *(
            (
                ValueError,
                f"{name}: it is another tensor's negation or conjugate, not carried out yet: give its resolve_neg() or "
                "resolve_conj()",
                call,
            )
            for name, call in {
                "x": lambda: sy.ops.moe(torch._neg_view(X), X, X, W, W),
                "w2": lambda: sy.ops.feed_forward(X, W, torch._neg_view(W)),
                "k": lambda: sy.ops.attention(Q, torch._neg_view(Q), Q),
                "rows": lambda: sy.ops.combine(torch._neg_view(X), None, None),
                "w": lambda: sy.ops.all_gather_matmul(
                    X, torch.zeros(16, 24, dtype=torch.complex64).conj().imag
                ),
            }.items()
        ),
        *(
            (kind, f"{name}: expected {said}", call)
            for name, kind, said, call in (
                ("rows", TypeError, "a whole number, got 1.5", lambda: sy.deterministic(1.5).__enter__()),
                ("rows", TypeError, "a whole number, got None", lambda: sy.deterministic(None).__enter__()),
                ("rows", ValueError, "at least 1, got 0", lambda: sy.deterministic(0).__enter__()),
                (
                    "axis",
                    TypeError,
                    "a whole number, got 1.0",
                    lambda: sy.ops.all_gather_matmul(X, W, axis=1.0),
                ),
                (
                    "axis",
                    TypeError,
                    "a whole number, got None",
                    lambda: sy.ops.all_gather_matmul(X, W, axis=None),
                ),
                ("dim", TypeError, "a whole number, got True", lambda: sy.shard_rows(X, dim=True)),
                ("dim", TypeError, "a whole number, got None", lambda: sy.unshard_rows(X, dim=None)),
                ("causal", TypeError, "a bool, got None", lambda: sy.ops.attention(Q, Q, Q, causal=None)),
                (
                    "window",
                    TypeError,
                    "a number of rows, got True",
                    lambda: sy.ops.attention(Q, Q, Q, window=True),
                ),
                (
                    "window",
                    TypeError,
                    "a number of rows, got None",
                    lambda: sy.ops.attention(Q, Q, Q, window=None),
                ),
                (
                    "bounded",
                    TypeError,
                    "a number of rows, got nan",
                    lambda: sy.ops.attention(Q, Q, Q, bounded=float("nan")),
                ),
                ("scale", TypeError, "a number, got '1'", lambda: sy.ops.attention(Q, Q, Q, scale="1")),
                (
                    "length",
                    TypeError,
                    "a whole number, got '3'",
                    lambda: sy.ops.attention(Q, Q, Q, length="3"),
                ),
                ("B", TypeError, "a whole number, got True", lambda: sy.ops.Attention(True, 2, 2, 32, 16)),
                ("S", TypeError, "a whole number, got 32.0", lambda: sy.ops.Attention(1, 2, 2, 32.0, 16)),
                ("D", ValueError, "at least 1, got 0", lambda: sy.ops.Attention(1, 2, 2, 32, 0)),
                ("experts", TypeError, "a whole number, got '3'", lambda: sy.ops.dispatch(X, X, "3")),
                (
                    "handle",
                    TypeError,
                    "what sy.ops.dispatch gave, got NoneType",
                    lambda: sy.ops.combine(X, None, None),
                ),
                (
                    "bound",
                    ValueError,
                    "a number of rows, from 1 on, got 0",
                    lambda: sy.ops.moe(X, X, X, X, X, bound=0),
                ),
                ("cu_seqlens", TypeError, "integers, got 0.5", lambda: within(cu_seqlens=[0, 0.5, 8])),
                ("window", ValueError, "at least 0, got -1", lambda: within(window=-1)),
                ("window", TypeError, "a whole number, got nan", lambda: within(window=float("nan"))),
                ("length", TypeError, "a whole number, got 1.5", lambda: within(length=1.5)),
                ("values", TypeError, "integers, got 1.5", lambda: arguments.elements_of([0, 1.5])),
                (
                    "group",
                    TypeError,
                    "a syncopate Group or a torch process group, got int: 3",
                    lambda: sy.close(3),
                ),
                (
                    "block",
                    ValueError,
                    "a number from 1 to 1099511627776, got 0",
                    lambda: sy.plans.shard_rows(8, 2, block=0),
                ),
                (
                    "ranks",
                    ValueError,
                    "a number from 1 to 4096, got 0",
                    lambda: sy.plans.shard_rows(8, 0),
                ),
                (
                    "block",
                    ValueError,
                    "a number from 1 to 1099511627776, got 0",
                    lambda: sy.plans.attended_rows(8, [(0, 4)], block=0),
                ),
                (
                    "rows",
                    ValueError,
                    "a number from 0 to 8, got 9",
                    lambda: sy.plans.attended_rows(8, [(9, 9)]),
                ),
                (
                    "documents",
                    ValueError,
                    "offsets that rise from 0 to 8, got 0, 9",
                    lambda: sy.plans.shard_rows(8, 2, "documents", documents=[0, 9]),
                ),
                ("deadline", ValueError, "seconds, from 0 on, got 1e+300", lambda: sy.set_deadline(1e300)),
            )
        ),
        *(
            (
                ValueError,
                f"out: its elements overlap, its strides are {list(out.stride())}: what a call writes has a place for each",
                lambda out=out: places.require_apart("out", out),
            )
            for out in (
                torch.zeros(1, 4).expand(3, 4),
                torch.zeros(3, 1).expand(3, 4),
                torch.zeros(8).as_strided((3, 4), (2, 1)),
                torch.zeros(2, 1, 4).expand(2, 3, 4),
            )
        ),
    ],
)
def test_what_does_not_fit_is_named(error, message, call):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


@pytest.mark.parametrize("dtype", [torch.float16, "fp16", "float16", "torch.float16"])
def test_a_dtype_is_torchs_or_its_name_wherever_one_is_taken(dtype):
    assert sy.Tensor("A", (4, 4), dtype) == sy.Tensor("A", torch.Size((4, 4)), "fp16")
    plan = sy.plans.all_gather(MESH, sy.Tensor("A", (4, 4), dtype))
    assert plan.tensors == [("A", [4, 4], "fp16")]
    rows = [[(0, 4)], [(4, 8)]]
    plan = sy.plans.attention(MESH, (1, 1, 1, 8, 16), dtype, rows)
    assert {name: kind for name, _, kind in plan.tensors} == {
        **dict.fromkeys("QKVO", "fp16"),
        "L": "fp32",
    }
    assert sy.strategy.Problem("matmul_all_reduce", 8, 8, 8, dtype, 2).dtype == torch.float16
    builder = sy.plans.Builder(MESH)
    assert builder.tensor(sy.Tensor("S", (4,), dtype)) == "S"


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({}, ValueError, "bind: no parameter is bound to a tensor of the plan (A): say which one is"),
        ({"bind": {}}, ValueError, "bind: no parameter is bound"),
        ({"bind": [("a_ptr", "A")]}, TypeError, "bind: expected a mapping from parameters, got tuple"),
        ({"bind": {"a_ptr": "A"}, "plan": "all_gather"}, TypeError, "plan: expected a Plan (sy.plans), got str"),
        ({"bind": {"a_ptr": "A"}, "strategy": sy.Strategy(split=2)}, ValueError, "strategy: split: of operators alone"),
        ({"bind": {"a_ptr": "A"}, "strategy": sy.Strategy(pull=True, programs=2)}, ValueError, "strategy: programs, pull:"),
        ({"bind": {"a_ptr": "A"}, "strategy": 3}, TypeError, "strategy: expected a Strategy, got int"),
    ],
)  # fmt: skip
def test_what_fuse_would_not_obey_is_refused(given, kind, said):
    plan = sy.plans.all_gather(sy.Mesh(gpu=2), sy.Tensor("A", (64, 64), "fp32"))
    with pytest.raises(kind) as raised:
        sy.fuse(lambda a_ptr: None, **({"plan": plan} | given))
    assert said in str(raised.value)


def test_fuse_takes_back_what_it_chose():
    from autotuned_kernel import product

    plan = sy.plans.all_gather(sy.Mesh(gpu=2), sy.Tensor("A", (64, 64), "fp32"))
    sy.fuse(product, plan, {"a_ptr": "A"}, strategy=sy.Strategy(kernel="plain", backend="copy_engine"))


@pytest.mark.parametrize("given", ["world", 3, "", 0, False])
def test_a_group_of_another_kind_is_named(given, tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(
            TypeError, match="group: expected a syncopate Group or a torch process group, got"
        ):
            group.of_process_group(given)
        with pytest.raises(ValueError, match="group: this rank is none of its members"):
            group.of_process_group(dist.GroupMember.NON_GROUP_MEMBER)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("taken", [copy.deepcopy, pickle.dumps])
def test_a_module_that_holds_an_operator_says_why_it_is_not_copied(taken, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module = torch.nn.Linear(4, 4)
    alone = group.alone("host")
    for held in (alone, sy.ops.Attention(1, 2, 2, 32, 16, torch.float16, alone)):
        module.operator = held
        with pytest.raises(
            TypeError, match="an operator or fused kernel of one, is of this process and its peers"
        ):
            taken(module)


def test_an_error_of_a_rank_has_its_traceback_as_its_cause():
    def fails(place):
        return place.rank()

    with pytest.raises(ranks.RankError, match="not callable") as raised:
        ranks.run(2, fails)
    assert "rank 0:" in str(raised.value.__cause__)
    assert "in fails" in str(raised.value.__cause__)
