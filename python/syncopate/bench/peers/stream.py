"""The kernels of a chain as they are, one after the other in the stream."""

OPERATORS = ("mlp_chain",)


def make(case):
    return case.ours(case.operators(way="stream"))
