"""A user's own products in the places of a mixture of experts' two: functions that make a tile."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

#: What such a function takes, in this order.
PARAMETERS = "a_ptr, w_ptr, expert, row, rows, n, K, N, BLOCK_M, BLOCK_N, BLOCK_K"


def own_products(given: Any, activation: str, part: str, scales: str) -> tuple[Any, Any] | None:
    """They, if there are any. Raises ValueError for what they cannot be."""
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2:
        raise ValueError("products: expected two functions, of the first and of the second product")
    for one in given:
        names = getattr(one, "arg_names", None)
        if names is None:
            raise ValueError(f"products: expected functions of @triton.jit, got {one!r}")
        if len(names) != PARAMETERS.count(",") + 1:
            raise ValueError(
                f"products: {one.__name__} takes {', '.join(names)}; it is called with {PARAMETERS}"
            )
    if scales:
        raise ValueError("products: mixtures of fp8 have the library's products")
    if part != "whole":
        raise ValueError(f"products: part={part} of a mixture has the library's products, or none")
    if activation != "silu":
        raise ValueError(
            f"activation={activation!r}: of the library's products; the first of yours has its own"
        )
    return given


def name_of(product: Any) -> str:
    """By which ranks tell theirs apart: with a digest of its own text, as Triton has kept it."""
    text = "".join(getattr(product, "raw_src", ()))
    if not text:  # of the interpreter's
        try:
            text = inspect.getsource(product.fn)
        except OSError:  # its file is gone
            text = ""
    return f"{product.__name__}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
