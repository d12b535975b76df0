"""Other products of a mixture of experts on GPUs than those that are chosen: torchrun --nproc-per-node 2
tests/gpu/check_moe_products.py [SECTION …]. See SECTIONS at the end."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "examples"))

import own_experts  # noqa: E402
import syncopate as sy  # noqa: E402
from check_moe import Layer, Scaled, agrees  # noqa: E402
from sections import expect, rank, run, size  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.ops.mixture_scaled import own_scales, own_weights  # noqa: E402

KINDS = ("random", "skewed", "one")


def own() -> None:
    """Those of the user's: examples/own_experts.py's functions, against torch."""
    products = own_experts.squared_relu, own_experts.down
    for shape in ((100, 3, 2, 48, 40), (512, 8, 4, 512, 256)):
        layer = Layer(*shape, torch.bfloat16)
        for call, kind in enumerate(KINDS):
            x, ids = layer.x(call), layer.ids(call, kind)
            y = ops.moe(*layer.of_rank(x, ids), products=products)
            right = own_experts.in_torch(x[rank()], ids[rank()], layer.weights[rank()], layer.w1, layer.w2)
            off = ((y.float() - right).norm() / right.norm().clamp_min(1e-30)).item()
            expect(off < 0.01, f"products of one's own, {shape}, {kind}: off by {off}")
        sy.close()


def gluon() -> None:
    """The first product by the Gluon kernel, exact, calls one behind another."""
    for shape in ((300, 4, 2, 1024, 768), (900, 2, 2, 192, 128)):
        for dtype in (torch.bfloat16, torch.float16):
            layer = Layer(*shape, dtype)
            op = ops.Moe(
                shape[0], layer.experts, *shape[2:], dtype, sy.group.of_process_group(None), activation="relu",
                strategy=sy.Strategy(kernel="gluon"),
            )  # fmt: skip
            expect(op._up_by_gluon, f"{shape} {dtype}: the plain kernel made it")
            calls = []
            for call, kind in enumerate(KINDS * 4):
                x, ids = layer.x(call), layer.ids(call, kind)
                calls.append((op.run(*layer.of_rank(x, ids))[0], layer.right(x, ids), kind))
            for y, right, kind in calls:
                agrees(y, right, f"gluon {shape} {dtype} {kind}")
            op.check()
            op.close()
    sy.close()


def scaled_tensor() -> None:
    """Tensor parallel experts of fp8, by few and by many rows, against torch in fp32."""
    for shape in ((64, 16, 8, 512, 128 * size()), (700, 2, 2, 1040, 256 * size())):
        for kind in ("row", "block"):
            layer = Scaled(*shape, kind)
            place = "tensor", rank(), size()
            w1, w2 = own_weights(*place, layer.w1.transpose(1, 2), layer.w2.transpose(1, 2))
            scales = layer.sx[rank()], *own_scales(*place, layer.s1, layer.s2)
            y = ops.moe(*layer.operands()[:3], w1, w2, parallel="tensor", scales=scales)
            off = ((y.float() - layer.right()).norm() / layer.right().norm()).item()
            expect(off < 0.02, f"tensor parallel, fp8 {kind} {shape} is off by {off:.2e} of its norm")
            sy.close()


SECTIONS = {"own": own, "gluon": gluon, "scaled_tensor": scaled_tensor}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
