"""`and`, `or` and `not` of blocks in the interpreter are those of each element, as the compiler takes them."""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from host_script import expect  # noqa: E402
from syncopate.host import interpreter  # noqa: E402


@triton.jit
def both(r, c, n, m):
    return r < n and c < m


@triton.jit
def kernel(y_ptr, n, m, B: tl.constexpr):
    r = tl.arange(0, B)[:, None]
    c = tl.arange(0, B)[None, :]
    at = y_ptr + r * B + c
    keep = both(r, c, n, m)
    tl.store(at, 1, mask=keep)
    tl.store(at + B * B, 1, mask=r < n or c < m)
    tl.store(at + 2 * B * B, 1, mask=not (r < n and c < m))
    if n > 2 and not m > 5:
        tl.store(y_ptr + 3 * B * B, 7)
    if n > 2 or m > 100:
        tl.store(y_ptr + 3 * B * B + 1, 8)


if __name__ == "__main__":
    n, m, block = 5, 4, 8
    y = torch.zeros(3 * block**2 + 2, dtype=torch.int32)
    interpreter.launch(kernel, (1, 1, 1), {"y_ptr": y, "n": n, "m": m, "B": block})
    r, c = torch.arange(block)[:, None], torch.arange(block)[None]
    found = y[:-2].view(3, block, block).bool()
    for name, one, exact in zip(
        ("and", "or", "not"), found, ((r < n) & (c < m), (r < n) | (c < m), ~((r < n) & (c < m))), strict=True
    ):
        expect(torch.equal(one, exact), f"{name}: {one}")
    expect(y[-2:].tolist() == [7, 8], f"of numbers: {y[-2:]}")
