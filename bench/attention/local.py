"""One GPU: the library's attention kernel against cuDNN's and FlashAttention-2 (as SDPA has them), and flash-attn-4 where that is
installed, forward or backward.

    python bench/attention/local.py [--shapes HxSxD …] [--masks full causal documents] [--backward] [--tilings] [--csv FILE]

Every row's candidates take turns as graph replays, so that clocks and power limits are the same for all: under load the
power limit slows whatever runs later by up to 15 %. A time is the median over rounds. TFLOP/s count what a mask leaves.
"documents": four causal ones of equal length, beside a batch of four. Backward is all from the gradient of o to those of q, k
and v, by what the forward left.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from syncopate.kernels.gluon_attention import gluon_attention
from syncopate.kernels.gluon_attention_backward_call import HEAD_SIZES, attend_backward
from syncopate.kernels.gluon_attention_call import (
    TILINGS,
    GluonAttentionTiling,
    attend,
    document_tables,
    gluon_attention_arguments,
)

SHAPES = [
    f"{h}x{s}x{d}" for d in (128, 64, 256) for h, s in ((16, 4096), (16, 8192), (16, 16384), (8, 32768))
]
#: Beside the one that is used.
OTHERS = {64: [GluonAttentionTiling(128, 2)], 128: [], 256: []}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def name_of(t: GluonAttentionTiling) -> str:
    return f"gluon {t.block_m}x{t.block_n}/{t.stages}"


def sdpa_call(backend: SDPBackend, data: Tensors, causal: bool) -> Callable[[], None]:
    grouped = data[0].shape[1] != data[1].shape[1]

    def call() -> None:
        with sdpa_kernel(backend):
            scaled_dot_product_attention(*data, is_causal=causal, enable_gqa=grouped)

    return call


def flash_4(data: Tensors, causal: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """It takes [B, rows, heads, D]. `data` may be leaves."""
    if not (importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute")):
        return {}
    from flash_attn.cute import flash_attn_func

    def call() -> torch.Tensor:
        made = flash_attn_func(*data, causal=causal)
        return made[0] if isinstance(made, tuple) else made

    return {"flash-attn-4": call}


def by_rows(data: Tensors) -> Tensors:
    return tuple(one.transpose(1, 2).contiguous() for one in data)


def gluon_call(
    data: Tensors, causal: bool, tiling: GluonAttentionTiling, persistent: bool = True, **options: Any
) -> Callable[[], None]:
    q = data[0]
    b, h, s, _ = q.shape
    lse = torch.empty(b, h, s, device="cuda")
    arguments = gluon_attention_arguments(*data, torch.empty_like(q), lse, tiling, causal=causal, **options)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    grid = tiling.grid(b, h, s, sms if persistent else 1 << 30)
    return lambda: gluon_attention[grid](**arguments, **tiling.options())


@cache
def captured_stream() -> torch.cuda.Stream:
    """Autograd runs a backward on its forward's stream, so both are on the one that is captured."""
    return torch.cuda.Stream()


def replays(call: Callable[[], None], count: int) -> torch.cuda.CUDAGraph:
    with torch.cuda.stream(captured_stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=captured_stream()):
        for _ in range(count):
            call()
    return graph


