"""What `import syncopate as sy` offers: names, their docstrings, their types, and how values print."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import re

import pytest
import syncopate as sy
import torch
from conftest import ROOT

#: What a user of the library names. A change of this list is a change of the API.
PUBLIC = """Call Chunking FusedKernel Group InputError MachineError Mesh Plan StatedKernel Strategy SyncopateError Tensor Tiling
UsageError check_statement close context_parallel cuda_kernel deterministic fuse gluon inductor kernel ops parallel plans recover report set_deadline shard_rows strategy
symm_mem trace unshard_rows""".split()


def test_dir_shows_what_is_public_and_nothing_else():
    shown = [name for name in dir(sy) if not name.startswith("_")]
    assert shown == sorted(PUBLIC)
    assert {"__version__", "__doc__"} <= set(dir(sy))


def test_every_name_that_dir_shows_is_there():
    for name in dir(sy):
        getattr(sy, name)
    with pytest.raises(AttributeError, match="'syncopate' has no attribute 'opps'"):
        _ = sy.opps


def test_the_version_is_the_projects_own():
    assert f"VERSION {sy.__version__} " in (ROOT / "CMakeLists.txt").read_text()
    assert re.search(rf"^## {re.escape(sy.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def said(thing: object) -> str:
    """A docstring, without the signature that the extension's functions begin with."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    name = getattr(thing, "__name__", "")
    while lines and (not lines[0].strip() or name and lines[0].startswith(f"{name}(")):
        del lines[0]
    return "\n".join(lines)


