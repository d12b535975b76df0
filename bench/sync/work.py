"""The chains that bench/sync/chains.py measures and tests/python/host_sync_work.py checks: arrays, kernels in their order with
what they are called with, and the same by PyTorch's libraries. Shapes are those of CuSync (CGO 2024): fp16, one of eight
GPUs of a tensor-parallel model; convolutions of ResNet and VGG, NHWC."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernels  # noqa: E402


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Tiling:
    """Of products. `programs`: of a grid; 0: one for each tile."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    programs: int = 0


@dataclass
class Stage:
    kernel: Any
    bind: dict[str, str]
    grid: tuple[int, ...]
    arguments: dict[str, Any]


@dataclass
class Work:
    """A chain at one size. `library()` leaves in `expected` what the stages leave in `out`."""

    name: str
    arrays: dict[str, torch.Tensor]
    out: torch.Tensor
    expected: torch.Tensor
    library: Callable[[], None]
    build: Callable[[Tiling], list[Stage]]
    made: list[str] = field(default_factory=list)  # arrays that the stages write
    rest: dict[str, Any] = field(default_factory=dict)

    def stages(self, tiling: Tiling) -> list[Stage]:
        return self.build(tiling)


def _random(device: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    generator = torch.Generator(device).manual_seed(1)

    def made(*shape: int, fan: int = 0) -> torch.Tensor:
        scale = (fan or 1) ** -0.5
        return (torch.randn(*shape, device=device, generator=generator) * scale).to(dtype)

    return made


def _product(a, w, c, bind, tiling: Tiling, activation: str = "") -> Stage:
    (m, n), k = c.shape, w.shape[1]
    tiles = cdiv(m, tiling.m) * cdiv(n, tiling.n)
    return Stage(
        kernels.product,
        dict(zip(("a_desc", "c_desc"), bind, strict=True)),
        (min(tiling.programs or tiles, tiles),),
        {
            "a_desc": TensorDescriptor.from_tensor(a, [tiling.m, tiling.k]),
            "b_desc": TensorDescriptor.from_tensor(w, [tiling.n, tiling.k]),
            "c_desc": TensorDescriptor.from_tensor(c, [tiling.m, tiling.n]),
            "M": m, "N": n, "K": k, "BLOCK_M": tiling.m, "BLOCK_N": tiling.n, "BLOCK_K": tiling.k,
            "ACTIVATION": activation, "num_warps": tiling.warps, "num_stages": tiling.stages,
        },
    )  # fmt: skip


def mlp(m: int, hidden: int, inner: int, device: str = "cuda", dtype=torch.float16) -> Work:
    """relu(x @ w1ᵀ) @ w2ᵀ: GPT-3's."""
    make = _random(device, dtype)
    x, w1, w2 = make(m, hidden), make(inner, hidden, fan=hidden), make(hidden, inner, fan=inner)
    h, y, expected, mid = make(m, inner), make(m, hidden), make(m, hidden), make(m, inner)

    def library() -> None:
        torch.mm(x, w1.t(), out=mid)
        mid.relu_()
        torch.mm(mid, w2.t(), out=expected)

    def build(t: Tiling) -> list[Stage]:
        return [_product(x, w1, h, ("X", "H"), t, "relu"), _product(h, w2, y, ("H", "Y"), t)]

    rest = {"x": x, "w1": w1, "w2": w2}
    return Work("mlp", {"H": h, "Y": y}, y, expected, library, build, ["H", "Y"], rest)


def swiglu(m: int, hidden: int, inner: int, device: str = "cuda", dtype=torch.float16) -> Work:
    """(silu(x @ wgᵀ) * (x @ wuᵀ)) @ wdᵀ: LLaMA's; gate and up are one product."""
    make = _random(device, dtype)
    x, w1, w2 = make(m, hidden), make(2 * inner, hidden, fan=hidden), make(hidden, inner, fan=inner)
    g, h, y = make(m, 2 * inner), make(m, inner), make(m, hidden)
    expected, both = make(m, hidden), make(m, 2 * inner)

    def library() -> None:
        torch.mm(x, w1.t(), out=both)
        half = torch.nn.functional.silu(both[:, :inner])
        half *= both[:, inner:]
        torch.mm(half, w2.t(), out=expected)

    def build(t: Tiling) -> list[Stage]:
        rows, block = min(16, t.m), min(256, triton.next_power_of_2(inner))
        return [
            _product(x, w1, g, ("X", "G"), t),
            Stage(
                kernels.gated,
                {"g_ptr": "G", "h_ptr": "H"},
                (cdiv(inner, block), cdiv(m, rows)),
                {"g_ptr": g, "h_ptr": h, "M": m, "F": inner, "ROWS": rows, "BLOCK": block},
            ),
            _product(h, w2, y, ("H", "Y"), t),
        ]

    rest = {"x": x, "w1": w1, "w2": w2}
    return Work("swiglu", {"G": g, "H": h, "Y": y}, y, expected, library, build, ["G", "H", "Y"], rest)


def attention_block(
    m: int, hidden: int, heads: int, d: int = 128, block: int = 64, device: str = "cuda", dtype=torch.float16
) -> Work:
    """QKV product, causal attention, projection; one sequence of m tokens."""
    make = _random(device, dtype)
    x, w1, w2 = (
        make(m, hidden),
        make(3 * heads * d, hidden, fan=hidden),
        make(hidden, heads * d, fan=heads * d),
    )
    qkv, o, y = make(m, 3 * heads * d), make(m, heads * d), make(m, hidden)
    expected, mid = make(m, hidden), make(m, 3 * heads * d)

    def library() -> None:
        torch.mm(x, w1.t(), out=mid)
        q, k, v = mid.view(m, 3, heads, d).permute(1, 2, 0, 3)
        of = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
        torch.mm(of[0].permute(1, 0, 2).reshape(m, heads * d), w2.t(), out=expected)

    def build(t: Tiling) -> list[Stage]:
        return [
            _product(x, w1, qkv, ("X", "QKV"), t),
            Stage(
                kernels.attention,
                {"qkv_desc": "QKV", "o_desc": "O"},
                (heads, cdiv(m, block)),
                {
                    "qkv_desc": TensorDescriptor.from_tensor(qkv, [block, d]),
                    "o_desc": TensorDescriptor.from_tensor(o, [block, d]),
                    "M": m, "HEADS": heads, "SCALE": d**-0.5 * 1.4426950408889634, "BLOCK": block, "D": d,
                    "num_warps": 4, "num_stages": 3,
                },
            ),
            _product(o, w2, y, ("O", "Y"), t),
        ]  # fmt: skip

    arrays = {"QKV": qkv, "O": o, "Y": y}
    return Work("attention", arrays, y, expected, library, build, list(arrays))


def norm_product(m: int, hidden: int, n: int, device: str = "cuda", dtype=torch.float16) -> Work:
    """rms_norm(x) @ wᵀ."""
    make = _random(device, dtype)
    x, scale, w = make(m, hidden), make(hidden), make(n, hidden, fan=hidden)
    h, y, expected = make(m, hidden), make(m, n), make(m, n)

    def library() -> None:
        torch.mm(torch.nn.functional.rms_norm(x, (hidden,), scale, 1e-5), w.t(), out=expected)

    block = triton.next_power_of_2(hidden)
    given = {"x_ptr": x, "w_ptr": scale, "y_ptr": h, "K": hidden, "EPS": 1e-5, "BLOCK": block}
    options = {"num_warps": 8 if block >= 4096 else 4}
    norm = Stage(kernels.rms_norm, {"x_ptr": "X", "y_ptr": "H"}, (m,), given | options)

    def build(t: Tiling) -> list[Stage]:
        return [norm, _product(h, w, y, ("H", "Y"), t)]

    rest = {"norm": norm, "w": w}
    return Work("norm", {"H": h, "Y": y}, y, expected, library, build, ["H", "Y"], rest)


def convolutions(
    batch: int, size: int, channels: int, layers: int = 2, device: str = "cuda", dtype=torch.float16
) -> Work:
    """relu(3×3 convolution), `layers` times, of `batch` images of size² pixels."""
    make = _random(device, dtype)
    pitch, pixels = size + 1, batch * (size + 1) ** 2
    images = make(batch, size, size, channels)
    layouts = [torch.zeros(pixels, channels, device=device, dtype=dtype) for _ in range(layers + 1)]
    layouts[0].view(batch, pitch, pitch, channels)[:, :size, :size] = images
    weights = [make(channels, 9 * channels, fan=9 * channels) for _ in range(layers)]
    filters = [
        w.view(channels, 3, 3, channels).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        for w in weights
    ]
    first = images.permute(0, 3, 1, 2)  # NHWC in memory
    expected = torch.zeros(pixels, channels, device=device, dtype=dtype)
    inner = expected.view(batch, pitch, pitch, channels)[:, :size, :size]
    rest = {"last": None}

    def library() -> None:
        x = first
        for w in filters:
            x = torch.nn.functional.conv2d(x, w, padding=1).relu_()
        rest["last"] = x

    def finish() -> None:
        inner.copy_(rest["last"].permute(0, 2, 3, 1))

    def build(t: Tiling) -> list[Stage]:
        block_n, block_k = min(t.n, max(16, channels)), min(t.k, channels)
        stages = []
        for layer, w in enumerate(weights):
            x, y = layouts[layer], layouts[layer + 1]
            tiles = cdiv(pixels, t.m) * cdiv(channels, block_n)
            arguments = {
                "x_desc": TensorDescriptor.from_tensor(x, [t.m, block_k]),
                "w_desc": TensorDescriptor.from_tensor(w, [block_n, block_k]),
                "y_desc": TensorDescriptor.from_tensor(y, [t.m, block_n]),
                "P": pixels, "K": channels, "C": channels, "HEIGHT": size, "WIDTH": size,
                "BLOCK_M": t.m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": t.warps, "num_stages": t.stages,
            }  # fmt: skip
            bind = {"x_desc": f"A{layer}", "y_desc": f"A{layer + 1}"}
            stages.append(Stage(kernels.convolution, bind, (min(t.programs or tiles, tiles),), arguments))
        return stages

    arrays = {f"A{i + 1}": one for i, one in enumerate(layouts[1:])}
    rest["finish"] = finish
    return Work("convolutions", arrays, layouts[-1], expected, library, build, list(arrays), rest)
