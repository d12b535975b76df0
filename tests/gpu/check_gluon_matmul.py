"""The library's Gluon GEMM on one Hopper GPU against products in fp32 or fp64: ragged shapes, options, splits of K, schedules.

python tests/gpu/check_gluon_matmul.py [SECTION …]        sections: shapes options fp8 split schedule few wide rows late copied
                                                          for compute-sanitizer: brief
"""

from __future__ import annotations

import random as randoms
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench" / "gemm"))
from by_hand import by_hand
from syncopate._syncopate import layout
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments, make_workspace
from syncopate.kernels.gluon_matmul import gluon_matmul

SMALL = [GluonTiling(64, 64, 128, 6), GluonTiling(64, 128, 64, 8, 3), GluonTiling(64, 256, 64, 4)]
LARGE = [GluonTiling(128, 128, 64, 5), GluonTiling(128, 256, 64, 3), GluonTiling(128, 64, 64, 7, 2)]
FEW = [
    GluonTiling(16, 64, 128, 10),
    GluonTiling(16, 32, 128, 16, 3),
    GluonTiling(32, 64, 128, 8, 2),
    GluonTiling(32, 32, 128, 12),
]
WIDE = [
    GluonTiling(64, 192, 64, 6),
    GluonTiling(64, 192, 64, 6, 2),
    GluonTiling(64, 96, 64, 8, 3),
    GluonTiling(128, 96, 64, 7),
    GluonTiling(128, 192, 64, 4),
    GluonTiling(192, 192, 64, 3),
]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def run(
    a: Any, w: Any, c: Any, shape: tuple[int, int, int], tiling: GluonTiling, **options: Any
) -> torch.Tensor:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    m, n, _ = shape
    addresses = {name: options.pop(name) for name in ("sy_schedule", "sy_control") if name in options}
    workspace = options.pop("workspace", None)
    if workspace is None:
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
        spoilt, c = a.clone(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        spoilt[5, 0] = float("nan")
        run(spoilt, w, c, (m, n, k), tiling, activation="relu")
        if not c[5].isnan().all() or c[:5].isnan().any() or c[6:].isnan().any():
            raise SystemExit(f"{tiling} relu: a NaN does not stay one")
    for tiling in (SMALL[1], LARGE[0], GluonTiling(16, 32, 128, 16), GluonTiling(128, 192, 64, 4)):
        c, whole = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), random(m, n)
        run(a, w, c, (m, n, k), tiling, bias=whole)
        expect(f"{tiling} whole bias", c, a.float() @ w.float() + whole.float())
    for tiling in (
        GluonTiling(64, 128, 64, 4, 2),
        GluonTiling(128, 128, 64, 4),
        GluonTiling(64, 96, 64, 6, 2),
        GluonTiling(128, 96, 64, 5),
    ):
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


