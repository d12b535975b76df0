"""The library's Gluon kernels compile for sm_90 on stock Triton, and take no more registers, spills and shared memory than
the table beside this file says. Where one takes less, `python tests/python/gluon_resources.py --write` says so there."""

import csv
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import HUNG, SWEEP, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "gluon_resources.py"


def rows_of(text: str) -> dict[str, dict[str, int]]:
    return {
        row.pop("kernel"): {key: int(value) for key, value in row.items()}
        for row in csv.DictReader(text.splitlines())
    }


def test_no_gluon_kernel_takes_more_of_a_multiprocessor_than_it_did():
    from syncopate.device.versions import triton_before

    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    every = 1 if SWEEP else 3
    done = subprocess.run(
        [warm_python(), SCRIPT, f"--every={every}"],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    known, found = rows_of(SCRIPT.with_suffix(".csv").read_text()), rows_of(done.stdout)
    assert list(found) == list(known)[::every], "write the table anew"
    worse = [
        f"{kernel}: {what} {value}, was {known[kernel][what]}"
        for kernel, row in found.items()
        for what, value in row.items()
        if value > known[kernel][what]
        and triton_before(3, 7)  # the table is of 3.6; of later ones all are to compile
    ]
    assert not worse, "\n".join(worse)
    assert all(row["spilled_bytes"] == 0 for row in known.values()), "a kernel that spills has no place here"


GEMM = re.compile(r"gluon_matmul (\d+)x(\d+)x(\d+)/(\d+)(?: split (\d+))?(.*)")


def test_no_gemm_takes_more_shared_memory_than_its_tiling_says():
    """What fits is chosen by that, before anything is compiled."""
    launch = pytest.importorskip("syncopate.kernels.gluon_launch")
    known = rows_of(SCRIPT.with_suffix(".csv").read_text())
    checked = 0
    for kernel, row in known.items():
        if gemm := GEMM.fullmatch(kernel):
            *numbers, rest = gemm.groups(default="1")
            most = launch.GluonTiling(*map(int, numbers)).shared_bytes(
                1 if "fp8" in rest else 2, "gated" in rest
            )
            assert row["shared_bytes"] <= most < row["shared_bytes"] + 3072, kernel
            checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("rows", "columns", "k", "split"), [(64, 64, 128, 1), (16, 32, 128, 1), (64, 64, 128, 2)]
)
def test_a_strategy_has_as_many_stages_as_its_tiling_finds_room_for(rows, columns, k, split):
    launch = pytest.importorskip("syncopate.kernels.gluon_launch")
    import syncopate as sy
    from syncopate import _syncopate

    def taken(stages):
        tile = sy.Tiling(rows, columns, k, stages, -1, split_k=split)
        strategy = sy.Strategy(kernel="gluon", tilings=(tile,), programs=132)
        problem = f"all_gather_matmul:M={2 * rows},N=1024,K=4096,dtype=bf16,ranks=2,sms=132"
        return not _syncopate.tune.estimate(problem, strategy, "h200x2")["objection"]

    most = _syncopate.tune.GLUON_SHARED_BYTES
    fits = [launch.GluonTiling(rows, columns, k, n, split).shared_bytes(2) <= most for n in range(2, 40)]
    assert 0 < sum(fits) < len(fits)
    assert [taken(n) for n in range(2, 40)] == fits


def test_tiles_of_128_rows_leave_room_for_a_block_of_sums():
    """So that parts of a sum are made beside the product (sy_reduce: four warps of 32 registers a thread). A quarter of a
    multiprocessor has registers of its own, and every fourth of the 12 warps."""
    quarter, sums, threads = 16384, 32 * 32, 12 // 4 * 32
    known = rows_of(SCRIPT.with_suffix(".csv").read_text())
    tiles = {kernel: row for kernel, row in known.items() if kernel.startswith("gluon_matmul 128x")}
    assert len(tiles) > 10
    assert all(row["registers"] * threads + sums <= quarter for row in tiles.values()), tiles


COUNTS = """
import re
import gluon_resources as resources
from syncopate._syncopate import layout

resources.driver.set_active(resources.Sm90())
for name, tiling, options in resources.gemms():
    if name in NAMES:
        ptx = resources.compile_gemm(tiling, dict(options)).asm["ptx"]
        print(name, len(re.findall(rf"atom\\.\\S+ \\w+, \\[%rd\\d+ ?\\+ ?{4 * layout.LOADED}\\]", ptx)))
"""


def test_a_gemm_says_that_all_is_loaded_only_where_its_loaders_load_all_that_peers_send():
    """Scales of x come through the heap, and are read once the last loads have been multiplied."""
    names = [
        "64x64x128/6 fused",
        "128x256x64/3",
        "64x256x128/4 fp8 rows fused own",
        "128x128x128/5 fp8 blocks fused own",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [
            warm_python(),
            "-c",
            f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); NAMES = {names}{COUNTS}",
        ],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} {int(name == names[0])}" for name in names]
