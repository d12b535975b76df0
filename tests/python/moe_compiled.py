"""The kernels of a mixture of experts compile for sm_90 at layers' shapes; run by test_moe.py. No GPU is needed.

moe_compiled.py T,E,TOPK,H,F,RANKS[,DTYPE] …     of the first one also what moves rows back, the backward pass, of both
                                                tensor parallel ones, and those of fp8
"""

import sys

import torch
import triton
from syncopate.ops import mixture, mixture_kept, mixture_scaled, mixture_stages, mixture_tensor
from syncopate.strategy import Strategy
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

SHARED = 227 << 10  # bytes of a program, at most


class Shape:
    """As much of the operator as its kernels' arguments take."""

    def __init__(self, tokens, experts, topk, hidden, inner, size, part, dtype=torch.bfloat16):
        self.tokens, self.experts, self.topk, self.hidden = tokens, experts, topk, hidden
        self.own_experts, self.inner = self._shares(experts, inner, size)
        self.dtype, self.part, self.activation, self.weighted = dtype, part, "silu", True
        self.device, self.programs = torch.device("meta"), 132
        self.out_dtype, self.products = torch.bfloat16 if self.scales else dtype, None
        spec = mixture.spec_of(
            tokens,
            experts,
            topk,
            hidden,
            inner,
            dtype,
            size,
            None,
            part,
            self.parallel,
            self.scales,
            self.out_dtype,
        )
        (self.tiling,) = mixture.strategy_of(spec, "cuda", programs=self.programs).tilings
        self.strategy = Strategy()
        self._seen = torch.empty(2, dtype=torch.int32, device="meta")
        self.bound = size * tokens * topk
        self.group = type("Alone", (), {"rank": 1, "size": size})()
        self._names = self.stages[part]
        names = {
            "counts": torch.int32,
            "X": self.dtype,
            "origin": torch.int32,
            "A": self.dtype,
            "Y": self.out_dtype,
            "x_scale": torch.float32,
            "a_scale": torch.float32,
            "tokens": self.dtype,
            "token_scale": torch.float32,
            "routes": torch.int32,
            "P": self.out_dtype,
        }
        self.heap = {name: torch.empty(1, dtype=dtype, device="meta") for name, dtype in names.items()}
        self.heap |= {
            name: self.heap[name].expand(128, n).clone() for name, n in (("X", hidden), ("A", inner))
        }
        if part == "combine":
            self.heap["dots"] = torch.empty(1, device="meta")
        self.heap["done"] = torch.empty(
            size, min(tokens, max(2 * 132, -(-tokens // 16))), dtype=torch.int32, device="meta"
        )
        self._strides = dict.fromkeys(self.heap, 1 << 28)
        op = type(
            "Op", (), {"table_tensor_of": lambda *_: torch.empty(1, dtype=torch.int32, device="meta")}
        )()
        self.prepared = type("Prepared", (), {"op": op})()


class ExpertShape(Shape, mixture.Moe):
    pass


class TensorShape(Shape, mixture_tensor.TensorMoe):
    pass


class ByRowShape(Shape, mixture_scaled.ScaledMoe):
    scales = "row"


class ByBlockShape(Shape, mixture_scaled.ScaledMoe):
    scales = "block"


class TensorByRowShape(Shape, mixture_scaled.ScaledTensorMoe):
    scales = "row"


class TensorByBlockShape(Shape, mixture_scaled.ScaledTensorMoe):
    scales = "block"


TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


def compile_all(made):
    for name, items in zip(made._names, made._items(made._stand_ins()), strict=True):
        compile_one(made._kernel(name), items, made._options(name))


def compile_backward(made):
    """The products of the backward pass, whose rows lie as the tiles of this one are."""

    def empty(*shape, dtype=made.dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, h, f, own = 4 * made.tiling.block_m, made.hidden, made.inner, made.own_experts
    mixture_kept._launch = lambda kernel, grid, options, **items: compile_one(kernel, items, options)
    w1, w2, places = empty(own, h, 2 * f), empty(own, f, h), empty(2, own, dtype=torch.int32)
    made.heap["X"] = empty(rows, h)
    mixture_kept.keep_rows(made, places)
    mixture_kept.products(made, made.heap["X"], empty(rows, 2 * f), empty(rows, h), w1, w2, places, "silu")
    routes = empty(made.tokens, made.topk, dtype=torch.float32)
    mixture_kept.dots(empty(made.tokens, h), empty(made.tokens * made.topk, h), routes.bool(), routes)


def compile_one(kernel, items, options):
    signature, constants, aligned = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = items.get(parameter.name)
        if parameter.name in ("sy_schedule", "sy_control"):
            signature[parameter.name] = "*i32"
        elif parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, TensorDescriptor):
            block = ",".join(map(str, value.block_shape))
            signature[parameter.name] = f"tensordesc<{TYPES[value.base.dtype][1:]}[{block}]>"
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        else:
            signature[parameter.name] = "i32"
        if signature[parameter.name].startswith("*"):
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    if compiled.metadata.shared > SHARED:
        raise RuntimeError(f"{kernel.__name__} takes {compiled.metadata.shared} bytes of shared memory")
    print(f"{kernel.__name__}: {compiled.metadata.shared} bytes shared, {compiled.metadata.num_warps} warps")


if __name__ == "__main__":
    mixture_stages.runs_gluon = lambda device: True
    for place, spec in enumerate(sys.argv[1:]):
        *extents, dtype = (spec if spec.count(",") > 5 else f"{spec},bfloat16").split(",")
        cases = [(ExpertShape, "whole")]
        if place == 0:
            cases += [
                (ExpertShape, "kept"),
                (ExpertShape, "combine"),
                (TensorShape, "whole"),
                (TensorShape, "dispatch"),
                (TensorShape, "combine"),
            ]
            cases += [(ByRowShape, "whole"), (ByBlockShape, "whole")]
            cases += [(TensorByRowShape, "whole"), (TensorByBlockShape, "whole")]
        for kind, part in cases:
            made = kind(
                *map(int, extents), part, torch.float8_e4m3fn if kind.scales else getattr(torch, dtype)
            )
            how = "descriptors" if made.streams else "pointers"
            print(f"{spec} {made.parallel} {part} {made.scales}: {how}, tiles {made.tiling}")
            compile_all(made)
            if part == "combine":
                compile_backward(made)
