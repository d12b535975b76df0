"""A GPU's clock against the host's: what to add to %globaltimer for CLOCK_MONOTONIC, and how far that may be wrong.

    host    t0 ── ping = i ─────────────────────────────── sees pong[i] ── t1
    GPU            sees ping == i, pong[i] = %globaltimer ─┘

The GPU's stamp lies between t0 and t1, so the offset is (t0 + t1) / 2 - stamp, give or take (t1 - t0) / 2. The quickest of
many exchanges through pinned memory counts: a few microseconds. All GPUs of a machine share the host's clock.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from ..device import jit

ROUNDS = 64
DEADLINE_NS = 2_000_000_000  # of the whole exchange, on both sides


def align(device: Any) -> tuple[int, int] | None:
    """(offset, error) in ns: host time = %globaltimer + offset, ± error. None where the exchange did not come about.
    Synchronises the device."""
    import torch

    from ..device.traced import sy_clock

    torch.cuda.synchronize(device)
    words = torch.zeros(1 + ROUNDS, dtype=torch.int64).pin_memory()
    arguments = {"words": words, "rounds": ROUNDS, "deadline": DEADLINE_NS}
    kernel = jit.compile_kernel(sy_clock, arguments, (1, 1, 1), {"num_warps": 1})
    host = ctypes.cast(words.data_ptr(), ctypes.POINTER(ctypes.c_int64))
    kernel.kernel.launch([1, 1, 1], torch.cuda.current_stream(device).cuda_stream, kernel.pack(arguments))
    pairs = exchange(host, ROUNDS, DEADLINE_NS)
    torch.cuda.synchronize(device)
    return estimate(pairs)


def exchange(words: Any, rounds: int, deadline: int) -> list[tuple[int, int, int]]:
    """(t0, stamp, t1) of each round that the other side answered: words[0] is the ping, words[i] the i-th pong."""
    answered = []
    last = time.monotonic_ns() + deadline
    for turn in range(1, rounds + 1):
        t0 = time.monotonic_ns()
        words[0] = turn
        t1 = 0
        while not words[turn]:
            if time.monotonic_ns() > last:
                return answered
        t1 = time.monotonic_ns()
        answered.append((t0, words[turn], t1))
    return answered


def estimate(answered: list[tuple[int, int, int]]) -> tuple[int, int] | None:
    """The offset by the quickest exchange, and its error."""
    if not answered:
        return None
    t0, stamp, t1 = min(answered, key=lambda triple: triple[2] - triple[0])
    return (t0 + t1) // 2 - stamp, (t1 - t0 + 1) // 2
