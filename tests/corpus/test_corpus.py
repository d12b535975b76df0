"""Every kernel of the corpus: its result, its footprints, its tile space, and fused as consumer and as producer.

The cases stand beside their kernels, in the other files of this folder; `pytest -k attention` runs those of one family.
Kernels run in Triton's interpreter in processes of their own (worker.py), since Triton decides at import whether it
interprets or compiles.
"""

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from conftest import HUNG

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

pytest.importorskip("triton")
if not list((ROOT / "python" / "syncopate").glob("_syncopate*.so")):
    pytest.skip("the extension is not built", allow_module_level=True)


def stated_cases() -> list[str]:
    """family/name of every function under @case, without importing it."""
    names = []
    for path in sorted(HERE.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(d, ast.Name) and d.id == "case" for d in node.decorator_list
            ):
                names.append(f"{path.stem}/{node.name}")
    return names


def run(script: str, *words: str, **environment: str) -> list[dict]:
    result = subprocess.run(
        [sys.executable, str(HERE / script), *words],
        capture_output=True,
        text=True,
        timeout=HUNG,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="session")
def outcomes(request, tmp_path_factory) -> dict[str, list[dict]]:
    """What came of every check of the selected cases."""
    folder = tmp_path_factory.mktemp("corpus")
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "callspec", None) and item.function is test_kernel
    ]
    found = defaultdict(list)
    interpreted = run("worker.py", str(folder), *names)
    xfails = {o["case"]: o["xfail"] for o in interpreted if o["check"] == "compile"}
    compiled = run("compile.py", str(folder), TRITON_INTERPRET="0")
    for outcome in interpreted + [{**o, "xfail": xfails[o["case"]]} for o in compiled]:
        found[outcome["case"]].append(outcome)
    return found


@pytest.mark.parametrize("name", stated_cases())
def test_kernel(name, outcomes):
    found = outcomes[name]
    assert found, "no check ran"
    wrong = [o for o in found if o["error"]]
    unexpected = [f"{o['check']}: {o['error']}" for o in wrong if not o["xfail"]]
    assert not unexpected, "\n".join(unexpected)
    failing = {o["check"] for o in wrong}
    passing = {o["check"] for o in found if o["xfail"]} - failing
    assert not passing, (
        f"{passing} pass though marked as failing: {[o['xfail'] for o in found if o['xfail']]}"
    )
    if wrong:
        pytest.xfail("; ".join(f"{o['check']}: {o['xfail']}" for o in wrong))
