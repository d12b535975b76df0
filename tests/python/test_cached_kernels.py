"""What is kept of kernels, and executed: only what this user's own programs have made."""

import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

TEXT = 'import triton\n\n\n@triton.jit\ndef fill(a_ptr):\n    pass\n\n\nSAID = "right"\n'

LOAD = f"""
import sys
from pathlib import Path
from syncopate.device import jit
try:
    print(jit.load_module({TEXT!r}, "fill").SAID)
except jit.CacheError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def load(run, folder: Path, **environment: str):
    given = {"PYTHONPATH": str(ROOT / "python"), "TRITON_INTERPRET": "1", "SYNCOPATE_CACHE_DIR": str(folder)}
    return run(sys.executable, "-c", LOAD, **given, **environment)


def the_file(folder: Path) -> Path:
    (file,) = (folder / "emitted").glob("fill_*.py")
    return file


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "longer", "binary"])
def test_a_kept_kernel_that_was_changed_is_written_anew(how, run, tmp_path):
    assert load(run, tmp_path).out == "right\n"
    file = the_file(tmp_path)
    right = file.read_bytes()
    file.write_bytes(
        {
            "cut": right[:-9],
            "changed": right.replace(b"right", b"wrong"),
            "empty": b"",
            "longer": right + b'SAID = "wrong"\n',
            "binary": b"\xff\x00" * 99,
        }[how]
    )
    assert load(run, tmp_path).out == "right\n"
    assert file.read_bytes() == right


def link(file: Path, to: Path) -> None:
    file.unlink()
    file.symlink_to(to)


@pytest.mark.parametrize("how", ["link", "dangling", "pipe", "package", "bytes", "lines", "long", "device"])
def test_what_stands_in_the_place_of_a_kept_kernel_is_not_run(how, run, tmp_path):
    assert load(run, tmp_path).out == "right\n"
    file = the_file(tmp_path)
    right = file.read_bytes()
    other = tmp_path / "other.py"
    other.write_text('SAID = "wrong"\n')
    if how == "link":
        link(file, other)
    elif how == "dangling":
        link(file, tmp_path / "nowhere")
    elif how == "pipe":
        file.unlink()
        os.mkfifo(file)
    elif how == "long":
        os.truncate(file, 1 << 40)  # bytes that are nowhere
    elif how == "device":
        link(file, Path("/dev/zero"))
    elif how == "package":
        file.with_suffix("").mkdir()
        (file.with_suffix("") / "__init__.py").write_text(other.read_text())
    else:
        file.write_bytes(b"\xef\xbb\xbf" + right if how == "bytes" else right.replace(b"\n", b"\r\n"))
    assert load(run, tmp_path).out == "right\n"
    assert file.read_bytes() == right and file.is_file() and not file.is_symlink()
    assert other.read_text() == 'SAID = "wrong"\n'


def test_what_python_has_compiled_of_another_text_is_not_run(run, tmp_path):
    assert load(run, tmp_path).out == "right\n"
    file = the_file(tmp_path)
    right, times = file.read_bytes(), file.stat()
    file.write_bytes(right.replace(b"right", b"wrong"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    compiled = run(sys.executable, "-m", "py_compile", file)
    assert compiled.code == 0 and list(file.parent.glob("__pycache__/fill_*.pyc"))
    file.write_bytes(right)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load(run, tmp_path).out == "right\n"


@pytest.mark.parametrize(
    ("name", "mode"),
    [(".", 0o777), (".", 0o775), (".", 0o757), ("emitted", 0o777), ("emitted", 0o775), ("emitted", 0o1777)],
)
def test_a_folder_that_others_may_write_is_refused(name, mode, run, tmp_path):
    assert load(run, tmp_path).code == 0
    (tmp_path / name).chmod(mode)
    outcome = load(run, tmp_path)
    assert outcome.code == 3
    assert "other users may write there" in outcome.out and "SYNCOPATE_CACHE_DIR" in outcome.out


def test_a_folder_below_one_in_which_anybody_may_replace_it_is_refused(run, tmp_path):
    above = tmp_path / "above"
    (above / "below" / "cache").mkdir(parents=True)
    above.chmod(0o777)
    assert load(run, above / "below" / "cache").code == 3
    link = tmp_path / "link"
    link.symlink_to(above / "below" / "cache")
    assert load(run, link).code == 3
    above.chmod(0o1777)  # as /tmp is
    assert load(run, above / "below" / "cache").out == "right\n"


def test_a_new_folder_is_this_users_alone_whatever_the_umask_is(run, tmp_path):
    code = f"import os\nos.umask(0)\n{LOAD}"
    given = {"PYTHONPATH": str(ROOT / "python"), "TRITON_INTERPRET": "1"}
    folder = tmp_path / "new" / "cache"
    assert run(sys.executable, "-c", code, SYNCOPATE_CACHE_DIR=str(folder), **given).out == "right\n"
    assert [place.stat().st_mode & 0o777 for place in (folder, folder / "emitted")] == [0o700, 0o700]
    assert load(run, folder).out == "right\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("name", [".", "emitted"])
def test_a_folder_of_another_user_is_refused(name, run, tmp_path):
    assert load(run, tmp_path).code == 0
    os.chown(tmp_path / name, 12345, -1)
    outcome = load(run, tmp_path)
    assert outcome.code == 3 and "it belongs to another user (uid 12345)" in outcome.out


def test_a_kept_cubin_that_was_changed_is_compiled_anew(tmp_path, monkeypatch):
    from syncopate.device.cuda_source import CudaSource

    monkeypatch.setenv("SYNCOPATE_CACHE_DIR", str(tmp_path))
    compiler = tmp_path / "bin" / "nvcc"  # writes how often it was asked
    compiler.parent.mkdir()
    count = tmp_path / "count"
    compiler.write_text(
        f'#!/bin/sh\necho x >>{count}\nwhile [ "$1" != -o ]; do shift; done\nwc -l <{count} >"$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    source = tmp_path / "scale.cu"
    source.write_text("")
    kernel = CudaSource(source, "scale", {}, threads=32)
    assert [kernel.cubin("sm_90a", {}) for _ in range(2)] == [b"1\n", b"1\n"]
    (file,) = (tmp_path / "cuda").glob("*.cubin")
    right = file.read_bytes()
    for number, wrong in enumerate((b"", right[:-1], right[:32], b"2\n", right[:-2] + b"9\n"), 2):
        file.write_bytes(wrong)
        assert [kernel.cubin("sm_90a", {}) for _ in range(2)] == [f"{number}\n".encode()] * 2
    (tmp_path / "cuda").chmod(0o777)
    from syncopate.device.jit import CacheError

    with pytest.raises(CacheError, match="other users may write there"):
        kernel.cubin("sm_90a", {})
