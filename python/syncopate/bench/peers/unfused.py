"""The product and the collective one after the other, by cuBLAS and NCCL; of a chain, the two products."""

EAGER = True


def make(case):
    return case.unfused
