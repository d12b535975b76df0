"""Calls with an extent of 0, and with what is no tensor of this rank's."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "host_nothing.py"


@pytest.mark.parametrize("what", ["products", "others", "mixtures", "fp8", "operands"])
def test_what_is_not_there_gives_nothing_or_is_named(what, run):
    outcome = run(sys.executable, SCRIPT, 2, f"check_{what}")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 1 checks" in outcome.out
