"""NCCL's all-gather of K and V, then causal attention by cuDNN in two parts a run of rows. Without a mask, nccl_sdpa is by
cuDNN where torch has it."""

from ..sdpa import attend_by_cudnn
from .gather import gathered_then

OPERATORS = ("attention",)


def make(case):
    if not case.on_gpu or not case.shape.causal or case.cuts:
        raise ValueError("for causal attention of one document on a GPU")
    return gathered_then(case, "nccl_cudnn", attend_by_cudnn)
