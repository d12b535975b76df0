"""What a launch of a fused kernel must give: a missing argument is named, with who would have chosen it."""

import inspect

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("torch")
arguments = pytest.importorskip("syncopate.arguments")


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
    from syncopate import jit
    from triton.runtime import _allocation

    before = _allocation._allocator.get()
    try:
        jit.provide_scratch(torch.device("cpu"))
        scratch = _allocation._allocator.get()(4096, 128, None)
        assert scratch.numel() * scratch.element_size() == 4096 and scratch.data_ptr() % 64 == 0
    finally:
        triton.set_allocator(before)


def test_a_number_that_triton_has_made_a_constant_of_is_not_launched_with_another():
    jit = pytest.importorskip("syncopate.jit")
    signature = {"n": "i32", "first": "constexpr", "B": "constexpr"}
    compiled = jit.Compiled(None, signature, [], ones=frozenset({"first"}))
    compiled.pack({"n": 3, "first": 1, "B": 16})
    with pytest.raises(ValueError, match="^parameter first: the kernel was compiled for 1, and cannot be"):
        compiled.pack({"n": 3, "first": 0, "B": 16})
