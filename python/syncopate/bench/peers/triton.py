"""Our kernel alone, unmodified."""

OPERATORS = (
    "all_gather_matmul",
    "all_to_all_matmul",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
)
WHOLE = False
GRAPH = False


def make(case):
    made = case.operators(count=1)[0]
    return lambda i: made.unfused(*case.operands(i))
