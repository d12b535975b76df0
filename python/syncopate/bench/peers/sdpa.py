"""torch's SDPA on K and V that are gathered already."""

import torch

from ..sdpa import attend_within

OPERATORS = ("attention",)
WHOLE = False


def make(case):
    parts, _, k, v = parts_of(case, case.q), *case.whole

    def call(_):
        outs = [attend_within(case, q, k, v, first) for first, q in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    case.expect("sdpa", call(0), case.runs)
    return call


def parts_of(case, q):
    """(first row, rows of q) of each of this rank's runs."""
    rows = q.split([end - begin for begin, end in case.runs], 2)
    return [(begin, part) for (begin, _), part in zip(case.runs, rows, strict=True)]
