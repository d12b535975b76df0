"""Strategies: how a problem is carried out. What chooses is tune/, in C++.

strategy.choose(Problem("matmul_all_reduce", m, n, k, torch.bfloat16, ranks=8, num_sms=132))
sy.ops.MatmulAllReduce(m, n, k, strategy=Strategy(split=2, backend="copy_engine"))
"""

from .choose import (
    SMALL,
    choose,
    choose_found,
    complete,
    estimate,
    from_json,
    key_of,
    ranked,
    recorded,
    require,
    to_json,
    untuned,
)
from .model import DEDICATED, PROGRAMS_ON_HOST, Chunking, Problem, Strategy
from .tiling import Tiling, choose_tiling, device_name, gemm_tiles
from .ways import Way

__all__ = [
    "DEDICATED",
    "PROGRAMS_ON_HOST",
    "SMALL",
    "Chunking",
    "Problem",
    "Strategy",
    "Tiling",
    "Way",
    "choose",
    "choose_found",
    "choose_tiling",
    "complete",
    "device_name",
    "estimate",
    "from_json",
    "gemm_tiles",
    "key_of",
    "ranked",
    "recorded",
    "require",
    "to_json",
    "untuned",
]
