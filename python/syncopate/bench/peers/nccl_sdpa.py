"""NCCL's all-gather of K and V, then torch's SDPA, by the back end that it takes."""

import torch

from ..sdpa import attend_within
from .gather import gathering
from .sdpa import parts_of

OPERATORS = ("attention",)


def make(case):
    gather, gathered = gathering(case)
    parts = parts_of(case, case.q)

    def call(i):
        gather(i)
        k, v = (case.in_order(x) for x in gathered)
        outs = [attend_within(case, q, k, v, first) for first, q in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    case.expect("nccl_sdpa", call(0), case.runs)
    return call
