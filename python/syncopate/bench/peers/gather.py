"""NCCL's all-gather of K and V alone."""

import torch
import torch.distributed as dist

OPERATORS = ("attention",)
WHOLE = False


def make(case):
    return gathering(case)[0]


def gathering(case):
    """A call that gathers K and V, and where it leaves them: [ranks, 1, HKV, rows, D] each."""
    parts = [torch.empty(case.size, *x.shape, dtype=x.dtype, device=x.device) for x in (case.k, case.v)]

    def call(_):
        for part, own in zip(parts, (case.k, case.v), strict=True):
            dist.all_gather_into_tensor(part.view(-1, *own.shape[1:]), own)

    return call, parts
