"""`syncopate run DIR --check` of a kernel whose additions may come in another order than alone: ranges of a loop that says
`# @sy.any_order`, or floats added with atomics, whose order changes from run to run. Bits may differ then, and neither result is
the right one. So both are held against the same kernel in higher precision, and the fused one may be about as far from
that as the unfused one is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..host.bounds import watched

#: The least relative error that is taken for rounding, by the size of an element; of 16 bits and fewer two units in the last place.
ROUNDING = {8: 1e-12, 4: 1e-5}
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}

#: Of a kernel that names the types in which it computes.
_NARROW = re.compile(r"(?<=\btl\.)(bfloat16|float16|float32)\b")
#: Where a compiled kernel adds floats with atomics.
_FLOAT_ATOMIC = re.compile(r"\b(?:atom|red)\.\S*add\S*\.(?:f|bf)\d")


@dataclass
class Loosened:
    """`why` bits may differ, and what the unfused kernel makes in higher precision; None: it cannot be run so."""

    why: str
    wide: Sequence[torch.Tensor] | None

    def explains(self, outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
        """Whether the outputs differ from those of the unfused kernel by the rounding of sums alone."""
        right = wanted if self.wide is None else self.wide
        return all(within(*three) for three in zip(outputs, wanted, right, strict=True))

    @property
    def against(self) -> str:
        what = "the unfused kernel" if self.wide is None else "the unfused kernel in higher precision"
        return f"within rounding of {what} ({self.why})"


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same, of twice the bits an element, where these are floats and there are so many."""
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype))


def wider_text(source: str, tensors: Sequence[torch.Tensor]) -> str:
    """A kernel's file, in which it computes in the precision that the tensors have once they are wider."""
    double = any(tensor.dtype == torch.float32 for tensor in tensors)
    return _NARROW.sub("float64" if double else "float32", source)


def within(got: torch.Tensor, unfused: torch.Tensor, right: torch.Tensor) -> bool:
    """Element by element; where these are no numbers, the same as in the unfused kernel's result."""
    if not got.is_floating_point():
        return bool(torch.equal(got, unfused))
    least = ROUNDING.get(got.element_size(), 2 * torch.finfo(got.dtype).eps)
    got, unfused, right = (tensor.double() for tensor in (got, unfused, right))
    finite = unfused.isfinite() & right.isfinite()
    same = (got == unfused) | (got.isnan() & unfused.isnan())
    if not bool((same | finite).all()):
        return False
    usual = right[finite].square().mean().sqrt() if bool(finite.any()) else right.new_zeros(())
    alone = (unfused - right).where(finite, 0.0).abs()
    allowed = least * right.abs().clamp_min(float(usual)) + 2 * float(alone.max() if alone.numel() else 0)
    return bool(((got - right).abs() <= allowed).where(finite, same).all())


def adds_floats_atomically(compiled: Any) -> bool:
    """Whether a kernel that Triton compiled for a GPU does."""
    return bool(_FLOAT_ATOMIC.search(getattr(compiled, "asm", {}).get("ptx", "")))


@contextmanager
def noting_float_atomics() -> Iterator[list[bool]]:
    """Within it, an interpreted kernel that adds floats with atomics adds to the list."""
    seen: list[bool] = []

    def note(_builder: Any, verb: str, _pointers: Any, _mask: Any, operands: tuple[Any, ...]) -> None:
        if verb == "updates" and str(operands[0]).rpartition(".")[2].upper() == "FADD":
            seen.append(True)

    with watched(note):
        yield seen


def in_higher_precision(run: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor] | None:
    """What it makes; None where the kernel does not do it: it may name types, or take more memory than there is."""
    try:
        return run()
    except Exception:  # noqa: BLE001 - Triton's, of the interpreter or a compiler
        return None


def reason(reorders: bool, atomics: bool) -> str:
    """Why additions may come in another order; "": they do not."""
    said = {
        "ranges of a loop run as they arrive, @sy.any_order": reorders,
        "it adds floats with atomics": atomics,
    }
    return "; ".join(text for text, holds in said.items() if holds)
