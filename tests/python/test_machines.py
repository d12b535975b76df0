"""Host ranks that know different machines, or would choose differently."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "host_machines.py"


@pytest.mark.parametrize(
    "what", ["products", "attention", "experts", "modes", "unread", "tracing", "machines"]
)
def test_ranks_that_would_choose_apart_do_what_rank_0_chooses(what, run):
    outcome = run(sys.executable, SCRIPT, 2, f"check_{what}")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 1 checks" in outcome.out
