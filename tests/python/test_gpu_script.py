"""scripts/gpu starts what is there, ends what takes too long, and says which failed."""

import importlib.machinery
import importlib.util
import re
import sys

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("gpu_script", str(ROOT / "scripts" / "gpu"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_script", loader))
    sys.modules["gpu_script"] = module  # dataclasses look there
    loader.exec_module(module)
    return module


def test_it_names_scripts_sections_and_options_that_are_there(script):
    for run in script.RUNS:
        words = run.command.split()
        files = [word for word in words if word.endswith(".py")]
        text = "".join((ROOT / file).read_text() for file in files)
        if "syncopate}" in run.command:
            bench, tools = ROOT / "python" / "syncopate" / "bench", ROOT / "tools"
            sources = bench.glob("*.py") if "} bench" in run.command else tools.glob("*.cpp")
            text = "".join(path.read_text() for path in sources)
        for word in words[words.index(files[-1]) + 1 :] if files else []:
            if "tests/gpu" in run.command:
                assert re.search(rf'"{word}"|^def (check_)?{word}\(', text, re.M), (
                    f"{run.name}: no section {word}"
                )
        for option in re.findall(r" (--[\w-]+)", run.command.split(".py")[-1]):
            assert f'"{option}"' in text, f"{run.name}: no {option}"


def test_it_ends_what_takes_too_long_and_says_what_failed(script, tmp_path, monkeypatch, capsys):
    shell = "sh -c"
    runs = [
        script.Run("right", f"{shell} 'echo it ran'", 20, 1),
        script.Run("wrong", f"{shell} 'exit 3'", 20, 1),
        script.Run("endless", f"{shell} 'sleep 600'", 1, 1),
        script.Run("larger", f"{shell} true", 20, 8),
    ]
    monkeypatch.setattr(script, "RUNS", runs)
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    assert script.main() == 1
    said = capsys.readouterr().out
    assert "right              ok" in said and "wrong              FAILED (3)" in said
    assert "ended at its limit of 1 s" in said and "left out: needs 8 GPUs" in said
    assert "it ran" in (tmp_path / "right.log").read_text()
