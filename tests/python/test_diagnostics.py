"""What the command prints about a kernel that it cannot read: the message and its place, the source line, and a caret under
the expression that is meant.

Each file of tests/kernel/diagnostics/ is a case: command lines, the kernel, and what the last command prints. After a
change of messages, SYNCOPATE_UPDATE_GOLDENS=1 writes the expected output anew: look at the difference.
"""

import os
import re
import shlex
import subprocess
import unicodedata
from pathlib import Path

import pytest
from conftest import BINARY, HUNG

if not BINARY.exists():
    pytest.skip("the command is not built", allow_module_level=True)

CASES = sorted((Path(__file__).resolve().parents[1] / "kernel" / "diagnostics").glob("*.txt"))
PLACE = re.compile(r"error: kernel\.py:(\d+):(\d+): \S.*")


def parts_of(case: Path) -> tuple[list[list[str]], str, str]:
    """Command lines, kernel and expected output."""
    commands, rest = case.read_text().split("--- kernel.py\n", 1)
    kernel, expected = rest.split("--- expected\n", 1)
    return (
        [shlex.split(line.removeprefix("$ syncopate ")) for line in commands.splitlines()],
        kernel,
        expected,
    )


def printed(case: Path, folder: Path) -> str:
    commands, kernel, _ = parts_of(case)
    (folder / "kernel.py").write_text(kernel)
    for words in commands[:-1]:
        subprocess.run([BINARY, *words], cwd=folder, check=True, capture_output=True, timeout=HUNG)
    last = subprocess.run([BINARY, *commands[-1]], cwd=folder, capture_output=True, text=True, timeout=HUNG)
    assert last.returncode in (1, 2), last
    assert last.stdout == ""
    assert not (folder / "out").exists()
    return last.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_the_command_prints(case, tmp_path):
    commands, kernel, expected = parts_of(case)
    shown = printed(case, tmp_path)
    if os.environ.get("SYNCOPATE_UPDATE_GOLDENS"):
        case.write_text(case.read_text().split("--- expected\n", 1)[0] + "--- expected\n" + shown)
    else:
        assert shown == expected


def test_there_are_at_least_thirty_messages_and_none_twice():
    first_lines = [re.sub(r"`[^`]*`|\d+", "…", parts_of(case)[2].split("\n", 1)[0]) for case in CASES]
    assert len(set(first_lines)) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_the_caret_stands_under_the_column_that_is_named(case):
    """Independent of the C++ side: the line and column of the message, in the kernel, are where the caret points."""
    _, kernel, expected = parts_of(case)
    first, *rest = expected.splitlines()
    place = PLACE.fullmatch(first)
    if place is None:  # about the file as a whole
        assert not rest
        return
    row, column = map(int, place.groups())
    line = kernel.splitlines()[row - 1]
    shown, marks = rest
    if shown != line:  # a window on a long line; which part of it is tested elsewhere
        assert shown.strip("…") in line
        return
    before, caret = shown[: column - 1], marks.index("^")
    assert marks[:caret].count("\t") == before.count("\t")

    def width(text):
        return sum(
            2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
            for c in text
        )

    assert width(marks[:caret]) == width(before)
    assert set(marks[caret + 1 :]) <= {"~", "\t"}
    assert width(marks) <= width(shown) or marks.endswith("^")


def test_python_raises_the_same_text():
    package = pytest.importorskip("syncopate._syncopate")
    _, kernel, expected = parts_of(next(case for case in CASES if case.stem == "syntax_open_bracket"))
    with pytest.raises(package.InputError) as raised:
        package.analyse(kernel, "kernel.py", "k", {}, {}, (1, 1, 1))
    assert f"error: {raised.value}\n" == expected
