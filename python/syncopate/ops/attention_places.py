"""Where a rank that holds some rows of a sequence has them: its own tensors, in which they lie run after run."""

from __future__ import annotations

import torch

from ..plans import Rows

ALIGNMENT = (
    16  # bytes, of which the address and the strides of what is read through a descriptor are multiples
)


def place_table(rows: Rows, s: int, block: int) -> torch.Tensor:
    """int32 [blocks of a sequence of s rows]: where in these rows, one run behind another, each block begins; -1 where it is
    none of theirs. Runs are of whole blocks, but at the end of the sequence."""
    table = torch.full((-(-s // block),), -1, dtype=torch.int32)
    before = 0
    for begin, end in rows:
        places = torch.arange(before, before + end - begin, block, dtype=torch.int32)
        table[begin // block : begin // block + len(places)] = places
        before += end - begin
    return table


def fits_descriptor(tensor: torch.Tensor) -> bool:
    size = tensor.element_size()
    steps = [size * stride for stride in tensor.stride()[:-1]]
    aligned = tensor.data_ptr() % ALIGNMENT == 0 and all(step > 0 and step % ALIGNMENT == 0 for step in steps)
    return aligned and tensor.stride(-1) == 1


def for_descriptor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy that a descriptor can be made of."""
    return tensor if fits_descriptor(tensor) else tensor.clone(memory_format=torch.contiguous_format)
