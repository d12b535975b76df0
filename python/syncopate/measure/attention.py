"""Attention's rates of one GPU, for its machine file: the library's kernels alone, by head size, without a mask and
under a causal one. Part of `syncopate tune --measure-machine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

HEADS, ROWS = 16, 8192  # of the measured calls: several rounds of tiles, in some milliseconds


@dataclass(frozen=True)
class Run:
    """One call of a kernel: "triton" or "gluon"."""

    kernel: str
    head_dim: int
    causal: bool

    @property
    def name(self) -> str:
        return f"attention by {self.kernel}, D = {self.head_dim}{', causal' if self.causal else ''}"


def runs(gluon: bool, head_dims: Sequence[int]) -> list[Run]:
    """In the order in which their tables are complete. What a mask costs is told by the kernel that runs here."""
    usual = "gluon" if gluon else "triton"
    made = [Run(usual, d, causal) for causal in (False, True) for d in head_dims]
    return [*made, *(Run("triton", d, False) for d in head_dims)] if gluon else made


def call_of(run: Run, group: Any, heads: int = HEADS, rows: int = ROWS) -> Callable[[], None]:
    """Launches it, on random rows of 16 bits."""
    import torch

    from ..ops.attention_kernel import AttentionKernel, AttentionProblem
    from ..ops.attention_rules import attention_tiling
    from ..strategy import Strategy

    d = run.head_dim
    if run.kernel == "gluon":
        from ..kernels.gluon_attention_call import tiling_of

        tiling: Any = tiling_of(d)
    else:
        tiling = attention_tiling(d, group.device)
    problem = AttentionProblem(
        1, heads, heads, rows, d, torch.bfloat16, run.causal, window=0, documents=[], scale=d**-0.5
    )
    kernel = AttentionKernel(problem, group, tiling, Strategy())
    q, k, v = (torch.randn(1, heads, rows, d, dtype=torch.bfloat16, device=kernel.device) for _ in range(3))
    lse = torch.empty(1, heads, rows, device=kernel.device)
    call = kernel.call({"Q": q, "K": k, "V": v, "O": torch.empty_like(q), "L": lse})
    return lambda: kernel.function[call.grid](**call.arguments, **call.options)


def tables(
    times: dict[Run, float],
    gluon: bool,
    head_dims: Sequence[int],
    sms: int,
    heads: int = HEADS,
    rows: int = ROWS,
) -> dict[str, dict[str, Any]]:
    """As the machine file has them: the tables of which every head size was measured. Where the Gluon kernel does not run, its
    rate is 0."""
    usual = "gluon" if gluon else "triton"
    where = f"one GPU, H = {heads}, S = {rows}"

    def rate(run: Run) -> float:
        pairs = rows * (rows + 1) / 2 if run.causal else rows * rows
        return 4.0 * heads * pairs * run.head_dim / times[run] / 1e6 / sms

    def table(
        source: str, needed: Callable[[int], list[Run]], value: Callable[[int], float]
    ) -> dict[str, Any]:
        if not all(run in times for d in head_dims for run in needed(d)):
            return {}
        return {"points": [[d, value(d)] for d in sorted(head_dims)], "source": source}

    def full(kernel: str) -> dict[str, Any]:
        return table(
            f"{where}, the kernel alone",
            lambda d: [Run(kernel, d, False)],
            lambda d: rate(Run(kernel, d, False)),
        )

    def masked(d: int) -> list[Run]:
        return [Run(usual, d, True), Run(usual, d, False)]

    nothing = {"points": [[d, 0] for d in sorted(head_dims)], "source": "it runs on Hopper only"}
    found = {
        "attention_gluon_tflops": full("gluon") if gluon else nothing,
        "attention_causal": table(
            f"{where}, the {usual} kernel", masked, lambda d: rate(masked(d)[0]) / rate(masked(d)[1])
        ),
        "attention_tflops": full("triton"),
    }
    return {name: one for name, one in found.items() if one}
