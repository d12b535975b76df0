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


def gathered_then(case, name, attend):
    """A call that gathers K and V, and then attends each of this rank's runs of rows: attend(q, k, v, its first row)."""
    from .sdpa import parts_of

    gather, gathered = gathering(case)
    parts = [(first, q.contiguous()) for first, q in parts_of(case, case.q)]

    def call(i):
        gather(i)
        k, v = (case.in_order(x) for x in gathered)
        outs = [attend(q, k, v, first) for first, q in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    case.expect(name, call(0), case.runs)
    return call
