"""SPEC of the commands: an operator with its shape, all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16, and whether this machine has
what it takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from .. import _syncopate
from .._syncopate import Strategy
from ..ranks import RankError


class UsageError(RuntimeError):
    exit_code = 2


def kinds() -> dict[str, Any]:
    """The operators that the commands run, by name."""
    from ..bench.mlp_chain import MlpChain
    from ..ops import OPERATORS, Moe

    return OPERATORS | {MlpChain.name: MlpChain, Moe.name: Moe}


def require_operator(text: str, names: Iterable[str], does: str) -> None:
    """Refuses an operator that a command does not take, with those that it does: `does`, such as "run runs"."""
    name, known = text.partition(":")[0], list(names)
    if name in known:
        return
    there_is = f"`syncopate {does.partition(' ')[0]}` does not take {name}"
    if name not in _syncopate.ops.operator_names():
        there_is = f'there is no operator "{name}"'
    raise UsageError(f"{there_is}; {does} {', '.join(known)}")


class Spec:
    """An operator with its extents, and what else SPEC asks for (C++: ops/spec.hpp). `ranks`: that run it."""

    def __init__(self, text: str, ranks: int) -> None:
        from ..bench.mlp_chain import MlpChain
        from ..call.arguments import DTYPES

        require_operator(text, kinds(), "run runs")
        read = _syncopate.ops.parse_spec(text, ranks)
        of_one = read["operator"] == MlpChain.name
        if read["ranks"] not in (ranks, 1 if of_one else ranks):
            raise UsageError(
                f"{text}: SPEC is of {read['ranks']} ranks, and {ranks} run it: give --ranks {read['ranks']}"
            )
        self.text, self.nodes = text, read["nodes"]
        self.kind = kinds()[read["operator"]]
        self.extents = {name.lower(): value for name, value in read["extents"].items()}
        self.words, self.call, self._mixture = read["words"], read["call"], read["mixture"]
        self.dtype, self.out, self.scales = DTYPES[read["dtype"]], DTYPES[read["out"]], read["scales"]
        self.strategy: Strategy | None = read["strategy"]

    @property
    def is_mixture(self) -> bool:
        """Whether rows go to experts (C++: ops/operators.hpp)."""
        return self._mixture

    @property
    def of_fp8(self) -> dict[str, Any]:
        """What a problem of fp8 has besides."""
        return {"out": None if self.out == self.dtype else self.out, "scales": self.scales}

    def bytes_of_a_rank(self) -> int:
        """About: the plan's tensors and their staging, the operands, the outputs of both kernels, and what is checked, some
        of it as fp32, too."""
        m, n, k, f = (self.extents.get(name, 0) for name in ("m", "n", "k", "f"))
        weights = f * (k + n) if f else k * n
        return self.dtype.itemsize * (2 * m * k + 2 * weights + 5 * m * n + 3 * m * f) + 8 * m * (k + n)


def require_memory(options: argparse.Namespace, ranks: int, bytes_per_rank: int) -> None:
    """Refuses what this machine's memory cannot hold, before the kernel starts ending processes for want of it."""
    if options.device != "host":
        return  # a GPU says itself when its memory does not suffice
    free = _syncopate.free_memory("host")
    if ranks * bytes_per_rank > free:
        raise RankError(
            f"too little memory on this machine: {ranks} ranks need about {ranks * bytes_per_rank / 2**30:,.1f} GiB, "
            f"{free / 2**30:,.1f} GiB are free; take fewer ranks or smaller tensors",
            3,
        )


def rank_count(options: argparse.Namespace) -> int:
    """How many ranks are asked for; by default one for each GPU, or four on host."""
    if options.device != "cuda":
        return options.ranks or 4
    from ..ranks import gpu_count

    available = gpu_count()
    if options.ranks > available:
        raise RankError(
            f"{options.ranks} ranks need {options.ranks} GPUs, this machine has {available}; use --device host",
            3,
        )
    return options.ranks or available
