"""The statement of stated_matmul.cu."""

from pathlib import Path

import syncopate as sy

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}

matmul = sy.kernel(
    sy.cuda_kernel(
        Path(__file__).with_name("stated_matmul.cu"),
        "matmul",
        {
            **dict.fromkeys(("a", "b", "c"), "*fp32"),
            **dict.fromkeys(("M", "N", "K"), "i32"),
            **dict.fromkeys(("sy_schedule", "sy_control", "sy_own"), "i64"),
            **dict.fromkeys((*BLOCKS, "FETCHED", "OWN", "PUSHED"), "constexpr"),
        },
        threads=BLOCKS["BLOCK_M"] * BLOCKS["BLOCK_N"],
    ),
    tiles={"m": "cdiv(M, BLOCK_M)", "n": "cdiv(N, BLOCK_N)"},
    loops={"k": "cdiv(K, BLOCK_K)"},
    reads={
        "a": ["m*BLOCK_M : (m+1)*BLOCK_M", "k*BLOCK_K : (k+1)*BLOCK_K"],
        "b": ["k*BLOCK_K : (k+1)*BLOCK_K", "n*BLOCK_N : (n+1)*BLOCK_N"],
    },
    writes={"c": ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : (n+1)*BLOCK_N"]},
    placed=["a", "c"],
)
