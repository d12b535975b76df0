"""The collective alone, by torch.distributed (NCCL on a GPU)."""

OPERATORS = (
    "all_gather_matmul",
    "all_to_all_matmul",
    "feed_forward",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
)
WHOLE = False
GRAPH = False


def make(case):
    return case.collective
