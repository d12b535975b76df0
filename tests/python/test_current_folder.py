"""The command in a folder that somebody else has filled: nothing of it is imported."""

import os

import pytest
from conftest import BINARY

if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)
pytest.importorskip("triton")

MODULES = [
    "argparse", "ast", "contextlib", "ctypes", "dataclasses", "encodings", "functools", "importlib", "inspect", "json", "linecache",
    "math", "numpy", "os", "pathlib", "pickle", "random", "re", "runpy", "signal", "site", "sitecustomize", "socket", "struct",
    "subprocess", "syncopate", "tempfile", "threading", "torch", "triton", "typing", "usercustomize", "zipimport",
]  # fmt: skip


@pytest.fixture
def hostile(tmp_path):
    """A folder of modules, as files and as packages, each of which leaves its name where it runs."""
    folder = tmp_path / "hostile"
    for name in MODULES:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name + chr(10)!r})\n"
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
        (folder / f"{name}.py").write_text(text)
    site = folder / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (site / "here.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'a').write('pth')\n")
    (folder / "pyvenv.cfg").write_text(f"home = {folder}\n")
    return folder


#: What $PYTHONPATH may say of the current folder; None: there is none.
PATHS = [None, ":", ".", "lib/..:{there}::", ".:{there}:"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_of_the_current_folder_is_imported(path, hostile, syncopate_in, tmp_path):
    (tmp_path / "there").mkdir()
    given = {} if path is None else {"PYTHONPATH": path.format(there=tmp_path / "there")}
    outcome = syncopate_in(hostile, given, "run", "nothing_of_this_name:M=1")
    assert outcome.code in (1, 2) and "nothing_of_this_name" in outcome.err, outcome.err
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "all_gather_matmul:M=32,N=16,K=16", "--ranks", "2", "--check"],
        ["tune", "nothing_of_this_name:M=1"],
        ["bench", "nothing_of_this_name"],
    ],
    ids=" ".join,
)
def test_no_command_imports_from_the_current_folder(words, hostile, syncopate_in, tmp_path):
    outcome = syncopate_in(hostile, {"PYTHONPATH": ":.:"}, *words)
    if "--check" in words:
        assert outcome.code == 0, outcome.err
    else:
        assert outcome.code in (1, 2) and "nothing_of_this_name" in outcome.err, outcome.err
    assert "Traceback" not in outcome.err, outcome.err
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.fixture
def syncopate_in(run):
    """syncopate_in(folder, environment, word, …) → the command's outcome there."""

    def call(folder, environment, *words):
        before = os.getcwd()
        os.chdir(folder)
        try:
            return run(BINARY, *words, SYNCOPATE_TUNE="off", **environment)
        finally:
            os.chdir(before)

    return call
