"""Operands and options that make no sense are named, before a group is asked for anything."""

import pytest

torch = pytest.importorskip("torch")
sy = pytest.importorskip("syncopate")

from syncopate import places  # noqa: E402
from syncopate.ops import scales  # noqa: E402

X, W = torch.zeros(8, 16), torch.zeros(16, 24)


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
            "dtype: expected a torch.dtype, such as torch.bfloat16, got 'fp32'",
            lambda: sy.strategy.choose(sy.strategy.Problem("matmul_all_reduce", 8, 8, 8, "fp32", ranks=2)),
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
    ],
)
def test_what_does_not_fit_is_named(error, message, call):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message
