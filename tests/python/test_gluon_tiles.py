"""The tiles that the estimate chooses for the Gluon GEMM are about the fastest ones measured, and can be launched."""

import csv
import math
from collections import defaultdict

import pytest
from conftest import ROOT

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")


def measured(table: str) -> dict[tuple[int, int, int], dict[str, float]]:
    rows = defaultdict(dict)
    lines = (ROOT / "bench" / "results" / table).read_text().splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        rows[int(row["M"]), int(row["N"]), int(row["K"])][row["kernel"]] = float(row["us"])
    return rows


def name_of(t) -> str:
    """As bench/gemm writes it."""
    split = f" split {t.split_k}" if t.split_k > 1 else ""
    return f"{t.block_m}x{t.block_n}x{t.block_k}/{t.stages}{split}"


@pytest.mark.parametrize(
    "table, machine, products, mean, most",
    [("gemm_1xH200.csv", "h200x1", 88, 1.009, 1.16), ("gemm_1xH100.csv", "h100x2", 51, 1.01, 1.07)],
)
def test_the_choice_is_about_the_fastest_one_measured(table, machine, products, mean, most):
    from syncopate.kernels.gluon_tiles import ranked

    lost = {}
    for shape, times in measured(table).items():
        known = [t for t, _ in ranked(*shape, 132, machine=machine) if name_of(t) in times]
        chosen = known[0]
        lost[shape] = times[name_of(chosen)] / min(times[name_of(t)] for t in known)
    assert len(lost) == products
    assert math.exp(sum(map(math.log, lost.values())) / len(lost)) < mean
    assert max(lost.values()) < most, max(lost, key=lost.get)


def test_every_candidate_fits_into_a_multiprocessor():
    from syncopate import _syncopate
    from syncopate.kernels.gluon_tiles import ranked

    for m, n, k in ((64, 2304, 7168), (1024, 3584, 8192), (8192, 8192, 8192)):
        tiles = [t for t, _ in ranked(m, n, k, 132)]
        assert len({t.block_m * t.block_n for t in tiles}) > 2
        assert all(t.shared_bytes(2) <= _syncopate.tune.GLUON_SHARED_BYTES for t in tiles)


@pytest.mark.parametrize("programs", [132, 116, 1])
def test_a_few_rows_are_shared_out_and_odd_shapes_have_tiles(programs):
    from syncopate.kernels.gluon_tiles import quickest

    for m in (1, 16, 64, 65, 300, 1024):
        for n, k in ((8, 8), (264, 200), (2304, 7168), (28672, 8192)):
            t = quickest(m, n, k, programs)
            assert t.tiles(m, n) >= 1 and t.grid(m, n, programs)[0] <= max(programs, t.split_k)
    if programs == 132:
        assert quickest(64, 1024, 16384, 132).split_k > 1
        assert quickest(64, 2304, 7168, 132).block_m == 32
        assert all(quickest(m, 4096, 1792, 132).block_m <= 32 for m in (1, 16, 32))
        assert quickest(2048, 1536, 8192, 132).block_n == 192
        assert quickest(2048, 2304, 7168, 132).block_m == 192


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_operators_are_stated_with_the_tiles_of_a_strategy(transposed):
    import torch
    from syncopate.kernels.gluon_tiles import quickest
    from syncopate.ops.product_kernel import Product
    from syncopate.strategy import Tiling

    for m, n, k in ((16, 2304, 7168), (300, 264, 200), (1024, 3584, 8192)):
        best = quickest(m, n, k, 132)
        chosen = Tiling(best.block_m, best.block_n, best.block_k, best.stages, -1, split_k=best.split_k)
        few, wide = Tiling(16, 64, 128, 10, -1), Tiling(64, 192, 64, 6, -1, split_k=2)
        square = Tiling(192, 192, 64, 3, -1)
        for tiling in (chosen, Tiling(128, 256, 64, 3, -1), Tiling(64, 64, 64, 4, -1), few, wide, square):
            product = Product(m, n, k, tiling, 132, transposed, gluon=True)
            a = torch.empty(m, k, dtype=torch.bfloat16)
            w = torch.empty(product.w_shape, dtype=torch.bfloat16)
            call = product.call(a, w, torch.empty(m, n, dtype=torch.bfloat16))
            assert call.arguments["SPLIT_K"] == tiling.split_k
            product.kernel.require_host_alike(call.arguments, (*call.grid, 1, 1))
            assert set(call.arguments) <= set(product.kernel.signature.parameters)
            assert call.grid[0] % call.arguments["SPLIT_K"] == 0
            copied = product.call(a, w, torch.empty(m, n, dtype=torch.bfloat16), copy=torch.empty_like(a))
            product.kernel.require_host_alike(copied.arguments, (*call.grid, 1, 1))


def test_scales_that_the_kernel_would_misread_are_refused():
    import torch
    from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments

    m, n, k = 64, 512, 1024
    a, w = (torch.zeros(s, dtype=torch.float8_e4m3fn) for s in ((m, k), (n, k)))
    c = torch.zeros(m, n, dtype=torch.bfloat16)
    blocks = torch.ones(m, k // 128), torch.ones(n // 128, k // 128)
    with pytest.raises(ValueError, match="blocks of 128"):
        gluon_arguments(a, w, c, (m, n, k), GluonTiling(64, 256, 64, 4), w_transposed=True, scales=blocks)
    gluon_arguments(a, w, c, (m, n, k), GluonTiling(64, 128, 128, 4), w_transposed=True, scales=blocks)
    with pytest.raises(ValueError, match="gated"):
        gluon_arguments(
            a, w, c, (m, 256, k), GluonTiling(64, 64, 64, 4), w_transposed=True, scales=blocks, gated=True
        )