def measure(graphs: dict[str, torch.cuda.CUDAGraph], count: int, rounds: int) -> dict[str, float]:
    """Median µs of a call, of graphs of `count` calls each."""
    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                times.setdefault(name, []).append(start.elapsed_time(end) * 1e3 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def documents_row(h: int, hkv: int, s: int, d: int, rounds: int) -> tuple[dict[str, float], float]:
    """Four causal documents one behind another, and as a batch of four sequences."""
    q = torch.randn(1, h, s, d, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, hkv, s, d, device="cuda", dtype=torch.bfloat16)
    one = s // 4
    batch = tuple(t[0].unflatten(1, (4, one)).transpose(0, 1).contiguous() for t in (q, k, v))
    tiling = TILINGS[d]
    cuts = [i * one for i in range(5)]
    tables = document_tables(cuts, tiling, causal=True, device="cuda")
    flops = 4 * 2.0 * h * one * one * d
    count = max(1, round(2e-3 / (flops / 600e12)))
    calls = {
        "cudnn": sdpa_call(SDPBackend.CUDNN_ATTENTION, batch, True),
        "gluon batch": gluon_call(batch, True, tiling),
        name_of(tiling): gluon_call((q, k, v), True, tiling, documents=tables),
    }
    return measure({name: replays(call, count) for name, call in calls.items()}, count, rounds), flops


def row(
    h: int, hkv: int, s: int, d: int, causal: bool, tilings: bool, rounds: int
) -> tuple[dict[str, float], float]:
    """µs by candidate, and the floating-point operations of a call."""
    q = torch.randn(1, h, s, d, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, hkv, s, d, device="cuda", dtype=torch.bfloat16)
    data = (q, k, v)
    flops = 4.0 * h * s * s * d / (2 if causal else 1)
    count = max(1, round(2e-3 / (flops / 600e12)))
    calls = {
        "cudnn": sdpa_call(SDPBackend.CUDNN_ATTENTION, data, causal),
        "flash": sdpa_call(SDPBackend.FLASH_ATTENTION, data, causal),
        name_of(TILINGS[d]): gluon_call(data, causal, TILINGS[d]),
        **flash_4(by_rows(data), causal),
    }
    if tilings:
        calls |= {name_of(t): gluon_call(data, causal, t) for t in OTHERS[d]}
        calls["one tile a program"] = gluon_call(data, causal, TILINGS[d], persistent=False)
    graphs = {name: replays(call, count) for name, call in calls.items()}
    return measure(graphs, count, rounds), flops


def sdpa_backward(backend: SDPBackend, data: Tensors, grad: torch.Tensor, causal: bool) -> Callable[[], None]:
    leaves = [t.detach().requires_grad_() for t in data]
    torch.cuda.synchronize()
    with sdpa_kernel(backend), torch.cuda.stream(captured_stream()):
        o = scaled_dot_product_attention(
            *leaves, is_causal=causal, enable_gqa=data[0].shape[1] != data[1].shape[1]
        )
    return lambda: torch.autograd.grad(o, leaves, grad, retain_graph=True)


def flash_4_backward(data: Tensors, grad: torch.Tensor, causal: bool) -> dict[str, Callable[[], Any]]:
    leaves = tuple(one.requires_grad_() for one in by_rows(data))
    given = grad.transpose(1, 2).contiguous()
    torch.cuda.synchronize()
    made = {}
    for name, call in flash_4(leaves, causal).items():
        with torch.cuda.stream(captured_stream()):
            o = call()
        made[name] = lambda o=o: torch.autograd.grad(o, leaves, given, retain_graph=True)
    return made


def backward_row(
    h: int, hkv: int, s: int, d: int, causal: bool, rounds: int
) -> tuple[dict[str, float], float]:
    q, grad = torch.randn(2, 1, h, s, d, device="cuda").bfloat16()
    k, v = torch.randn(2, 1, hkv, s, d, device="cuda").bfloat16()
    data = (q, k, v)
    o, lse = attend(*data, causal=causal)
    flops = 10.0 * h * s * s * d / (2 if causal else 1)
    count = max(1, round(2e-3 / (flops / 600e12)))
    calls = {
        "cudnn": sdpa_backward(SDPBackend.CUDNN_ATTENTION, data, grad, causal),
        "flash": sdpa_backward(SDPBackend.FLASH_ATTENTION, data, grad, causal),
        name_of(TILINGS[d]): lambda: attend_backward(grad, *data, o, lse, causal=causal),
        **flash_4_backward(data, grad, causal),
    }
    graphs = {name: replays(call, count) for name, call in calls.items()}
    return measure(graphs, count, rounds), flops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", default=SHAPES, help="HxSxD, or HxHKVxSxD")
    parser.add_argument(
        "--masks", nargs="*", default=["full", "causal"], choices=["full", "causal", "documents"]
    )
    parser.add_argument("--backward", action="store_true", help="the backward")
    parser.add_argument("--tilings", action="store_true", help="also those that are not used")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--csv", help="each candidate's time")
    options = parser.parse_args()
    print(
        f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    )
    rows = []
    for shape in options.shapes:
        h, *groups, s, d = map(int, shape.split("x"))
        hkv = groups[0] if groups else h
        for mask in options.masks:
            if options.backward:
                if d not in HEAD_SIZES or mask == "documents":
                    continue
                times, flops = backward_row(h, hkv, s, d, mask == "causal", options.rounds)
            elif mask == "documents":
                times, flops = documents_row(h, hkv, s, d, options.rounds)
            else:
                times, flops = row(h, hkv, s, d, mask == "causal", options.tilings, options.rounds)
            ours = times[name_of(TILINGS[d])]
            figures = ", ".join(f"{name} {flops / us / 1e6:.0f}" for name, us in times.items())
            print(f"{shape} {mask}: {times['cudnn'] / ours:.2f} of cuDNN; TFLOP/s {figures}", flush=True)
            rows += [(h, hkv, s, d, mask, name, round(us, 2)) for name, us in times.items()]
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            csv.writer(file).writerows([("h", "hkv", "s", "d", "mask", "candidate", "us"), *rows])


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
