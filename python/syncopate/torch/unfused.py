"""The custom ops as a collective and a product one after the other: what runs where a fused op does not do, and what the
fused ones are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import distributed_c10d as c10d

functional = torch.ops._c10d_functional


def size_of(group_name: str) -> int:
    return c10d._resolve_process_group(group_name).size()


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """`activation`: one of kernels.matmul.ACTIVATIONS."""
    if activation == "relu":
        return torch.relu(x)
    if activation == "gelu":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.nn.functional.silu(x) if activation == "silu" else x


def gather(x: torch.Tensor, group_name: str, axis: int = 0) -> torch.Tensor:
    size = size_of(group_name)
    made = functional.wait_tensor(functional.all_gather_into_tensor(x.contiguous(), size, group_name))
    return torch.cat(made.chunk(size), 1) if axis else made


def scatter(x: torch.Tensor, group_name: str) -> torch.Tensor:
    size = size_of(group_name)
    return functional.wait_tensor(functional.reduce_scatter_tensor(x.contiguous(), "sum", size, group_name))


def exchange(x: torch.Tensor, group_name: str) -> torch.Tensor:
    size = size_of(group_name)
    rows = [x.shape[0] // size] * size
    return functional.wait_tensor(functional.all_to_all_single(x.contiguous(), rows, rows, group_name))


def reduce(x: torch.Tensor, group_name: str) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), "sum", group_name))


def all_gather_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    group_name: str,
    bias: torch.Tensor | None = None,
    activation: str = "",
    axis: int = 0,
) -> torch.Tensor:
    whole = gather(x, group_name, axis)
    return activated(product(whole, w, bias), activation)


def all_gather_matmuls(
    x: torch.Tensor,
    ws: Sequence[torch.Tensor],
    group_name: str,
    return_gathered: bool,
    axis: int = 0,
    biases: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    whole = gather(x, group_name, axis)
    return products(whole, ws, biases) + ([whole] if return_gathered else [])


def products(
    x: torch.Tensor, ws: Sequence[torch.Tensor], biases: Sequence[torch.Tensor] | None
) -> list[torch.Tensor]:
    return [product(x, w, bias) for w, bias in zip(ws, biases or [None] * len(ws), strict=True)]


def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, w) if bias is None else torch.addmm(bias, x, w)


def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, group_name: str, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return scatter(product(x, w, bias), group_name)


def matmul_all_reduce(
    x: torch.Tensor, w: torch.Tensor, group_name: str, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return reduce(product(x, w, bias), group_name)


def matmul_all_to_all(
    x: torch.Tensor, w: torch.Tensor, group_name: str, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return exchange(product(x, w, bias), group_name)


def all_to_all_matmul(
    x: torch.Tensor, w: torch.Tensor, group_name: str, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return product(exchange(x, group_name), w, bias)


def all_to_all_matmuls(
    x: torch.Tensor,
    ws: Sequence[torch.Tensor],
    group_name: str,
    return_exchanged: bool,
    biases: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    whole = exchange(x, group_name)
    return products(whole, ws, biases) + ([whole] if return_exchanged else [])


def feed_forward(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, group_name: str, activation: str = ""
) -> torch.Tensor:
    return scatter(torch.mm(activated(torch.mm(gather(x, group_name), w1), activation), w2), group_name)
