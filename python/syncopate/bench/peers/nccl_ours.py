"""NCCL's all-gather of K and V, then our kernel for Hopper alone: ours unfused."""

import torch

from .gather import gathering
from .sdpa import parts_of

OPERATORS = ("attention",)


def make(case):
    if not case.on_gpu or torch.cuda.get_device_capability()[0] != 9:
        raise NotImplementedError("for Hopper GPUs")
    if case.cuts:
        raise ValueError("it is called for one document")
    from syncopate.kernels.gluon_attention_call import attend

    gather, gathered = gathering(case)
    parts = [(first, q.contiguous()) for first, q in parts_of(case, case.q)]

    def call(i):
        gather(i)
        k, v = (case.in_order(x) for x in gathered)
        outs = [attend(q, k, v, causal=case.shape.causal, offset=first)[0] for first, q in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    case.expect("nccl_ours", call(0), case.runs)
    return call
