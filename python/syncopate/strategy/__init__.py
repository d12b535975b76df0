"""Strategies: how a problem is carried out. What chooses is tune/, in C++.

strategy.choose(Problem("matmul_all_reduce", m, n, k, torch.bfloat16, ranks=8, num_sms=132))
sy.ops.MatmulAllReduce(m, n, k, strategy=Strategy(split=2, backend="copy_engine"))
"""

from .._syncopate import Chunking, Problem, Strategy, Tiling
from .choose import (
    SMALL,
    choose,
    choose_found,
    complete,
    estimate,
    given,
    recorded,
    require,
    shared,
)
from .tiling import choose_tiling, device_name, gemm_tiles

PROGRAMS_ON_HOST = 4  # of a grid, where each is a thread's work in the interpreter

#: The JSON that stores keep.
to_json, from_json = Strategy.to_json, Strategy.from_json

__all__ = [
    "PROGRAMS_ON_HOST",
    "SMALL",
    "Chunking",
    "Problem",
    "Strategy",
    "Tiling",
    "choose",
    "choose_found",
    "choose_tiling",
    "complete",
    "device_name",
    "estimate",
    "from_json",
    "gemm_tiles",
    "given",
    "recorded",
    "require",
    "shared",
    "to_json",
]
