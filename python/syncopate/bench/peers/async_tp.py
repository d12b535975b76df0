"""torch's fused operators on symmetric memory (async tensor parallelism)."""

import torch
import torch.distributed as dist

OPERATORS = ("all_gather_matmul", "matmul_reduce_scatter")
GRAPH = False


def make(case):
    group = dist.group.WORLD.group_name
    fused = torch.ops.symm_mem
    if case.operator == "all_gather_matmul":
        return lambda i: fused.fused_all_gather_matmul(case.x(i), [case.w(i)], 0, group)[1][0]
    return lambda i: fused.fused_matmul_reduce_scatter(case.x(i), case.w(i), "sum", 0, group)
