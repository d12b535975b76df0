"""What is taken for the rounding of sums in another order, and what is not."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
from syncopate.command.higher_precision import Loosened, widened, wider_text, within  # noqa: E402

RIGHT = torch.linspace(-4, 4, 33, dtype=torch.float64)


@pytest.mark.parametrize(
    ("dtype", "off", "taken"),
    [
        (torch.float32, 1e-6, True),
        (torch.float32, 1e-3, False),
        (torch.bfloat16, 1e-2, True),
        (torch.bfloat16, 0.2, False),
        (torch.float16, 1e-3, True),
        (torch.float16, 0.02, False),
        (torch.float64, 1e-14, True),
        (torch.float64, 1e-9, False),
    ],
)
def test_a_result_may_be_off_by_rounding_in_every_element_and_no_more_in_any(dtype, off, taken):
    alone = RIGHT.to(dtype)
    assert within(alone, alone, RIGHT)
    got = alone.clone()
    got[20] += off
    assert within(got, alone, RIGHT) == taken


def test_it_may_be_about_as_far_off_as_the_unfused_kernel_is():
    alone = (RIGHT + 0.01 * RIGHT.sin()).float()
    assert within((RIGHT - 0.01 * RIGHT.sin()).float(), alone, RIGHT)
    assert not within((RIGHT + 0.1 * RIGHT.sin()).float(), alone, RIGHT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_must_be_none_in_both(value):
    alone, right = RIGHT.float(), RIGHT.clone()
    alone[3] = right[3] = value
    assert within(alone.clone(), alone, right)
    got = alone.clone()
    got[3] = 1.0
    assert not within(got, alone, right)
    got = alone.clone()
    got[4] = value
    assert not within(got, alone, right)


def test_integers_are_compared_bit_for_bit_and_nothing_is_within_nothing():
    whole = torch.arange(5)
    assert within(whole, whole.clone(), whole)
    assert not within(whole + 1, whole, whole)
    assert within(*[torch.empty(0)] * 3)


def test_a_kernel_that_cannot_run_in_higher_precision_is_held_against_itself():
    loosened = Loosened("it says so", None)
    assert loosened.explains([RIGHT.float()], [(RIGHT + 1e-7).float()])
    assert not loosened.explains([RIGHT.float()], [(RIGHT + 1e-2).float()])
    assert loosened.against == "within rounding of the unfused kernel (it says so)"


def test_types_that_a_kernel_names_become_those_of_its_wider_tensors():
    text = "acc = tl.zeros((B,), tl.float32).to(tl.bfloat16); my.float32; tl.float32x"
    half, single = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)
    assert wider_text(text, [half]).startswith("acc = tl.zeros((B,), tl.float32).to(tl.float32); my.float32")
    assert wider_text(text, [half, single]).startswith("acc = tl.zeros((B,), tl.float64).to(tl.float64)")
    assert [widened(t).dtype for t in (half, single, torch.arange(2))] == [
        torch.float32,
        torch.float64,
        torch.int64,
    ]
