"""The library's Gluon GEMM on one Hopper GPU against products in fp32: ragged shapes, options, splits of K, schedules.

python tests/gpu/check_gluon_matmul.py [SECTION …]        sections: shapes options fp8 split schedule
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from syncopate._syncopate import layout
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments, make_workspace
from syncopate.kernels.gluon_matmul import gluon_matmul

SMALL = [GluonTiling(64, 64, 128, 6), GluonTiling(64, 128, 64, 8, 3), GluonTiling(64, 256, 64, 4)]
LARGE = [GluonTiling(128, 128, 64, 5), GluonTiling(128, 256, 64, 3), GluonTiling(128, 64, 64, 7, 2)]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def run(
    a: Any, w: Any, c: Any, shape: tuple[int, int, int], tiling: GluonTiling, **options: Any
) -> torch.Tensor:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    m, n, _ = shape
    addresses = {name: options.pop(name) for name in ("sy_schedule", "sy_control") if name in options}
    workspace = make_workspace(tiling, m, n, a.device, options.get("gated", False))
    arguments = gluon_arguments(a, w, c, shape, tiling, workspace=workspace, **options) | addresses
    gluon_matmul[tiling.grid(m, n, sms)](**arguments, **tiling.options())
    return c


def expect(name: str, c: torch.Tensor, reference: torch.Tensor) -> None:
    """Within one rounding to c's dtype, and of sums of K products in fp32."""
    error = (c.float() - reference).abs()
    bound = (
        reference.abs() * (2.0**-7 if c.dtype == torch.bfloat16 else 2.0**-10)
        + 2e-3 * reference.abs().max()
        + 1e-6
    )
    if not (error <= bound).all():
        where = torch.nonzero(~(error <= bound))
        raise SystemExit(
            f"{name}: {len(where)} of {c.numel()} wrong, first at {where[0].tolist()}, error {error.max().item()}"
        )


def product(
    m: int, n: int, k: int, tiling: GluonTiling, transposed: bool = False, dtype: torch.dtype = torch.bfloat16
) -> None:
    a, w = random(m, k, dtype=dtype), random(k, n, dtype=dtype, scale=k**-0.5)
    c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
    run(a, w.t().contiguous() if transposed else w, c, (m, n, k), tiling, w_transposed=transposed)
    expect(f"{m}x{n}x{k} {tiling} transposed={transposed} {dtype}", c, a.float() @ w.float())


def shapes() -> None:
    for tiling in SMALL + LARGE:
        for m, n, k in (
            (1, 64, 8),
            (17, 200, 712),
            (64, 512, 4096),
            (65, 136, 1000),
            (129, 1000, 328),
            (300, 2304, 640),
        ):
            product(m, n, k, tiling)
    for m in range(1, 301, 7):
        product(m, 328, 520, LARGE[0])
        product(m, 328, 520, SMALL[1])
    product(4096, 3584, 1024, LARGE[1])


