"""torch's fused operators on symmetric memory (async tensor parallelism); of fp8 those that take scales."""

import torch
import torch.distributed as dist

OPERATORS = ("all_gather_matmul", "matmul_reduce_scatter")
GRAPH = False


def make(case):
    if case.device.type != "cuda":
        raise NotImplementedError("torch has none on the host")
    # Defines its operators, which a program that has not used symmetric memory yet does not have.
    import torch.distributed._symmetric_memory  # noqa: F401

    group = dist.group.WORLD.group_name
    fused = torch.ops.symm_mem
    if case.dtype_of_x == torch.float8_e4m3fn:
        return of_fp8(case, fused, group)
    if case.operator == "all_gather_matmul":
        return lambda i: fused.fused_all_gather_matmul(case.x(i), [case.w(i)], 0, group)[1][0]
    return lambda i: fused.fused_matmul_reduce_scatter(case.x(i), case.w(i), "sum", 0, group)


def of_fp8(case, fused, group):
    if case.scales == "block":
        raise ValueError("its products take no scales of blocks")
    one = torch.ones((), device=case.device)

    def scales(i):  # a number for all, or [rows, 1] and [1, N]
        given = case.scales_of(i)
        return (given[0].unsqueeze(1), given[1].unsqueeze(0)) if given else (one, one)

    def gathered(i):
        scale_x, scale_w = scales(i)
        return fused.fused_all_gather_scaled_matmul(
            case.x(i), [case.w(i).t()], scale_x, [scale_w], 0, group, [None], [None], [case.dtype], [False]
        )[1][0]

    def scattered(i):
        scale_x, scale_w = scales(i)
        shape = [case.shape.m, case.shape.n]
        return fused.fused_scaled_matmul_reduce_scatter(
            case.x(i), case.w(i).t(), scale_x, scale_w, "sum", 0, 0, group, shape, out_dtype=case.dtype
        )

    return gathered if case.operator == "all_gather_matmul" else scattered
