"""Which versions of PyTorch and Triton there are to be: said alike where pip reads it, at import, and by make versions."""

import ast
import re
import sys
from importlib import metadata

import pytest
from conftest import ROOT

versions = pytest.importorskip("syncopate.device.versions", reason="the extension module is not built")

TRIED = [(package, *ends) for package, ends in versions.TRIED.items()]


def numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def test_pip_is_asked_for_the_versions_that_are_tried():
    text = (ROOT / "pyproject.toml").read_text()
    for package, first, (major, minor) in TRIED:
        low, high = re.search(rf'"{package}>=([\d.]+),<([\d.]+)"', text).groups()
        assert (numbers(low), numbers(high)) == (first, (major, minor + 1))


def test_make_versions_tries_the_first_and_the_last_ones():
    tree = ast.parse((ROOT / "scripts" / "versions.py").read_text())
    values = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("TRITON", "TORCH")
    }
    for package, first, last in TRIED:
        tried = [numbers(version) for version in values[package.upper()]]
        assert (min(tried), max(tried)) == (first, last)


@pytest.mark.parametrize("package", versions.TRIED)
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_a_version_that_is_not_tried_is_warned_of(package, step, monkeypatch, recwarn):
    first, last = versions.TRIED[package]
    major, minor = {-1: (first[0], first[1] - 1), 0: last, 1: (last[0], last[1] + 1)}[step]
    installed = f"{major}.{minor}.3+cu999.git1"
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: installed if name == package else real(name))
    versions.warn_of_untried()
    said = [str(warning.message) for warning in recwarn if package in str(warning.message)]
    assert len(said) == abs(step)
    assert all(installed in text and f"pip install '{package}>=" in text for text in said)


def test_what_is_not_installed_is_not_warned_of(monkeypatch, recwarn):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    versions.warn_of_untried()
    assert not list(recwarn)


def test_importing_the_package_warns(run):
    code = "from importlib import metadata; metadata.version = lambda name: '1.2.3'; import syncopate"
    outcome = run(sys.executable, "-c", code, PYTHONPATH=str(ROOT / "python"))
    assert outcome.code == 0, outcome.err
    assert "is tried with torch" in outcome.err and "not with 1.2.3" in outcome.err
