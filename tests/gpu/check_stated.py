"""Stated kernels on one GPU: check_statement finds nothing in right ones and names what is wrong in others.

check_stated.py [SECTION …]
"""

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
from stated_kernels import BOX, stated  # noqa: E402
from stated_matmul_cuda import BLOCKS, matmul  # noqa: E402
from syncopate.call.stated import without_filled  # noqa: E402
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments, make_workspace  # noqa: E402
from syncopate.kernels.stated_matmul import stated_matmul  # noqa: E402

M, N = 50, 40


def scaled(expected: str | None, options: dict | None = None, **changed: object) -> None:
    """What check_statement says of scale_rows with these arguments and this statement; None: nothing."""
    x, y = torch.randn(M, N, device="cuda"), torch.empty(M, N, device="cuda")
    blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1} | (options or {})
    kernel = stated(**changed)
    found = sy.check_statement(kernel, x, y, M, N, 2.0, **blocks)
    if expected is None:
        assert not found, found
    else:
        assert found and expected in found[0], (expected, found)


def statement() -> None:
    scaled(None)
    scaled("tile 0 (m = 0, n = 0) reads x_ptr[", {"BEYOND": 16})
    scaled("does not wait for the signal of its slot before it loads", {"WAITS": False})
    scaled("does not post what it has stored", {"POSTS": False})
    narrow = ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : n*BLOCK_N + 15"]
    scaled(
        "writes y_ptr[0, 15] and 15 more elements, which is not stated", writes={"y_ptr": narrow}, host=None
    )
    wide = ["m*BLOCK_M : (m+1)*BLOCK_M + 1", "n*BLOCK_N : (n+1)*BLOCK_N"]
    scaled(
        "is stated to write y_ptr[16, 0] and 15 more elements, and does not",
        writes={"y_ptr": wide},
        host=None,
    )
    scaled("reads x_ptr[", reads={"x_ptr": narrow}, host=None)


def alone() -> None:
    """An unfused call, again and again."""
    x, y = torch.randn(M, N, device="cuda"), torch.empty(M, N, device="cuda")
    for programs in (1, 3, 7, 12, 12):
        y.fill_(float("nan"))
        stated()[(programs,)](x, y, M, N, 3.0, BLOCK_M=16, BLOCK_N=16, num_warps=1)
        assert torch.equal(y, 3 * x), programs
    assert BOX


def gemm() -> None:
    m, n, k = 200, 264, 320
    for tiling in (GluonTiling(64, 64, 64, 3), GluonTiling(128, 128, 64, 3), GluonTiling(64, 64, 64, 3, 2)):
        for transposed in (False, True):
            a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(*((n, k) if transposed else (k, n)), device="cuda", dtype=torch.bfloat16)
            c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            for copy in (None, torch.empty_like(a)):
                arguments = without_filled(
                    gluon_arguments(
                        a,
                        w,
                        c,
                        (m, n, k),
                        tiling,
                        w_transposed=transposed,
                        workspace=make_workspace(tiling, m, n, "cuda"),
                        copy=copy,
                        GATED=False,
                    )
                )
                found = sy.check_statement(
                    stated_matmul(transposed), tiles=3, **arguments, **tiling.options()
                )
                assert not found, (tiling, transposed, copy is not None, found[:3])


def cuda() -> None:
    """A kernel in CUDA C++, whose loop awaits its phases."""
    m, n, k = 50, 40, 100
    a, b, c = (torch.randn(shape, device="cuda") for shape in ((m, k), (k, n), (m, n)))
    found = sy.check_statement(matmul, a, b, c, m, n, k, **BLOCKS)
    assert not found, found[:3]
    c.fill_(float("nan"))
    matmul[(5,)](a, b, c, m, n, k, **BLOCKS)
    assert torch.allclose(c, a @ b, atol=1e-4), "alone"


SECTIONS = {"statement": statement, "alone": alone, "gemm": gemm, "cuda": cuda}

if __name__ == "__main__":
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
        print(f"{name}: ok")