def options() -> None:
    for tiling in (SMALL[1], LARGE[1]):
        product(200, 520, 1032, tiling, transposed=True)
        product(200, 520, 1032, tiling, dtype=torch.float16)
    m, n, k = 200, 520, 1032
    a, w, bias = random(m, k), random(k, n, scale=k**-0.5), random(n)
    wide = random(k, 2 * n, scale=k**-0.5)
    for tiling in (SMALL[1], LARGE[0]):
        product_ = a.float() @ w.float() + bias.float()
        for activation, function in (
            ("relu", torch.relu),
            ("silu", torch.nn.functional.silu),
            ("gelu", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ):
            c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            run(a, w, c, (m, n, k), tiling, bias=bias, activation=activation)
            expect(f"{tiling} bias {activation}", c, function(product_))
    for tiling in (GluonTiling(64, 128, 64, 4, 2), GluonTiling(128, 128, 64, 4)):
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        run(a, wide, c, (m, n, k), tiling, activation="silu", gated=True)
        both = a.float() @ wide.float()
        expect(f"{tiling} gated", c, torch.nn.functional.silu(both[:, :n]) * both[:, n:])


def fp8() -> None:
    m, n, k = 200, 512, 1024
    a = random(m, k).to(torch.float8_e4m3fn)
    w = random(n, k).to(torch.float8_e4m3fn)
    for tiling in (GluonTiling(64, 128, 128, 4), GluonTiling(128, 128, 128, 4)):
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        scale_a, scale_b = torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5
        run(a, w, c, (m, n, k), tiling, w_transposed=True, scales=(scale_a, scale_b))
        expect(f"{tiling} fp8 rows", c, (a.float() @ w.float().t()) * scale_a[:, None] * scale_b)
        scale_a, scale_b = (
            torch.rand(m, k // 128, device="cuda") + 0.5,
            torch.rand(n // 128, k // 128, device="cuda") + 0.5,
        )
        run(a, w, c, (m, n, k), tiling, w_transposed=True, scales=(scale_a, scale_b))
        whole_a = a.float() * scale_a.repeat_interleave(128, 1)
        whole_b = w.float() * scale_b.repeat_interleave(128, 0).repeat_interleave(128, 1)
        expect(f"{tiling} fp8 blocks", c, whole_a @ whole_b.t())


def split() -> None:
    """The same bits in every run, whoever is last."""
    a, w = random(64, 8192), random(8192, 2304, scale=8192**-0.5)
    for tiling in (GluonTiling(64, 128, 64, 8, 7), GluonTiling(64, 64, 128, 6, 3)):
        c = torch.empty(64, 2304, device="cuda", dtype=torch.bfloat16)
        arguments = gluon_arguments(
            a, w, c, (64, 2304, 8192), tiling, workspace=make_workspace(tiling, 64, 2304, "cuda")
        )
        first = None
        for _ in range(200):
            gluon_matmul[tiling.grid(64, 2304, 132)](**arguments, **tiling.options())
            first = c.clone() if first is None else first
            if not torch.equal(first, c):
                raise SystemExit(f"{tiling}: other bits")
        expect(str(tiling), c, a.float() @ w.float())


def table_of(
    m: int, n: int, k: int, tiling: GluonTiling, programs: int, phases: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A schedule by hand: the tiles in reverse order, each after one signal and each of its `phases` after another one,
    and each row of tiles a chunk whose signal the last tile sets. Returns table, control block and its first such signal."""
    num_m, num_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    tiles, blocks = num_m * num_n, -(-k // tiling.block_k)
    words = [0] * layout.FIRST_SLOT
    words += [0] * (layout.SLOT_WORDS * tiles)
    words[layout.NUM_SLOTS] = tiles
    words[layout.NUM_PROGRAMS] = programs
    signal = layout.FIRST_SIGNAL
    counters = signal + layout.SIGNAL_STRIDE * (1 + num_m)
    waits = len(words)
    words += [signal, 0]
    more = len(words)
    words += [signal, 0] * max(phases, 1)
    while (len(words) + layout.PAIR_WORDS) % 4:
        words.append(0)
    words += [0, phases]
    first_phase = len(words)
    words[layout.LOOPS] = 1
    for phase in range(phases):
        words += [blocks * phase // phases, blocks * (phase + 1) // phases]
        words += [more + layout.PAIR_WORDS * phase, more + layout.PAIR_WORDS * (phase + 1)]
    records = len(words)
    posts = records + layout.MADE_WORDS * num_m
    for row in range(num_m):
        words += [counters + 8 * row, num_n, posts + 2 * row, posts + 2 * row + 2, 0, 0, 1, 0]
    for row in range(num_m):
        words += [4 * (signal + layout.SIGNAL_STRIDE * (1 + row)), 0]
    for slot in range(tiles):
        tile = tiles - 1 - slot
        record = records + layout.MADE_WORDS * (tile // num_n)
        at = layout.FIRST_SLOT + layout.SLOT_WORDS * slot
        words[at : at + 8] = [
            tile,
            waits,
            waits + 2,
            first_phase if phases else 0,
            record,
            record + layout.MADE_WORDS,
            0,
            0,
        ]
    control = torch.zeros(counters + 8 * num_m, dtype=torch.int32)
    control[layout.EPOCH] = 1
    control[layout.DEADLINE_MS] = 2000
    control[signal] = 1 << 20
    return torch.tensor(words, dtype=torch.int32).cuda(), control.cuda(), signal + layout.SIGNAL_STRIDE


def schedule() -> None:
    """A schedule changes no bit, its posts arrive, its epoch goes on, and a signal that does not come ends in a fault."""
    for tiling, phases in (
        (SMALL[2], 0),
        (LARGE[0], 0),
        (LARGE[0], 4),
        (SMALL[1], 0),
        (SMALL[1], 3),
        (LARGE[1], 8),
    ):
        m, n, k = 520, 1416, 2056
        a, w = random(m, k), random(k, n, scale=k**-0.5)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        plain = run(a, w, torch.empty_like(c), (m, n, k), tiling)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        programs = tiling.grid(m, n, sms)[0] // tiling.split_k
        table, control, made = table_of(m, n, k, tiling, programs, phases)
        places = {"sy_schedule": table.data_ptr(), "sy_control": control.data_ptr()}
        for epoch in range(1, 6):
            c.fill_(float("nan"))
            run(a, w, c, (m, n, k), tiling, FUSED=True, B_EARLY=epoch % 2 == 1, **places)
            if not torch.equal(c, plain):
                raise SystemExit(f"{tiling}, {phases} phases: other bits with a schedule")
            signals = control[made :: layout.SIGNAL_STRIDE][: -(-m // tiling.block_m)].tolist()
            head = control[: layout.FAULT_WHERE + 1].tolist()
            if signals != [epoch] * len(signals) or head[layout.EPOCH] != epoch + 1 or head[layout.FAULT]:
                raise SystemExit(
                    f"{tiling}, {phases} phases: posts {signals}, control {head} after call {epoch}"
                )
    control[layout.FIRST_SIGNAL] = 0
    control[layout.DEADLINE_MS] = 50
    run(a, w, c, (m, n, k), tiling, FUSED=True, **places)
    torch.cuda.synchronize()
    if control[layout.FAULT].item() != 1:
        raise SystemExit("a signal that does not come: no fault")


SECTIONS = {f.__name__: f for f in (shapes, options, fp8, split, schedule)}


def main() -> None:
    torch.manual_seed(0)
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
        torch.cuda.synchronize()
        print(f"{name}: right", flush=True)


if __name__ == "__main__":
    main()
