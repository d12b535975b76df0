"""Ulysses: NCCL's all-to-all of Q, K and V, torch's SDPA of all rows of this rank's heads, and the all-to-all of O, with the
copies that put each in the order that the next one takes."""

import torch
import torch.distributed as dist

from ..sdpa import attend_within

OPERATORS = ("attention",)


def make(case):
    n = case.size
    if case.shape.heads % n or case.shape.kv_heads % n:
        raise ValueError(f"{case.shape.heads} and {case.shape.kv_heads} heads on {n} ranks")
    own = [case.shard(x, case.row_runs) for x in case.whole]

    def inwards(x):
        b, h, rows, d = x.shape
        blocks = x.view(b, n, h // n, rows, d).transpose(0, 1).contiguous()
        came = torch.empty_like(blocks)
        dist.all_to_all_single(came, blocks)
        return came.permute(1, 2, 0, 3, 4).reshape(b, h // n, n * rows, d)

    def outwards(x):
        b, h, rows, d = x.shape
        blocks = x.view(b, h, n, rows // n, d).permute(2, 0, 1, 3, 4).contiguous()
        came = torch.empty_like(blocks)
        dist.all_to_all_single(came, blocks)
        return came.transpose(0, 1).reshape(b, n * h, rows // n, d)

    def call(_):
        return outwards(attend_within(case, *(inwards(x) for x in own), 0))

    case.expect("ulysses_sdpa", call(0), case.row_runs)
    return call
