"""NCCL's all-gather of K and V, then our kernel for Hopper alone: ours unfused."""

import torch

from .gather import gathered_then

OPERATORS = ("attention",)


def make(case):
    if not case.on_gpu or torch.cuda.get_device_capability()[0] != 9:
        raise NotImplementedError("for Hopper GPUs")
    if case.cuts:
        raise ValueError("it is called for one document")
    from syncopate.kernels.gluon_attention_call import attend

    def attended(q, k, v, first):
        return attend(q, k, v, causal=case.shape.causal, offset=first)[0]

    return gathered_then(case, "nccl_ours", attended)
