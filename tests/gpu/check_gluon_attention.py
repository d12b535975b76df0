"""The library's Gluon attention on one Hopper GPU against attention in fp64: head sizes, masks, documents, ragged lengths,
ranges of K in any order and as they arrive, deadlines.

python tests/gpu/check_gluon_attention.py [SECTION …]        sections: d64 d128 d256 masks64 masks128 documents ranges arrivals deadline
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from syncopate._syncopate import layout
from syncopate.kernels.gluon_attention import gluon_attention
from syncopate.kernels.gluon_attention_call import (
    GluonAttentionTiling,
    attend,
    document_tables,
    gluon_attention_arguments,
    tiling_of,
)

NAN = float("nan")


@dataclass
class Case:
    """q [b, h, sq, d], k and v [b, hkv, sk, d]."""

    b: int
    h: int
    hkv: int
    sq: int
    sk: int
    d: int
    causal: bool = False
    window: int = 0
    offset: int | None = None
    cu: Sequence[int] = ()
    dtype: torch.dtype = torch.bfloat16
    tiling: GluonAttentionTiling | None = None

    def made(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q = torch.randn(self.b, self.h, self.sq, self.d, device="cuda").to(self.dtype)
        k, v = torch.randn(2, self.b, self.hkv, self.sk, self.d, device="cuda").to(self.dtype)
        return q, k, v

    @property
    def tile(self) -> GluonAttentionTiling:
        return self.tiling or tiling_of(self.d)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"causal": self.causal, "window": self.window, "offset": self.offset}
        if self.cu:
            options["documents"] = document_tables(
                self.cu, self.tile, causal=self.causal, window=self.window, device="cuda"
            )
        return options

    def seen(self) -> torch.Tensor:
        """Which columns a row sees, [sq, sk]."""
        offset = self.sk - self.sq if self.offset is None else self.offset
        row = torch.arange(self.sq, device="cuda")[:, None] + offset
        column = torch.arange(self.sk, device="cuda")[None]
        seen = torch.ones(self.sq, self.sk, dtype=torch.bool, device="cuda")
        if self.causal:
            seen &= column <= row
        if self.window:
            seen &= (row - column).abs() < self.window
        if self.cu:
            cuts = torch.tensor(self.cu[1:], device="cuda")
            of = torch.bucketize(column[0], cuts, right=True)
            seen &= of[:, None] == of[None]
        return seen


def reference(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """o and lse in fp64, and how much the weighted values add up to without their signs."""
    group = case.h // case.hkv
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = (q.double() @ k.transpose(2, 3)) * case.d**-0.5
    scores.masked_fill_(~case.seen(), -math.inf)
    lse = torch.logsumexp(scores, 3)
    p = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])
    return p @ v, lse, p @ v.abs()


def expect(case: Case, name: str, o: torch.Tensor, lse: torch.Tensor, data: tuple[torch.Tensor, ...]) -> None:
    """o within the rounding of the weights and of itself to the dtype; lse within that of sums in fp32."""
    right, right_lse, size = reference(case, *data)
    unit = 2.0**-8 if case.dtype == torch.bfloat16 else 2.0**-11
    wrong = ~((o.double() - right).abs() <= unit * (right.abs() + size) + 1e-4)
    if wrong.any():
        where = torch.nonzero(wrong)
        at = tuple(where[0].tolist())
        raise SystemExit(
            f"{name}: {case}: {len(where)} of {o.numel()} wrong, first o{list(at)} = {o[at].item()}, not {right[at].item()}"
        )
    same = (lse.double() - right_lse).abs() <= 1e-4 + 1e-5 * right_lse.abs()
    same |= lse.double() == right_lse
    if not same.all():
        at = tuple(torch.nonzero(~same)[0].tolist())
        raise SystemExit(f"{name}: {case}: lse{list(at)} = {lse[at].item()}, not {right_lse[at].item()}")


def outputs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (case.b, case.h, case.sq)
    return (
        torch.full((*shape, case.d), NAN, device="cuda", dtype=case.dtype),
        torch.full(shape, NAN, device="cuda"),
    )


def check(case: Case, repeats: int = 3) -> None:
    """Right, and the same bits in every run."""
    data = case.made()
    first = None
    for _ in range(repeats):
        o, lse = attend(*data, tiling=case.tile, out=outputs(case), **case.options())
        if first is not None and not (torch.equal(first[0], o) and torch.equal(first[1], lse)):
            raise SystemExit(f"{case}: other bits in another run")
        first = (o, lse)
    expect(case, "attend", *first, data)


def sizes(d: int) -> None:
    for causal in (True, False):
        for dtype in (torch.bfloat16, torch.float16) if d == 128 else (torch.bfloat16,):
            check(Case(2, 4, 2, 512, 512, d, causal, dtype=dtype))
            check(Case(1, 3, 1, 1000, 1000, d, causal, dtype=dtype))
        check(Case(1, 2, 2, 1, 1, d, causal))
        check(Case(3, 2, 1, 77, 205, d, causal))
        check(Case(1, 2, 2, 300, 129, d, causal))  # causal: the first rows see nothing
        check(Case(2, 16, 4, 2047, 2047, d, causal), 10)
        check(Case(1, 1, 1, 8192, 8192, d, causal), 2)


def d64() -> None:
    sizes(64)


def d128() -> None:
    sizes(128)


def d256() -> None:
    sizes(256)


def masks(d: int) -> None:
    for causal in (True, False):
        for window in (1, 64, 100, 700):
            check(Case(1, 4, 2, 1000, 1000, d, causal, window), 1)
        check(Case(1, 2, 1, 300, 1000, d, causal, 200, offset=100), 1)
        check(Case(1, 2, 1, 300, 1000, d, causal, offset=333), 1)
        check(Case(1, 2, 1, 700, 256, d, causal, 50, offset=-200), 1)


def masks64() -> None:
    masks(64)


def masks128() -> None:
    masks(128)


def documents() -> None:
    for cu in ((0, 137, 2178), (0, 1, 2, 130, 131, 1024), (0, 64, 128, 640), (0, 900, 901)):
        for causal, window in ((True, 0), (False, 0), (True, 90)):
            check(Case(1, 4, 2, cu[-1], cu[-1], 128, causal, window, cu=cu), 1)
    check(Case(2, 4, 2, 1000, 1000, 64, True, cu=(0, 137, 500, 1000)), 1)


def table_of(
    case: Case, programs: int, ranges: int, shuffled: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A schedule by hand: the tiles shuffled, each with its ranges of blocks in its own order, range r behind signal r;
    each head a chunk whose last tile sets a signal. Returns table, control block and the first of those signals."""
    tile = case.tile
    rows, heads = -(-case.sq // tile.block_m), case.b * case.h
    tiles, blocks = rows * heads, -(-case.sk // tile.block_n)
    order = random.Random(seed)
    words = [0] * (layout.FIRST_SLOT + layout.SLOT_WORDS * tiles)
    words[layout.NUM_SLOTS] = tiles
    words[layout.NUM_PROGRAMS] = programs
    words[layout.LOOPS] = 1
    signal = layout.FIRST_SIGNAL
    counters = signal + layout.SIGNAL_STRIDE * (ranges + heads)
    waits = len(words)
    for r in range(ranges):
        words += [signal + layout.SIGNAL_STRIDE * r, 0]
    while len(words) % 4:
        words.append(0)
    records = len(words)
    posts = records + layout.MADE_WORDS * heads
    for head in range(heads):
        words += [counters + 8 * head, rows, posts + 2 * head, posts + 2 * head + 2, 0, 0, 1, 0]
    for head in range(heads):
        words += [4 * (signal + layout.SIGNAL_STRIDE * (ranges + head)), 0]
    ids = list(range(tiles))
    if shuffled:
        order.shuffle(ids)
    for slot, number in enumerate(ids):
        parts = list(range(ranges))
        if shuffled:
            order.shuffle(parts)
        while (len(words) + layout.PAIR_WORDS) % 4:
            words.append(0)
        words += [0, ranges]
        first_phase = len(words)
        for r in parts:
            words += [blocks * r // ranges, blocks * (r + 1) // ranges]
            words += [waits + layout.PAIR_WORDS * r, waits + layout.PAIR_WORDS * (r + 1)]
        record = records + layout.MADE_WORDS * (number // rows)
        at = layout.FIRST_SLOT + layout.SLOT_WORDS * slot
        words[at : at + 8] = [
            number, waits, waits, first_phase, record, record + layout.MADE_WORDS, 0, 0,
        ]  # fmt: skip
    control = torch.zeros(counters + 8 * heads, dtype=torch.int32)
    control[layout.EPOCH] = 1
    control[layout.DEADLINE_MS] = 2000
    made = signal + layout.SIGNAL_STRIDE * ranges
    return torch.tensor(words, dtype=torch.int32).cuda(), control.cuda(), made


def launch(
    case: Case, data: tuple[torch.Tensor, ...], out: tuple[torch.Tensor, ...], programs: int, **flags: Any
) -> None:
    addresses = {name: flags.pop(name) for name in ("sy_schedule", "sy_control")}
    arguments = gluon_attention_arguments(*data, *out, case.tile, FUSED=True, **case.options(), **flags)
    gluon_attention[(programs,)](**(arguments | addresses), **case.tile.options())


def ranges() -> None:
    """Ranges in any order change no more than the order of additions; posts arrive, and the epoch goes on."""
    cases = [
        Case(1, 4, 2, 1000, 1000, 128, True),
        Case(2, 2, 1, 700, 900, 128, True, 200, offset=100),
        Case(1, 4, 4, 1024, 1024, 64, True),
        Case(1, 2, 1, 300, 129, 128, True),
        Case(1, 4, 2, 2178, 2178, 128, True, cu=(0, 137, 2178)),
    ]
    for number, case in enumerate(cases):
        data = case.made()
        programs = min(case.tile.tiles(case.b, case.h, case.sq), 100)
        for count, shuffled in ((1, False), (2, True), (5, True)):
            table, control, made = table_of(case, programs, count, shuffled, number)
            control[layout.FIRST_SIGNAL : made : layout.SIGNAL_STRIDE] = 1 << 20
            for epoch in (1, 2, 3):
                out = outputs(case)
                launch(
                    case,
                    data,
                    out,
                    programs,
                    sy_schedule=table.data_ptr(),
                    sy_control=control.data_ptr(),
                )
                expect(case, f"{count} ranges", *out, data)
                head = control[: layout.FAULT_WHERE + 1].tolist()
                signals = control[made :: layout.SIGNAL_STRIDE][: case.b * case.h].tolist()
                if signals != [epoch] * len(signals) or head[layout.EPOCH] != epoch + 1 or head[layout.FAULT]:
                    raise SystemExit(f"{case}: posts {signals}, control {head} after call {epoch}")


def arrivals() -> None:
    """K and V come while the kernel runs, range by range, in another order than that of any tile. With q = 0 a row of o is
    the mean of the rows of v that it sees: integers, so that a range that is stale, early or doubled changes bits."""
    case = Case(1, 4, 2, 2048, 2048, 128, True)
    parts, programs = 4, 48  # multiprocessors are left for the copies
    rows = case.sk // parts
    table, control, made = table_of(case, programs, parts, True, 7)
    side = torch.cuda.Stream()
    q = torch.zeros(case.b, case.h, case.sq, case.d, device="cuda", dtype=case.dtype)
    k, v = torch.empty(2, case.b, case.hkv, case.sk, case.d, device="cuda", dtype=case.dtype)
    for epoch in range(1, 21):
        now = torch.randint(-8, 9, v.shape, device="cuda").to(case.dtype)
        k.fill_(NAN)
        v.fill_(NAN)
        out = outputs(case)
        torch.cuda.synchronize()
        arriving = random.Random(epoch).sample(range(parts), parts)
        with torch.cuda.stream(side):
            for r in arriving:
                torch.cuda._sleep(100_000)
                at = slice(r * rows, (r + 1) * rows)
                k[:, :, at].fill_(1.0)
                v[:, :, at].copy_(now[:, :, at])
                control[layout.FIRST_SIGNAL + layout.SIGNAL_STRIDE * r] = epoch
        launch(case, (q, k, v), out, programs, sy_schedule=table.data_ptr(), sy_control=control.data_ptr())
        torch.cuda.synchronize()
        if control[layout.FAULT].item():
            raise SystemExit(f"arrivals: call {epoch} timed out")
        sums = now.double().repeat_interleave(case.h // case.hkv, 1).cumsum(2)
        count = torch.arange(1, case.sk + 1, device="cuda")
        right = sums / count[:, None]
        if not ((out[0].double() - right).abs() <= right.abs() * 2.0**-8 + 1e-6).all():
            raise SystemExit(f"arrivals: call {epoch}, {arriving}: not the means of what arrived")
        if not ((out[1].double() - count.log()).abs() < 1e-4).all():
            raise SystemExit(f"arrivals: call {epoch}: lse")


def deadline() -> None:
    """A signal that does not come ends in a fault, not in a hang."""
    case = Case(1, 4, 2, 2048, 2048, 128, True)
    table, control, made = table_of(case, 48, 4, True, 1)
    control[layout.FIRST_SIGNAL : made : layout.SIGNAL_STRIDE] = 1
    control[layout.FIRST_SIGNAL + layout.SIGNAL_STRIDE * 2] = 0
    control[layout.DEADLINE_MS] = 50
    launch(
        case,
        case.made(),
        outputs(case),
        48,
        sy_schedule=table.data_ptr(),
        sy_control=control.data_ptr(),
    )
    torch.cuda.synchronize()
    if control[layout.FAULT].item() != 3:
        raise SystemExit(f"a signal that does not come: fault word {control[layout.FAULT].item()}, not 3")


SECTIONS = {
    f.__name__: f for f in (d64, d128, d256, masks64, masks128, documents, ranges, arrivals, deadline)
}


def main() -> None:
    torch.manual_seed(0)
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
        torch.cuda.synchronize()
        print(f"{name}: right", flush=True)


if __name__ == "__main__":
    main()
