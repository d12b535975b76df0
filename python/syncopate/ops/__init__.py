"""Operators for tensor parallelism: drop-in replacements for a collective and a matmul run one after the other."""

from ..strategy import Chunking, Strategy, Tiling
from .attention import Attention
from .attention_backward import AttentionBackward
from .attention_function import attention
from .attention_rules import AttentionTiling
from .block import FeedForward, feed_forward
from .exchange import AllToAllMatmul, MatmulAllToAll, all_to_all_matmul, matmul_all_to_all
from .gather import AllGatherMatmul, all_gather_matmul
from .mixture import Moe
from .mixture_function import combine, dispatch, moe
from .mixture_scaled import ScaledMoe, ScaledTensorMoe
from .mixture_tensor import TensorMoe
from .operator import Operator
from .reduce import MatmulAllReduce, MatmulReduceScatter, matmul_all_reduce, matmul_reduce_scatter

#: By their names in SPEC (`syncopate run SPEC`).
OPERATORS: dict[str, type[Operator] | type[Attention]] = {
    kind.name: kind
    for kind in (
        AllGatherMatmul,
        MatmulReduceScatter,
        MatmulAllReduce,
        MatmulAllToAll,
        AllToAllMatmul,
        FeedForward,
        Attention,
    )
}

__all__ = [
    "OPERATORS",
    "AllGatherMatmul",
    "AllToAllMatmul",
    "Attention",
    "AttentionBackward",
    "AttentionTiling",
    "Chunking",
    "FeedForward",
    "MatmulAllReduce",
    "MatmulAllToAll",
    "MatmulReduceScatter",
    "Moe",
    "Operator",
    "ScaledMoe",
    "ScaledTensorMoe",
    "Strategy",
    "TensorMoe",
    "Tiling",
    "all_gather_matmul",
    "all_to_all_matmul",
    "attention",
    "combine",
    "dispatch",
    "feed_forward",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
    "moe",
]
