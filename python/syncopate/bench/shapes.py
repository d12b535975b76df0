"""Which products are measured: models, or any hidden size and F, over rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Name → hidden size, F.
MODELS = {
    "8B": (4096, 14336),
    "70B": (8192, 28672),
    "GPT-3": (12288, 49152),
    "405B": (16384, 53248),
    "LLaMA-7B": (4096, 11008),
    "Qwen2-72B": (8192, 29568),
}
TOKENS = (16, 64, 256, 1024, 4096, 8192)


@dataclass(frozen=True)
class Shape:
    """The local product of one rank, y [m, n] = x [m, k] @ w [k, n]. `m`: tokens of all ranks. Of a feed-forward block,
    `f` is the inner width on one rank, and n and k are the hidden size."""

    model: str
    m: int
    n: int
    k: int
    f: int = 0


def widths(names: str) -> dict[str, tuple[int, int]]:
    """From "70B,4096x14336": by name, hidden size and F. "": the four models of all sizes."""
    if not names:
        return {name: MODELS[name] for name in ("8B", "70B", "GPT-3", "405B")}
    found = {}
    for name in names.split(","):
        hidden, _, f = name.partition("x")
        if name in MODELS:
            found[name] = MODELS[name]
        elif hidden.isdecimal() and f.isdecimal() and int(hidden) * int(f) > 0:
            found[name] = (int(hidden), int(f))
        else:
            raise ValueError(
                f"--shapes {name}: expected HIDDENxF, such as 4096x14336, or one of {', '.join(MODELS)}"
            )
    return found


def shapes_of(
    sharded: str,
    models: dict[str, tuple[int, int]],
    tokens: Sequence[int],
    local_ranks: int,
    scale: int,
    ranks: int,
    align: int = 8,
) -> Iterator[Shape]:
    """`sharded`: which extent is F / local ranks: "N" (column parallel), "K" (row parallel) or "F" (a block of both). All
    extents are divided by `scale`; rows stay a multiple of the ranks, the others of `align`."""
    for model, (hidden, f) in models.items():
        local, whole = (max(16, n // scale // align * align) for n in (f // local_ranks, hidden))
        for tokens_of_all in tokens:
            m = max(ranks, tokens_of_all // scale // ranks * ranks)
            if sharded == "F":
                yield Shape(model, m, whole, whole, local)
            else:
                yield Shape(model, m, *((local, whole) if sharded == "N" else (whole, local)))
