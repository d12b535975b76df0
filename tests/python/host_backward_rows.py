"""What goes before and after the kernels of attention's backward, in Triton's interpreter; run by test_attention_backward.py. Exits 1
with the first thing that is wrong."""

import itertools
import math
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import torch  # noqa: E402
from host_script import expect  # noqa: E402
from syncopate.host import interpreter  # noqa: E402
from syncopate.kernels.attention_backward import add_parts, finish_rows, prepare_rows  # noqa: E402


def as_tensor_cores_leave(block: torch.Tensor) -> torch.Tensor:
    """A block of dQ [rows, D], in the order of gluon_attention_backward: consumer by consumer, warp by warp, and of each tile of 16
    by 8 thread by thread, its registers as the PTX manual has them for the result of wgmma."""
    rows, d = block.shape
    halves = block.split(64, 0) if rows == 128 else block.split(d // 2, 1)
    lines = []
    for half in halves:
        for warp, eight in itertools.product(range(4), range(half.shape[1] // 8)):
            for thread, register in itertools.product(range(32), range(4)):
                row = 16 * warp + thread // 4 + 8 * (register // 2)
                lines.append(half[row, 8 * eight + 2 * (thread % 4) + register % 2])
    return torch.stack(lines)


def check_finished(rows: int, d: int, s: int) -> None:
    heads, blocks, scale = 2, math.ceil(s / rows), 0.5
    whole = torch.randn(heads, blocks * rows, d)
    wanted = (whole[:, :s] * scale).bfloat16()
    sums = torch.stack([as_tensor_cores_leave(block) for block in whole.view(-1, rows, d)])
    for held, pieces in ((sums, True), (whole, False)):
        made = torch.empty(1, heads, s, d, dtype=torch.bfloat16)
        finish_rows[(heads * blocks,)](held, made, s, blocks * rows, scale, D=d, ROWS=rows, PIECES=pieces)
        expect(torch.equal(made[0], wanted), f"{s} rows of {d} by {rows}, pieces {pieces}: others")


def check_prepared(zero: bool, lse_too: bool) -> None:
    b, h, s, d, rows, padded = 2, 3, 50, 16, 32, 64
    o, do = torch.randn(2, b, s, h, d).bfloat16().transpose(2, 3)
    lse, dlse = torch.randn(2, b, h, s)
    lse[1, 2, 7] = -math.inf
    lse2, delta = (torch.full((b, h, padded), math.nan) for _ in range(2))
    sums = torch.full((b, h, padded, d), math.nan)
    prepare_rows[(padded // rows * b * h,)](
        o, do, lse, dlse, lse2, delta, sums, h, s, padded, *o.stride()[:3], *do.stride()[:3],
        DLSE=lse_too, ZERO=zero, D=d, ROWS=rows,
    )  # fmt: skip
    wanted = (o.double() * do.double()).sum(-1) - (dlse if lse_too else 0)
    expect(torch.allclose(delta[:, :, :s].double(), wanted, atol=1e-5), "delta is another")
    expect(torch.allclose(lse2[:, :, :7], lse[:, :, :7] / math.log(2)), "lse is another")
    expect(lse2[1, 2, 7] == math.inf, "a row that sees nothing has weights")
    expect(
        bool((lse2[:, :, s:] == math.inf).all()) and not delta[:, :, s:].any(),
        "rows that are none have weights",
    )
    expect(not sums.any() if zero else bool(sums.isnan().all()), f"zero {zero}: sums are not so")


def check_added(parts: int, length: int, dtype: torch.dtype) -> None:
    given = torch.randn(2, 3, parts, length)
    dk, dv = made = [torch.full((3, length), math.nan, dtype=dtype) for _ in range(2)]
    add_parts[(math.ceil(length / 128) * 3, 2)](given, dk, dv, length, PARTS=parts, BLOCK=128)
    wanted = torch.zeros(2, 3, length)
    for part in range(parts):
        wanted += given[:, :, part]
    expect(torch.equal(torch.stack(made), wanted.to(dtype)), f"{parts} parts of {length}: another sum")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    interpreter.repair_bf16()
    for rows, d, s in ((64, 128, 100), (128, 64, 128), (128, 64, 129), (64, 256, 70)):
        check_finished(rows, d, s)
    for zero, lse_too in ((False, True), (True, False)):
        check_prepared(zero, lse_too)
    for parts, length, dtype in ((2, 300, torch.bfloat16), (3, 256, torch.float32)):
        check_added(parts, length, dtype)
    print("rows are right")