def is_own(name: str, value: object, module: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", "") == module.__name__


def walk(name: str, thing: object, seen: set[int]):
    """(name, docstring) of a public thing and of what is public in it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if inspect.ismodule(thing):
        yield name, said(thing)
        for each in getattr(thing, "__all__", None) or [
            n for n, of in vars(thing).items() if is_own(n, of, thing)
        ]:
            yield from walk(f"{name}.{each}", getattr(thing, each), seen)
    elif inspect.isclass(thing):
        yield name, said(thing) if thing.__doc__ is not None else ""
        for each in dir(thing):
            member = inspect.getattr_static(thing, each)
            of_ours = any(
                each in vars(base) for base in thing.__mro__ if base.__module__.startswith("syncopate")
            )
            is_code = callable(member) or isinstance(member, (property, staticmethod, classmethod))
            if of_ours and not each.startswith("_") and (is_code or inspect.ismethoddescriptor(member)):
                yield f"{name}.{each}", said(getattr(thing, each))
    elif callable(thing):
        yield name, said(thing)


def test_all_that_is_public_says_what_it_is():
    seen: set[int] = set()
    found = [pair for name in PUBLIC for pair in walk(f"sy.{name}", getattr(sy, name), seen)]
    assert len(found) > 200
    assert [name for name, text in found if not text.strip()] == []


def test_a_plan_prints_its_ranks_its_tensors_and_its_ops():
    A = sy.Tensor("A", (64, 32))
    assert (
        repr(sy.plans.all_gather(sy.Mesh(gpu=4), A))
        == "<Plan of 4 ranks (gpu=4) for A [64, 32] bf16: 12 push>"
    )
    pulled = sy.plans.all_gather(sy.Mesh(node=2, gpu=2), A, pull=True)
    assert repr(pulled) == "<Plan of 4 ranks (node=2, gpu=2) for A [64, 32] bf16: 12 pull>"
    left = sy.plans.all_gather(sy.Mesh(gpu=4), A, lower="direct")
    assert repr(left) == "<Plan of 4 ranks (gpu=4) for A [64, 32] bf16: 4 collective>"
    both = sy.plans.join(
        [left, sy.plans.reduce_scatter(sy.Mesh(gpu=4), sy.Tensor("C", (8,), "fp32"), lower="direct")]
    )
    assert repr(both) == "<Plan of 4 ranks (gpu=4) for A [64, 32] bf16, C [8] fp32: 8 collective>"
    assert (
        repr(sy.plans.all_gather(sy.Mesh(gpu=1), A)) == "<Plan of 1 rank (gpu=1) for A [64, 32] bf16: no ops>"
    )


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (sy.Strategy(), "Strategy()"),
        (sy.Strategy(split=2, backend="copy_engine"), "Strategy(split=2, backend='copy_engine')"),
        (sy.Strategy(chunking=sy.Chunking(rows=4)), "Strategy(chunking=Chunking(rows=4))"),
        (sy.Strategy(apart=True, parts=(sy.Strategy(), sy.Strategy(unfused=True))),
         "Strategy(apart=True, parts=(Strategy(), Strategy(unfused=True)))"),
        (sy.Strategy(tilings=(sy.Tiling(128, 256, 64, 4, -1),)),
         "Strategy(tilings=(Tiling(block_m=128, block_n=256, block_k=64, stages=4, num_wide=-1),), kernel='plain')"),
        (sy.Chunking(slices=(512, 1536)), "Chunking(slices=(512, 1536))"),
        (sy.Tiling(64, 64, 32, 3, 2, "ieee"),
         "Tiling(block_m=64, block_n=64, block_k=32, stages=3, num_wide=2, precision='ieee')"),
        (sy.strategy.Problem("matmul_all_reduce", 16, 4096, 512, torch.bfloat16, ranks=8, num_sms=132),
         "Problem(operator='matmul_all_reduce', m=16, n=4096, k=512, dtype=torch.bfloat16, ranks=8, num_sms=132)"),
        (sy.strategy.Problem("feed_forward", 16, 4096, 512, torch.float8_e4m3fn, 2, f=64, out=torch.float16, scales="row"),
         "Problem(operator='feed_forward', m=16, n=4096, k=512, dtype=torch.float8_e4m3fn, ranks=2, f=64, "
         "out=torch.float16, scales='row')"),
    ],
)  # fmt: skip
def test_values_print_as_the_call_that_makes_them_without_what_is_as_usual(value, printed):
    assert repr(value) == printed
    names = {"Problem": sy.strategy.Problem, "torch": torch} | {name: getattr(sy, name) for name in PUBLIC}
    assert eval(printed, names) == value


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "reference" / "python").glob("*.rst")), ids=lambda page: page.stem
)
def test_a_module_with_a_page_of_its_own_is_imported_by_that_name(page):
    (name,) = re.findall(r"automodule:: (\S+)", page.read_text())
    assert importlib.import_module(name).__name__ == name


def test_what_fuse_has_written_imports_from_where_it_always_did():
    language = importlib.import_module("syncopate.language")
    assert {"sy_acquire", "sy_acquire_phase", "sy_finish", "sy_post"} <= set(language.__all__)
    assert language.SyncopateFault.__module__ == "syncopate.language"


def test_the_memory_that_kept_operators_may_take_is_set_by_a_public_name():
    assert sy.cache.limit_bytes == importlib.import_module("syncopate.call.cache").limit_bytes


VALUES = [
    sy.Tiling(64, 64, 32, 3, 2, "ieee"),
    sy.Chunking(2, (384, 640), True),
    sy.Strategy(
        tilings=(sy.Tiling(128, 256, 64, 4, -1, warps=4),),
        split=2,
        engine_blocks=3,
        chunking=sy.Chunking(2, 4),
    ),
    sy.Strategy(apart=True, parts=(sy.Strategy(pull=True), sy.Strategy(unfused=True))),
    sy.strategy.Problem("matmul_all_reduce", 16, 4096, 512, torch.bfloat16, ranks=8, out=torch.float16),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_immutable_and_equal_by_what_they_hold(value):
    fields = [field.name for field in dataclasses.fields(value)]
    for other in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
        dataclasses.replace(value),
    ):
        assert other == value and hash(other) == hash(value) and other in {value}
    assert value != repr(value) and value is not None and value != None  # noqa: E711
    for name in (*fields, "anything"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    assert type(value)(*(getattr(value, name) for name in fields)) == value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sy.Strategy(splits=2), r"^there is no field 'splits'; did you mean \"split\"\?$"),
        (lambda: sy.Strategy(split="2"), r'^split is the string "2"; expected int \| None$'),
        (lambda: sy.Strategy(split=2.5), "^split is 2.5; expected int"),
        (lambda: sy.Strategy(pull=1), "^pull is 1; expected bool$"),
        (lambda: sy.Strategy(stored=2**40), "^stored is 1099511627776; expected int$"),
        (lambda: sy.Strategy(chunking=2), "^chunking is 2; expected Chunking$"),
        (lambda: sy.Strategy(tilings=(1,)), r"^tilings is \(1,\); expected tuple"),
        (lambda: sy.Strategy((), tilings=()), "^a field is given twice"),
        (lambda: sy.Tiling(1, 2), "^block_k is missing$"),
        (lambda: sy.strategy.Problem("matmul_all_reduce", 16, 4096, 512), "^dtype is missing$"),
    ],
)
def test_a_value_names_the_field_that_is_wrong(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_problem_has_the_key_that_the_command_line_takes():
    problem = sy.strategy.Problem("feed_forward", 16, 4096, 512, "fp8e4m3", 2, f=64, scales="row")
    assert (
        problem.key == "feed_forward:M=16,N=4096,K=512,F=64,dtype=fp8e4m3,out=bf16,scales=row,ranks=2,sms=4"
    )
    assert (problem.is_fp8, problem.out_dtype) == (True, torch.bfloat16)
    assert problem.products == ((16, 64, 512), (16, 4096, 64))
