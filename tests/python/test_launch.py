"""What a launch of a fused kernel must give: a missing argument is named, with who would have chosen it."""

import inspect

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("torch")
arguments = pytest.importorskip("syncopate.call.arguments")


@triton.autotune(configs=[triton.Config({"B": b}) for b in (16, 32)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def chosen(x_ptr, n, B: triton.language.constexpr, EVEN: triton.language.constexpr, SCALE=2):
    pass


def bound(*args, **kwargs):
    return arguments.bind_launch(
        chosen, inspect.signature(arguments.function_of(chosen)), args, kwargs
    ).arguments


def test_what_autotune_and_heuristics_choose_can_be_given():
    assert bound(None, 8, B=16, EVEN=False) == {"x_ptr": None, "n": 8, "B": 16, "EVEN": False, "SCALE": 2}


def test_a_missing_choice_names_who_makes_it():
    with pytest.raises(TypeError) as failure:
        bound(None, 8)
    assert str(failure.value) == (
        "chosen needs a value for B (which @triton.autotune chooses: pass one of 16, 32), "
        "EVEN (which @triton.heuristics computes: pass its result)"
    )


def test_a_missing_argument_that_nothing_chooses_is_named_alone():
    with pytest.raises(TypeError, match="^chosen needs a value for n$"):
        bound(None, B=16, EVEN=True)


def test_kernels_that_triton_launches_get_scratch_for_their_descriptors():
    """`run DIR --device cuda --check` launches the unfused kernel so, which may make descriptors."""
    import torch
    from syncopate.device import jit
    from triton.runtime import _allocation

    before = _allocation._allocator.get()
    try:
        jit.provide_scratch(torch.device("cpu"))
        scratch = _allocation._allocator.get()(4096, 128, None)
        assert scratch.numel() * scratch.element_size() == 4096 and scratch.data_ptr() % 64 == 0
    finally:
        triton.set_allocator(before)


def compiled_with(**facts):
    from syncopate.device import jit

    return jit.Compiled(None, {"x": "*fp32", "n": "i32", "first": "constexpr", "B": "constexpr"}, [], **facts)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, ""),
        ({"n": 48}, ""),
        ({"n": 40}, "n"),  # no multiple of 16
        ({"n": 2**31}, "n"),  # takes 64 bits
        ({"first": 0}, "first"),  # a number that was 1
        ({"first": True}, "first"),
        ({"B": 64}, "B"),
        ({"x": 4096 + 4}, "x"),
        ({"x": 8192}, ""),
    ],
)
def test_arguments_that_need_another_compilation_are_told(changed, named):
    found = compiled_with(constants={(2,): 1, (3,): 32}, multiples=frozenset({(0,), (1,)}))
    assert found.misfit({"x": 4096, "n": 32, "first": 1, "B": 32} | changed) == named


def test_tensors_of_another_dtype_need_another_compilation():
    import torch

    found = compiled_with(dtypes={(0,): torch.int64})
    given = {"n": 32, "first": 1, "B": 32}
    assert found.misfit(given | {"x": torch.zeros(2, dtype=torch.int64)}) == ""
    assert found.misfit(given | {"x": torch.zeros(2, dtype=torch.int32)}) == "x"
    assert found.misfit(given | {"x": 4096}) == ""  # an address


def test_items_of_tuples_are_looked_at_one_by_one():
    from syncopate.device import jit

    found = jit.Compiled(
        None, {"sizes": ["i32", "constexpr"]}, [], constants={(0, 1): 1}, multiples=frozenset({(0, 0)})
    )
    assert found.misfit({"sizes": (16, 1)}) == ""
    assert found.misfit({"sizes": (17, 1)}) == "sizes[0]"
    assert found.misfit({"sizes": (16, 2)}) == "sizes[1]"


def test_what_does_not_fit_is_compiled_anew_and_kept():
    from syncopate.device import jit

    made = []

    def compile_for(given):
        made.append(given["first"])
        return compiled_with(constants={(2,): given["first"], (3,): given["B"]})

    def given(first):
        return {"x": 4096, "n": 32, "first": first, "B": 32}

    variants = jit.Variants(compile_for, given(1))
    assert variants.for_arguments(given(1)) is variants.first
    assert variants.for_arguments(given(5)) is not variants.first
    assert variants.for_arguments(given(5)) is variants.for_arguments(given(5))
    assert made == [1, 5]


def test_a_packed_launch_is_of_numbers_of_one_type_and_sign():
    key = arguments.launch_key
    distinct = [key(value) for value in (0, 0.0, -0.0, False, 1, 1.0, True)]
    assert len(set(distinct)) == len(distinct)
    assert key(float("nan")) == key(float("nan"))


def test_a_grid_is_one_to_three_counts():
    stated = pytest.importorskip("syncopate.call.stated")
    assert stated.grid_of((8, 2), {}) == (8, 2, 1)
    for grid in (3, (), (1, 1, 1, 1)):
        with pytest.raises(TypeError, match="expected one to three counts of programs"):
            stated.grid_of(grid, {})


def test_a_fused_kernel_has_a_block_a_program():
    import syncopate as sy

    plan = sy.plans.all_gather(sy.Mesh(gpu=2), sy.Tensor("A", (8, 8), "fp32"), axis=0)
    fused = sy.face.fused.FusedKernel([sy.call.stage_call.Stage(chosen, {"x_ptr": "A"})], plan, None)
    with pytest.raises(ValueError, match="num_ctas: expected 1, got 2"):
        fused.call(0, (1,), None, 8, B=16, EVEN=True, num_ctas=2)


@triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32}, num_ctas=2)], key=["n"])
@triton.jit
def clustered(x_ptr, n, B: triton.language.constexpr):
    pass


def test_a_configuration_with_clusters_is_refused_and_the_others_are_not():
    from syncopate.call.stage_call import Call
    from syncopate.face.autotuned import configured

    call = Call((1,), {"x_ptr": None, "n": 8, "B": None}, {})
    assert configured(clustered, call, 0).arguments["B"] == 16
    with pytest.raises(ValueError, match="num_ctas: expected 1, got 2"):
        configured(clustered, call, 1)
