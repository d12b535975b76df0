"""The kernels of a mixture of experts compile for sm_90 at a layer's shape; run by test_moe.py. No GPU is needed.

moe_compiled.py T E TOPK H F RANKS
"""

import sys

import torch
import triton
from syncopate.kernels import moe as kernels
from syncopate.ops import mixture
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED = 227 << 10  # bytes of a program, at most


class Shape(mixture.Moe):
    """As much of the operator as its kernels' arguments take."""

    def __init__(self, tokens, experts, topk, hidden, inner, size, part):
        self.tokens, self.experts, self.topk, self.hidden, self.inner = tokens, experts, topk, hidden, inner
        self.dtype, self.part, self.activation, self.weighted = torch.bfloat16, part, "silu", True
        self.device, self.tiling, self.programs = torch.device("meta"), mixture.GPU_TILING, 132
        self.bound = size * tokens * min(topk, experts // size)
        self.group = type("Alone", (), {"rank": 1, "size": size})()
        self._names = mixture.STAGES[part]
        names = {
            "counts": torch.int32,
            "X": self.dtype,
            "origin": torch.int32,
            "A": self.dtype,
            "Y": self.dtype,
        }
        self.heap = {name: torch.empty(1, dtype=dtype, device="meta") for name, dtype in names.items()}
        self.heap["done"] = torch.empty(1, dtype=torch.int32, device="meta")
        self._strides = dict.fromkeys(self.heap, 1 << 28)
        op = type(
            "Op", (), {"table_tensor_of": lambda *_: torch.empty(1, dtype=torch.int32, device="meta")}
        )()
        self.prepared = type("Prepared", (), {"op": op})()


TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


def compile_all(made):
    for name, items in zip(made._names, made._items(made._stand_ins()), strict=True):
        kernel = getattr(kernels, name)
        signature, constants, aligned = {}, {}, {}
        for place, parameter in enumerate(kernel.params):
            value = items.get(parameter.name)
            if parameter.name in ("sy_schedule", "sy_control"):
                signature[parameter.name] = "*i32"
            elif parameter.is_constexpr:
                signature[parameter.name] = "constexpr"
                constants[parameter.name] = value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = TYPES[value.dtype]
            else:
                signature[parameter.name] = "i32"
            if signature[parameter.name].startswith("*"):
                aligned[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature, constants, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=made._options(name))
        if compiled.metadata.shared > SHARED:
            raise RuntimeError(f"{name} takes {compiled.metadata.shared} bytes of shared memory")
        print(f"{name}: {compiled.metadata.shared} bytes shared, {compiled.metadata.num_warps} warps")


tokens, experts, topk, hidden, inner, size = map(int, sys.argv[1:])
compile_all(Shape(tokens, experts, topk, hidden, inner, size, "whole"))
compile_all(Shape(tokens, experts, topk, hidden, inner, size, "combine"))
