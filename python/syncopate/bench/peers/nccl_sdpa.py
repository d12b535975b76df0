"""NCCL's all-gather of K and V, then torch's SDPA, by the back end that it takes."""

import functools

from ..sdpa import attend_within
from .gather import gathered_then

OPERATORS = ("attention",)


def make(case):
    return gathered_then(case, "nccl_sdpa", functools.partial(attend_within, case))
