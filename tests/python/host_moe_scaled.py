"""Experts of fp8 with scales on host ranks, against torch in fp64; run by test_moe.py.

    host_moe_scaled.py RANKS

Exits 1 with the first thing that is wrong.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl
from host_moe import expect, of_folder, on_ranks, sy, torch
from syncopate import ops
from syncopate.host import interpreter
from syncopate.kernels.moe_scaled import _rounded
from syncopate.ops import ScaledMoe
from syncopate.ops.mixture_scaled import ScaledTensorMoe, own_scales, own_weights, shapes_of

FP8 = torch.float8_e4m3fn
T, K, H, F = 5, 2, 160, 256  # a block of scales that is not whole
FEW = sy.Tiling(16, 128, 128, 1, -1)


def spread(scale, shape, rows):
    """Of each element its factor; `rows` share one with 128 columns each, or each row has one."""
    if scale.dim() == len(shape) - 1:
        return scale.double()[..., None].expand(shape)
    made = scale.double().repeat_interleave(128, -1)[..., : shape[-1]]
    return made if rows == 1 else made.repeat_interleave(rows, -2)[..., : shape[-2], :]


def in_blocks(a):
    """As the operator rounds what the first product makes."""
    padded = torch.nn.functional.pad(a.float(), (0, -a.shape[-1] % 128)).view(len(a), -1, 128)
    most = padded.abs().amax(-1, keepdim=True)
    scale = torch.where(most == 0, 1.0, most / 448)
    return ((padded / scale).to(FP8).double() * scale.double()).view(len(a), -1)[:, : a.shape[-1]]


class Layer:
    """Of all ranks. Weights lie with K last."""

    def __init__(self, size, own, kind, extents=(T, K, H, F)):
        self.size, self.own, self.experts, self.kind = size, own, own * size, kind
        self.tokens, self.topk, self.hidden, self.inner = tokens, topk, hidden, inner = extents
        generator = torch.Generator().manual_seed(hidden)

        def random(*shape):
            return torch.randn(shape, generator=generator)

        self.x = random(size, tokens, hidden).to(FP8)
        self.w1 = (random(self.experts, 2 * inner, hidden) / 4).to(FP8)
        self.w2 = (random(self.experts, hidden, inner) / 4).to(FP8)
        of = shapes_of(kind, tokens, self.experts, hidden, inner)
        self.sx, self.s1, self.s2 = (
            torch.rand(*(size, *shape) if name == "scale_x" else shape, generator=generator) + 0.5
            for name, shape in of.items()
        )
        scores = torch.rand(size, tokens, self.experts, generator=generator)
        self.weights, self.ids = scores.softmax(-1).topk(topk)

    def of(self, rank):
        mine = slice(rank * self.own, (rank + 1) * self.own)
        w1, w2 = (w[mine].transpose(1, 2) for w in (self.w1, self.w2))
        given = self.x[rank], self.ids[rank].contiguous(), self.weights[rank].contiguous(), w1, w2
        return given, (self.sx[rank], self.s1[mine], self.s2[mine])

    def columns_of(self, rank):
        """As `of`, of tensor parallel experts."""
        place = "tensor", rank, self.size
        w1, w2 = own_weights(*place, self.w1.transpose(1, 2), self.w2.transpose(1, 2))
        given = self.x[rank], self.ids[rank].contiguous(), self.weights[rank].contiguous(), w1, w2
        return given, (self.sx[rank], *own_scales(*place, self.s1, self.s2))

    def right(self, rank):
        rows = 1 if self.kind == "row" else 128
        x = self.x[rank].double() * spread(self.sx[rank], self.x[rank].shape, 1)
        w1 = self.w1.double() * spread(self.s1, self.w1.shape, rows)
        w2 = self.w2.double() * spread(self.s2, self.w2.shape, rows)
        total = torch.zeros_like(x)
        for choice in range(self.topk):
            for expert in range(self.experts):
                token = (self.ids[rank, :, choice] == expert).nonzero().flatten()
                if len(token) == 0:
                    continue
                gate, up = (x[token] @ w1[expert].t()).chunk(2, -1)
                made = in_blocks(torch.nn.functional.silu(gate) * up) @ w2[expert].t()
                total[token] += self.weights[rank, token, choice].double()[:, None] * made
        return total


def close(y, right, what, room=0.01):
    off = ((y.double() - right).norm() / right.norm()).item()
    expect(off < room, f"{what} is off by {off:.2e} of its norm")


def check_streamed(kind, layer, extents, given, scales, rank, group):
    """By products that take descriptors, as on Hopper."""

    class Streamed(kind):
        def _has_tma(self):
            return True

    shape = (extents[0], layer.experts, extents[1], *extents[2:], FP8)
    op = Streamed(*shape, group, scales=layer.kind, out_dtype=torch.float16, tiling=FEW)
    op.heap["X"].view(torch.uint8).fill_(127)  # NaN: what lies between two groups' rows
    op.heap["A"].view(torch.uint8).fill_(127)
    op.heap["x_scale"].fill_(float("nan"))
    y, _, _ = op.run(*given, scales)
    close(y, layer.right(rank), f"{kind.parallel} parallel, by descriptors {layer.kind}, {extents}")
    told = kind.bytes_ahead(*shape, layer.size, scales=layer.kind, device="host", tiling=FEW)
    expect(op.held_bytes() == told, f"{op.held_bytes()} bytes, told {told}")
    op.close()


def check_kinds(rank, size, group):
    for kind in ("row", "block"):
        for own, extents in ((2, (T, K, H, F)), (1, (19, 1, 144, 128))):
            layer = Layer(size, own, kind, extents)
            given, scales = layer.of(rank)
            y = ops.moe(*given, group, scales=scales)
            expect(y.dtype == torch.bfloat16, f"y is of {y.dtype}")
            close(y, layer.right(rank), f"{kind}, {extents}")
            check_streamed(ScaledMoe, layer, extents, given, scales, rank, group)
        sy.close(group)
    # Columns of both halves of w1 in one block have scales of their own.
    layer = Layer(size, 1, "row", (3, 1, 32, 48))
    given, scales = layer.of(rank)
    close(ops.moe(*given, group, scales=scales), layer.right(rank), "few columns")
    sy.close(group)


def check_tensor(rank, size, group):
    """Tensor parallel experts: each rank rounds what its own columns make, in blocks of them."""
    for kind in ("row", "block"):
        for own, extents in ((2, (T, K, H, 128 * size)), (1, (19, 1, 144, 128 * size))):
            layer = Layer(size, own, kind, extents)
            given, scales = layer.columns_of(rank)
            y = ops.moe(*given, group, parallel="tensor", scales=scales)
            expect(y.dtype == torch.bfloat16, f"y is of {y.dtype}")
            close(y, layer.right(rank), f"tensor parallel, {kind}, {extents}")
            again = ops.moe(*given, group, parallel="tensor", scales=scales)
            expect(torch.equal(again, y), f"tensor parallel, {kind}, {extents}: other bits")
            check_streamed(ScaledTensorMoe, layer, extents, given, scales, rank, group)
        sy.close(group)
    # A rank's columns end in the middle of a block of what the whole makes.
    layer = Layer(size, 1, "row", (T, 1, H, 72 * size))
    given, scales = layer.columns_of(rank)
    y = ops.moe(*given, group, parallel="tensor", scales=scales)
    close(y, layer.right(rank), "tensor parallel, few columns", room=0.03)
    sy.close(group)
    if size > 1:
        try:
            ScaledTensorMoe(T, 2, 1, H, 128, FP8, group, scales="block")
            raise RuntimeError("not refused: a block with columns of both halves")
        except (ValueError, sy.UsageError) as error:
            expect("of a rank is no multiple of 128" in str(error), str(error))


def check_tiles(rank, size, group):
    """Any block_k that divides a block of scales; no other, and no other width."""
    for kind in ("row", "block"):
        layer = Layer(size, 1, kind, (T, 1, H, F))
        given, scales = layer.of(rank)
        shape = (T, layer.experts, 1, H, F, FP8)
        for k in (32, 64):
            op = ScaledMoe(*shape, group, scales=kind, tiling=sy.Tiling(16, 128, k, 1, -1))
            close(op.run(*given, scales)[0], layer.right(rank), f"{kind}, block_k={k}")
            op.close()
        for n, k, what in ((64, 128, "block_n=64"), (256, 128, "block_n=256"), (128, 256, "block_k=256")):
            try:
                ScaledMoe(*shape, group, scales=kind, tiling=sy.Tiling(16, n, k, 1, -1))
                raise RuntimeError(f"not refused: {what}")
            except (ValueError, sy.UsageError) as error:
                expect(f"got {what}" in str(error), str(error))


@triton.jit
def round_kernel(bits_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    made = _rounded(tl.load(bits_ptr + at).to(tl.float32, bitcast=True))
    tl.store(out_ptr + at, made.to(tl.int32, bitcast=True))


def check_rounding():
    """What is no number stays none, an infinity one, and numbers go to the nearest with three bits, ties to even."""
    given_and_right = (
        (0x7F800000, 0x7F800000), (0xFF800000, 0xFF800000), (0x3F880000, 0x3F800000), (0x3F980000, 0x3FA00000),
        (0x3F980001, 0x3FA00000), (0x3FFFFFFF, 0x40000000), (0xBF870000, 0xBF800000), (0x80000000, 0x80000000),
    )  # fmt: skip
    none = (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FF80000, 0x7FBFFFFF)
    bits = torch.tensor([given for given, _ in given_and_right] + list(none)).to(torch.int32)
    out = torch.empty_like(bits)
    interpreter.launch(round_kernel, (1, 1, 1), {"bits_ptr": bits, "out_ptr": out, "N": len(bits)})
    right = torch.tensor([right for _, right in given_and_right]).to(torch.int32)
    expect(
        torch.equal(out[: len(right)], right), f"rounded to {[hex(one & 0xFFFFFFFF) for one in out.tolist()]}"
    )
    expect(out.view(torch.float32)[len(right) :].isnan().all().item(), "a NaN has become a number")


def check_refused(rank, size, group):
    layer = Layer(size, 2, "block")
    (x, ids, weights, w1, w2), scales = layer.of(rank)
    y = ops.moe(x, ids, weights, w1, w2, group, scales=scales)
    for given, options, message in (
        ((x, ids, weights, w1, w2), {}, "scales: x of fp8 takes three tensors"),
        ((x, ids, weights, w1, w2), {"scales": scales[:2]}, "scales: x of fp8 takes three tensors"),
        (
            (x, ids, weights, w1, w2),
            {"scales": (scales[0][:, :1], *scales[1:])},
            "scales: expected shapes [5]",
        ),
        ((x, ids, weights, w1.contiguous(), w2), {"scales": scales}, "w1.transpose(1, 2) must be contiguous"),
        ((x, ids, weights, w1, w2.float()), {"scales": scales}, "w2: expected dtype"),
        ((x, ids, weights, w1, w2), {"scales": tuple(s.half() for s in scales)}, "scale_x: expected dtype"),
        (
            (x, ids, weights, w1, w2),
            {"scales": scales, "out_dtype": torch.float32},
            "expected out bf16 or fp16",
        ),
        ((x.half(), ids, weights, w1, w2), {"scales": scales}, "scales and out_dtype are of x in"),
    ):
        try:
            ops.moe(*given, group, **options)
            raise RuntimeError(f"not refused: {message}")
        except (ValueError, sy.UsageError) as error:
            expect(message in str(error), f"expected {message!r}, got {error}")
    try:
        ScaledMoe(T, size, 1, H, 72, FP8, group, scales="block")
        raise RuntimeError("not refused: a block with columns of both halves")
    except (ValueError, sy.UsageError) as error:
        expect("F=72 is no multiple of 128" in str(error), str(error))
    try:
        ops.dispatch(x, ids, 2 * size, group)
        raise RuntimeError("not refused: a part of fp8")
    except (ValueError, sy.UsageError) as error:
        expect("part=dispatch is of bf16, fp16 and fp32" in str(error), str(error))
    weights = weights.clone().requires_grad_()
    try:
        ops.moe(x, ids, weights, w1, w2, group, scales=scales)
        raise RuntimeError("not refused: a gradient")
    except RuntimeError as error:
        expect("topk_weights requires a gradient" in str(error), str(error))
    again = ops.moe(x, ids, weights.detach(), w1, w2, group, scales=scales)
    expect(torch.equal(again, y), "a call after errors differs")
    sy.close(group)


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_rounding()
    check_tiles(place.rank, place.size, group)
    check_kinds(place.rank, place.size, group)
    check_tensor(place.rank, place.size, group)
    check_refused(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(work)
    print(f"{sys.argv[1]} ranks: agree")
