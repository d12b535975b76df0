"""NCCL's all-gather of K and V, then causal attention by cuDNN in two parts a run of rows. Without a mask, nccl_sdpa is by
cuDNN where torch has it."""

import torch

from ..sdpa import attend_by_cudnn
from .gather import gathering
from .sdpa import parts_of

OPERATORS = ("attention",)


def make(case):
    if not case.on_gpu or not case.shape.causal or case.cuts:
        raise ValueError("for causal attention of one document on a GPU")
    gather, gathered = gathering(case)
    parts = parts_of(case, case.q)

    def call(i):
        gather(i)
        k, v = (case.in_order(x) for x in gathered)
        outs = [attend_by_cudnn(q, k, v, first) for first, q in parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    case.expect("nccl_cudnn", call(0), case.runs)
    return call
