"""sy.context_parallel and attention of one rank's rows alone, on two host ranks."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
SCRIPT = Path(__file__).resolve().parent / "host_local_attention.py"


@pytest.mark.parametrize("what", ["flexible", "steps", "named", "begin", "none", "held", "transformers"])
def test_attention_of_one_ranks_rows_is_told(what, run):
    if what == "transformers":
        pytest.importorskip("transformers")
    outcome = run(sys.executable, SCRIPT, 2, f"check_{what}")
    assert outcome.code == 0, outcome.out + outcome.err
    assert "ok: 1 checks" in outcome.out
