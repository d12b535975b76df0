"""The product and the collective one after the other, by cuBLAS and NCCL."""

EAGER = True


def make(case):
    return case.unfused