#: How a call ends, in turn.
ENDS: list[dict[str, bool]] = [{}, {"COUNTS_END": True}, {"COUNTS_END": True, "TELLS": True}]


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
        made = by_hand((m, n, k), tiling, programs, phases=phases)
        control = made.control
        for epoch in range(1, 7):
            end = ENDS[epoch % 3]
            c.fill_(float("nan"))
            run(a, w, c, (m, n, k), tiling, FUSED=True, B_EARLY=epoch % 2 == 1, **end, **made.places)
            if not torch.equal(c, plain):
                raise SystemExit(f"{tiling}, {phases} phases: other bits with a schedule")
            signals = control[made.made :: layout.SIGNAL_STRIDE][: -(-m // tiling.block_m)].tolist()
            head = control[: layout.FAULT_WHERE + 1].tolist()
            if signals != [epoch] * len(signals) or head[layout.EPOCH] != epoch + 1 or head[layout.FAULT]:
                raise SystemExit(
                    f"{tiling}, {phases} phases: posts {signals}, control {head} after call {epoch}"
                )
    tiles_stored_elsewhere()
    control[layout.FIRST_SIGNAL] = 0
    control[layout.DEADLINE_MS] = 50
    run(a, w, c, (m, n, k), tiling, FUSED=True, **made.places)
    torch.cuda.synchronize()
    if control[layout.FAULT].item() != 1:
        raise SystemExit("a signal that does not come: no fault")


def tiles_stored_elsewhere(tiling: GluonTiling = LARGE[0]) -> None:
    """Through a descriptor that does not end where c does, in one place and in several: nothing else changes."""
    m, n, k = 192, 200, 392  # the last tile has half of its rows
    a, w = random(m, k), random(k, n, scale=k**-0.5)
    plain = run(a, w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16), (m, n, k), tiling)
    programs = tiling.grid(m, n, torch.cuda.get_device_properties(0).multi_processor_count)[0]
    for places in ((), (0, 320), (64, 320, 640)):
        made = by_hand((m, n, k), tiling, programs, copies=places)
        tall = torch.full((1000, n), -7.0, device="cuda", dtype=torch.bfloat16)
        wanted = tall.clone()
        for row in places or (0,):
            wanted[row : row + m] = plain
        copies = {"COPIES": len(places)} if places else {}
        run(a, w, tall, (m, n, k), tiling, FUSED=True, PUSHED=True, **copies, **made.places)
        if not torch.equal(tall, wanted):
            raise SystemExit(f"tiles stored at rows {places}: other rows changed, or these did not")


def same_by_schedule(
    a: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor,
    shape: tuple[int, int, int],
    tiling: GluonTiling,
    **made_of: Any,
) -> None:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    transposed = made_of.pop("w_transposed", False)
    made = by_hand(shape, tiling, tiling.grid(*shape[:2], sms)[0] // tiling.split_k, **made_of)
    fused = torch.full_like(c, float("nan"))
    run(a, w, fused, shape, tiling, w_transposed=transposed, FUSED=True, B_EARLY=True, **made.places)
    if not torch.equal(fused, c) or made.control[layout.FAULT].item():
        raise SystemExit(f"{shape} {tiling}: other bits with a schedule")


def few() -> None:
    """Tiles of 16 and 32 rows and of 32 columns: every M up to 64, alone and by a schedule; nothing of rows that c has not."""
    for m in range(1, 65):
        n, k = 8 * (1 + 37 * m % 89), 8 * (1 + 53 * m % 131)
        for number, tiling in enumerate(FEW):
            transposed = (m + number) % 2 == 0
            a, w = random(m, k), random(k, n, scale=k**-0.5)
            w_ = w.t().contiguous() if transposed else w
            # What stands behind c and behind a must not matter: both are rows of larger tensors.
            whole = torch.full((m + 64, n), -7.0, device="cuda", dtype=torch.bfloat16)
            c = whole[:m]
            run(a, w_, c, (m, n, k), tiling, w_transposed=transposed)
            expect(f"{m}x{n}x{k} {tiling} transposed={transposed}", c, a.float() @ w.float())
            if not (whole[m:] == -7.0).all():
                raise SystemExit(f"{m}x{n}x{k} {tiling}: stored behind c")
            same_by_schedule(a, w_, c, (m, n, k), tiling, phases=m % 3, w_transposed=transposed)
    for tiling in FEW:
        m, n, k = 13, 520, 4096
        a, w, bias = random(m, k), random(k, n, scale=k**-0.5), random(n)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        workspace = make_workspace(tiling, m, n, "cuda")
        if workspace is not None:
            workspace[1024:] = -7.0
        for _ in range(3):
            run(a, w, c, (m, n, k), tiling, bias=bias, activation="relu", workspace=workspace)
            expect(f"{tiling} bias", c, torch.relu(a.float() @ w.float() + bias.float()))
        if workspace is not None:
            sums = workspace[1024:].view(-1, tiling.block_m, tiling.block_n)
            if not (sums[:, m:] == -7.0).all() or (sums[:, :m] == -7.0).all() or workspace[:1024].any():
                raise SystemExit(
                    f"{tiling}: partial sums of rows that c has not, or counts that are not set back"
                )
    for tiling in (GluonTiling(16, 64, 256, 8), GluonTiling(32, 64, 128, 8)):
        a, w = random(13, 1024).to(torch.float8_e4m3fn), random(512, 1024).to(torch.float8_e4m3fn)
        scales = torch.rand(13, device="cuda") + 0.5, torch.rand(512, device="cuda") + 0.5
        c = torch.empty(13, 512, device="cuda", dtype=torch.bfloat16)
        run(a, w, c, (13, 512, 1024), tiling, w_transposed=True, scales=scales)
        expect(f"{tiling} fp8", c, (a.float() @ w.float().t()) * scales[0][:, None] * scales[1])


def wide() -> None:
    """Tiles of 96 and 192 columns, and of 192 rows."""
    for tiling in WIDE:
        for m, n, k in ((1, 64, 8), (65, 136, 1000), (129, 1000, 328), (300, 2304, 640), (512, 192, 4096)):
            for transposed in (False, True):
                product(m, n, k, tiling, transposed=transposed)
        m, n, k = 200, 1416, 1032
        a, w, bias = random(m, k), random(k, n, scale=k**-0.5), random(n)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        run(a, w, c, (m, n, k), tiling, bias=bias, activation="silu")
        expect(f"{tiling} bias silu", c, torch.nn.functional.silu(a.float() @ w.float() + bias.float()))
        run(a, w, c, (m, n, k), tiling)
        for phases in (0, 4):
            same_by_schedule(a, w, c, (m, n, k), tiling, phases=phases)
    for tiling in WIDE:
        if tiling.block_m >= 128:
            tiles_stored_elsewhere(tiling)


def rows() -> None:
    """Every M from 1 to 300 with an N and a K of its own, both ragged: against fp64; by a schedule with waits, phases and posts
    bit for bit; and against the plain kernel, within one rounding of each."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    tilings = (SMALL[1], LARGE[0], SMALL[0], GluonTiling(64, 64, 128, 6, 2))
    for m in range(1, 301):
        n, k = 8 * (1 + 37 * m % 89), 8 * (1 + 53 * m % 131)
        a, w = random(m, k), random(k, n, scale=k**-0.5)
        exact = a.double() @ w.double()
        error = exact.abs() * 2.0**-8 + k * 2.0**-22 * (a.double().abs() @ w.double().abs())
        for number, tiling in enumerate(tilings):
            c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            run(a, w, c, (m, n, k), tiling)
            if not ((c.double() - exact).abs() <= error).all():
                raise SystemExit(
                    f"{m}x{n}x{k} {tiling}: {((c.double() - exact).abs() / error).max().item()} of the bound"
                )
            if m % 3 != number % 3:
                continue
            programs = tiling.grid(m, n, sms)[0] // tiling.split_k
            made = by_hand((m, n, k), tiling, programs, phases=(m // 3) % 3)
            fused = run(a, w, torch.full_like(c, float("nan")), (m, n, k), tiling, FUSED=True, **made.places)
            if not torch.equal(fused, c) or made.control[layout.FAULT].item():
                raise SystemExit(f"{m}x{n}x{k} {tiling}: other bits with a schedule")
        if m % 4 == 0 and n % 16 == 0 and k % 16 == 0:
            plain = plain_product(a, w)
            if not ((plain.double() - c.double()).abs() <= 2 * error).all():
                raise SystemExit(f"{m}x{n}x{k}: not what the plain kernel makes")


def plain_product(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    from syncopate.ops.product_kernel import Product
    from syncopate.strategy import Tiling

    c = torch.empty(a.shape[0], w.shape[1], device="cuda", dtype=a.dtype)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    Product(a.shape[0], w.shape[1], a.shape[1], Tiling(64, 64, 64, 3, -1), sms).run(a, w, c)
    return c


def late() -> None:
    """1,000 queued calls whose a comes while they wait, after a random time: every call is judged."""
    m, n, k, tiling = 300, 704, 1032, SMALL[1]
    base, w = random(m, k), random(k, n, scale=k**-0.5)
    wanted = run(base, w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16), (m, n, k), tiling)
    a, c = torch.zeros_like(base), torch.empty_like(wanted)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    made = by_hand((m, n, k), tiling, tiling.grid(m, n, sms)[0] // tiling.split_k)
    made.control[layout.FIRST_SIGNAL] = 0
    signal = made.control[layout.FIRST_SIGNAL : layout.FIRST_SIGNAL + 1]
    sources = [base * 2.0**i for i in range(4)]
    epochs = torch.arange(1, 1002, device="cuda", dtype=torch.int32)
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    side, rng = torch.cuda.Stream(), randoms.Random(1)
    for call in range(1000):
        if call == 0:  # loads every kernel while nothing waits
            torch.cuda._sleep(1000)
            a.copy_(sources[0])
            signal.copy_(epochs[:1])
            torch.cuda.synchronize()
        else:
            ended = torch.cuda.Event()
            ended.record()
            with torch.cuda.stream(side):
                side.wait_event(ended)  # the call before has read a
                if rng.random() < 0.3:
                    torch.cuda._sleep(int(rng.random() * 2e5))
                a.copy_(sources[call % 4])
                signal.copy_(epochs[call : call + 1])
        c.fill_(float("nan"))
        run(a, w, c, (m, n, k), tiling, FUSED=True, B_EARLY=call % 2 == 1, **made.places)
        wrong += (c != wanted * 2.0 ** (call % 4)).sum()
    torch.cuda.synchronize()
    if wrong.item() or made.control[layout.FAULT].item():
        raise SystemExit(
            f"1000 calls on late data: {wrong.item()} wrong, fault {made.control[layout.FAULT].item()}"
        )


def copied() -> None:
    """What tiles load of a, stored in another tensor as well: bit for bit, alone and by a schedule with phases, and
    nothing behind it; c has the bits that it has without."""
    shapes = (((17, 200, 712), (129, 1000, 328)), ((300, 2304, 640), (2048, 512, 4096)))
    for number, tiling in enumerate(
        (*SMALL[:2], LARGE[1], *FEW[::2], *WIDE[::3])
    ):  # each compiles three kernels or more
        dtype = (torch.bfloat16, torch.float16)[number // 2 % 2]
        for m, n, k in shapes[number % 2]:
            a, w = random(m, k, dtype=dtype), random(k, n, scale=k**-0.5, dtype=dtype)
            c = run(a, w, torch.empty(m, n, device="cuda", dtype=dtype), (m, n, k), tiling)
            copied_as_well(a, w, c, tiling, phases=number % 3)
    for tiling, blocks in ((GluonTiling(64, 128, 128, 4), 1), (GluonTiling(128, 128, 128, 4), 128)):
        m, n, k = 200, 512, 1024
        a, w = (random(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
        shapes = ((m,), (n,)) if blocks == 1 else ((m, k // 128), (n // 128, k // 128))
        options = {
            "scales": tuple(torch.rand(shape, device="cuda") + 0.5 for shape in shapes),
            "w_transposed": True,
        }
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        run(a, w, c, (m, n, k), tiling, **options)
        copied_as_well(a, w, c, tiling, phases=2, **options)


def copied_as_well(
    a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, tiling: GluonTiling, phases: int, **options: Any
) -> None:
    (m, k), n = a.shape, c.shape[1]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    made = by_hand((m, n, k), tiling, tiling.grid(m, n, sms)[0] // tiling.split_k, phases=phases)
    made.control[layout.DEADLINE_MS] = 60000  # compute-sanitizer is slow
    for what, given in (("alone", {}), ("by a schedule", {"FUSED": True, "B_EARLY": True, **made.places})):
        room = torch.full((m + 64, k), 0x5A, device="cuda", dtype=torch.uint8)
        room = room.repeat_interleave(a.element_size(), 1).view(a.dtype)
        beside = torch.full_like(c, float("nan"))
        run(a, w, beside, (m, n, k), tiling, copy=room[:m], **given, **options)
        name = f"{m}x{n}x{k} {a.dtype} {tiling} {what}"
        if not torch.equal(beside, c):
            raise SystemExit(f"{name}: other bits beside a copy")
        if not torch.equal(room[:m].view(torch.uint8), a.view(torch.uint8)):
            raise SystemExit(f"{name}: the copy differs")
        if not (room[m:].view(torch.uint8) == 0x5A).all():
            raise SystemExit(f"{name}: stored behind the copy")


def brief() -> None:
    """Little work by every path, for compute-sanitizer."""
    for tiling in (SMALL[0], LARGE[0], GluonTiling(64, 128, 64, 8, 3), FEW[1], WIDE[2], WIDE[3], WIDE[-1]):
        m, n, k = (13 if tiling.block_m < 64 else 140), 200, 392
        a, w, bias = random(m, k), random(k, n, scale=k**-0.5), random(n)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        run(a, w, c, (m, n, k), tiling, bias=bias)
        expect(f"{tiling}", c, a.float() @ w.float() + bias.float())
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        made = by_hand((m, n, k), tiling, tiling.grid(m, n, sms)[0] // tiling.split_k, phases=2)
        made.control[layout.DEADLINE_MS] = 60000
        fused = run(a, w, torch.empty_like(c), (m, n, k), tiling, bias=bias, FUSED=True, **made.places)
        if not torch.equal(fused, c):
            raise SystemExit(f"{tiling}: other bits with a schedule")
        copied_as_well(a, w, run(a, w, c, (m, n, k), tiling), tiling, phases=2)


SECTIONS = {
    f.__name__: f for f in (shapes, options, fp8, split, schedule, few, wide, rows, late, copied, brief)
}


def main() -> None:
    torch.manual_seed(0)
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
        torch.cuda.synchronize()
        print(f"{name}: right", flush=True)


if __name__ == "__main__":
    main()
