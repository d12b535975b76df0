"""torch's context_parallel, K and V passed on round a ring ("alltoall")."""

from .cp_allgather import within_context

OPERATORS = ("attention",)


def make(case):
    return within_context(case, "alltoall")
