"""The library's Gluon kernels compile for sm_90 on stock Triton, and take no more registers, spills and shared memory than
the table beside this file says. Where one takes less, `python tests/python/gluon_resources.py --write` says so there."""

import csv
import os
import subprocess
from pathlib import Path

import pytest
from conftest import HUNG, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "gluon_resources.py"


def rows_of(text: str) -> dict[str, dict[str, int]]:
    return {
        row.pop("kernel"): {key: int(value) for key, value in row.items()}
        for row in csv.DictReader(text.splitlines())
    }


def test_no_gluon_kernel_takes_more_of_a_multiprocessor_than_it_did():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [warm_python(), SCRIPT], capture_output=True, text=True, timeout=HUNG, env=environment
    )
    assert done.returncode == 0, done.stderr
    known, found = rows_of(SCRIPT.with_suffix(".csv").read_text()), rows_of(done.stdout)
    assert found.keys() == known.keys(), "write the table anew"
    worse = [
        f"{kernel}: {what} {value}, was {known[kernel][what]}"
        for kernel, row in found.items()
        for what, value in row.items()
        if value > known[kernel][what]
    ]
    assert not worse, "\n".join(worse)
    assert all(row["spilled_bytes"] == 0 for row in known.values()), "a kernel that spills has no place here"
