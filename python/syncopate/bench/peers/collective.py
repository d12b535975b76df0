"""The collective alone, by torch.distributed (NCCL on a GPU)."""

WHOLE = False
GRAPH = False


def make(case):
    return case.collective
