"""Unfused: an operator as the vendors' libraries do it, a product and a collective before or after it. One strategy among the
others, so no operator is slower than not using us. On cuda NCCL and cuBLAS; each op that is queued is torch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..group import sums_in_two_shots


class Unfused:
    """The collectives of one operator: `rows`, those of every rank's shard of M. `reduced`: [M, N], where an all-reduce takes
    place by torch's two-shot kernel on symmetric memory; without it NCCL makes it."""

    def __init__(
        self, process_group: Any, rows: Sequence[int], rank: int, reduced: torch.Tensor | None = None
    ) -> None:
        self.group, self.rows, self.rank = process_group, list(rows), rank
        self.reduced = reduced

    #: Why neither a call can be recorded, nor the kernel run alone.
    opaque = "unfused: the vendors' libraries run; give a fused strategy"

    def prepare(self, weights: Sequence[torch.Tensor]) -> None: ...

    def run(self, op: Any, x: torch.Tensor, weights: Any, out: torch.Tensor) -> torch.Tensor:
        return PAIRS[op.name](self, op, x, weights, out)

    def shard(self, op: Any) -> torch.Tensor:
        return op.operand("x")

    def result(self, op: Any) -> torch.Tensor:
        return op.empty(op.out_rows, op.n) if self.reduced is None else self.reduced

    def held_bytes(self) -> int:
        return 0 if self.reduced is None else self.reduced.numel() * self.reduced.element_size()

    def check(self) -> None: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...

    @property
    def even(self) -> bool:
        return len(set(self.rows)) == 1

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All shards, one below the other."""
        if x.dtype == torch.float8_e4m3fn:  # which not every backend moves
            return self.gather(x.view(torch.uint8)).view(x.dtype)
        whole = x.new_empty(sum(self.rows), x.shape[1])
        if self.even:
            dist.all_gather_into_tensor(whole, x.contiguous(), group=self.group)
        else:
            # Shards differ by a row: each is sent as long as the longest one.
            most = max(self.rows)
            padded = x.new_zeros(most, x.shape[1])
            padded[: x.shape[0]] = x
            parts = x.new_empty(most * len(self.rows), x.shape[1])
            dist.all_gather_into_tensor(parts, padded, group=self.group)
            cut = [part[:count] for part, count in zip(parts.split(most), self.rows, strict=True)]
            torch.cat(cut, out=whole)
        return whole

    def scatter(self, product: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum over ranks."""
        if self.even:
            dist.reduce_scatter_tensor(out, product, group=self.group)
        else:
            dist.all_reduce(product, group=self.group)
            begin = sum(self.rows[: self.rank])
            out.copy_(product[begin : begin + self.rows[self.rank]])
        return out

    def reduce(self, multiply: Callable[[torch.Tensor], torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in `out`, of what `multiply` puts into a tensor."""
        if self.reduced is None:
            dist.all_reduce(multiply(out), group=self.group)
            return out
        product = multiply(self.reduced)
        if out.data_ptr() != product.data_ptr():
            return torch.ops.symm_mem.two_shot_all_reduce_out(product, "sum", self.group.group_name, out)
        return torch.ops.symm_mem.two_shot_all_reduce_(product, "sum", self.group.group_name)

    def exchange(self, blocks: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if blocks.dtype == torch.float8_e4m3fn:
            self.exchange(blocks.view(torch.uint8), out.view(torch.uint8))
            return out
        dist.all_to_all_single(out, blocks.contiguous(), group=self.group)
        return out


def symmetric(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, process_group: Any
) -> torch.Tensor | None:
    """A tensor that all ranks map, for the two-shot all-reduce; None where torch has none. Collective."""
    if device.type != "cuda" or 0 in shape or not sums_in_two_shots(process_group):
        return None
    try:
        import torch.distributed._symmetric_memory as symmetric_memory

        made = symmetric_memory.empty(*shape, dtype=dtype, device=device)
        symmetric_memory.rendezvous(made, process_group.group_name)
    except (AttributeError, ImportError, RuntimeError):
        return None
    return made


def activated(y: torch.Tensor, activation: str) -> torch.Tensor:
    """In place. `activation`: one of kernels.matmul.ACTIVATIONS."""
    if activation == "relu":
        return y.relu_()
    if activation == "gelu":
        return y.copy_(torch.nn.functional.gelu(y, approximate="tanh"))
    return y.copy_(torch.nn.functional.silu(y)) if activation == "silu" else y


def all_gather_matmul(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    given = _with_scales(op, weights, pair.gather)
    return activated(multiply(op, pair.gather(x), given, out), op.activation)


def all_to_all_matmul(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    def exchanged(t: torch.Tensor) -> torch.Tensor:
        return pair.exchange(t, torch.empty_like(t))

    return multiply(op, exchanged(x), _with_scales(op, weights, exchanged), out)


def matmul_reduce_scatter(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    return pair.scatter(multiply(op, x, op.named(weights), op.empty(op.m, op.n)), out)


def matmul_all_reduce(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    return pair.reduce(lambda into: multiply(op, x, op.named(weights), into), out)


def matmul_all_to_all(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    return pair.exchange(multiply(op, x, op.named(weights), op.empty(op.m, op.n)), out)


def feed_forward(pair: Unfused, op: Any, x: Any, weights: Any, out: torch.Tensor) -> torch.Tensor:
    up, down = weights
    inner = activated(torch.mm(pair.gather(x), up), op.activation)
    return pair.scatter(torch.mm(inner, down), out)


def multiply(op: Any, x: torch.Tensor, given: Mapping[str, torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """x @ w + bias by the vendor's library, in `out`. `given`: the op's weights by name."""
    w, bias = given["w"].t() if op.w_transposed else given["w"], given.get("bias")
    if op.problem.is_fp8:
        one = torch.ones((), device=x.device)
        scale_x, scale_w = (given.get(name) for name in ("scale_x", "scale_w"))
        rows = one if scale_x is None else scale_x.unsqueeze(1)
        columns = one if scale_w is None else scale_w.unsqueeze(0)
        return torch._scaled_mm(x, w, rows, columns, bias=bias, out_dtype=out.dtype, out=out)
    return torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)


def _with_scales(
    op: Any, weights: Sequence[torch.Tensor], moved: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The op's weights by name; the scales of x moved as x is."""
    given = op.named(weights)
    if "scale_x" in given:
        given["scale_x"] = moved(given["scale_x"].unsqueeze(1)).squeeze(1)
    return given


#: By the operator's name.
PAIRS: dict[str, Callable[..., torch.Tensor]] = {
    function.__name__: function
    for function in (
        all_gather_matmul,
        all_to_all_matmul,
        feed_forward,
        matmul_all_reduce,
        matmul_all_to_all,
        matmul_reduce_scatter,
    )
}
