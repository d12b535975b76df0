"""SPEC of the commands: an operator with its shape, all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16, and whether this machine has
what it takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..ranks import RankError


class UsageError(RuntimeError):
    exit_code = 2


class Spec:
    """An operator with its extents, as SPEC names it."""

    def __init__(self, text: str) -> None:
        from ..bench.mlp_chain import MlpChain
        from ..kernels.matmul import ACTIVATIONS
        from ..ops import OPERATORS
        from ..ops.scales import SCALES

        self.text = text
        name, _, rest = text.partition(":")
        kinds = OPERATORS | {MlpChain.name: MlpChain}
        if name == "moe":
            raise UsageError(
                "moe: the commands do not run it yet; call sy.ops.moe, or `plan make --op` for its plan"
            )
        if name not in kinds:
            raise UsageError(f"{name}: no such operator or folder; operators: {', '.join(kinds)}")
        self.kind = kinds[name]
        self.pairs: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if not equals:
                raise UsageError(f"{text}: expected KEY=VALUE, got '{item}'")
            if key in self.pairs:
                raise UsageError(f"{text}: {key} is given twice")
            self.pairs[key] = value
        known = {*self.kind.extents, "dtype", *self.kind.keys, *self.kind.flags}
        known |= {"out"} if "scales" in self.kind.flags else set()
        for key in self.pairs:
            if key not in known:
                raise UsageError(f"{text}: unknown key '{key}'; known: {', '.join(sorted(known))}")
        self.extents = {name.lower(): self.number(name) for name in self.kind.extents}
        self.pairs.setdefault("dtype", "bf16")
        self.dtype = self._dtype("dtype", "bf16, fp16, fp32 or fp8e4m3")
        self.out = self._dtype("out", "bf16 or fp16")
        self.chosen = self._chosen()
        self.flags = {name: self.pairs[name] for name in self.kind.flags if name in self.pairs}
        self._check_word("activation", ACTIVATIONS)
        self._check_word("scales", SCALES)

    @property
    def of_fp8(self) -> dict[str, Any]:
        """What a problem of fp8 has besides."""
        return {"out": self.out, "scales": self.flags.get("scales", "")}

    def number(self, key: str) -> int:
        usual = getattr(self.kind, "defaults", {}).get(key)
        if key not in self.pairs and usual is None:
            raise UsageError(f"{self.text}: {key} is missing")
        digits = self.pairs.get(key, str(usual))
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(f"{self.text}: {key} must be a whole number, got '{digits}'")
        return int(digits)

    def _dtype(self, key: str, expected: str) -> Any:
        from ..call.arguments import DTYPES

        if key not in self.pairs:
            return None
        if self.pairs[key] not in DTYPES:
            raise UsageError(f"{self.text}: unknown {key} '{self.pairs[key]}'; expected {expected}")
        return DTYPES[self.pairs[key]]

    def _chosen(self) -> dict[str, Any]:
        """What is asked for of the strategy, by the names of its fields; 0 asks for nothing."""
        from ..plans import BACKENDS

        chosen: dict[str, Any] = {}
        for key, field in self.kind.keys.items():
            if key == "backend" and key in self.pairs:
                backend = self.pairs[key]
                if backend not in BACKENDS or backend == "nccl":
                    expected = ", ".join(b for b in BACKENDS if b != "nccl")
                    raise UsageError(f"{self.text}: unknown backend '{backend}'; expected one of {expected}")
                chosen[field] = backend
            elif key in self.pairs and (value := self.number(key)):
                chosen[field] = bool(value) if key in ("pull", "apart") else value
        return chosen

    def _check_word(self, name: str, words: Sequence[str]) -> None:
        if self.flags.get(name, "") not in words:
            known = ", ".join(filter(None, words))
            raise UsageError(f"{self.text}: unknown {name} '{self.flags[name]}'; known: {known}")

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
    from .. import _syncopate

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
