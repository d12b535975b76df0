"""cuBLAS into symmetric memory, then torch's one-shot all-reduce: each rank reads all of every other's product."""

import torch
import torch.distributed as dist

from .two_shot import symmetric_buffers

OPERATORS = ("matmul_all_reduce",)
LARGEST = 64 << 20  # bytes, beyond which it only takes time to show that it is slow


def make(case):
    if case.shape.m * case.shape.n * case.dtype.itemsize > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB: every rank would read all of them of each other")
    buffers = symmetric_buffers(case)

    def call(i):
        product = case.multiply(i, buffers(i))
        return torch.ops.symm_mem.one_shot_all_reduce(product, "sum", dist.group.WORLD.group_name)

    return call
