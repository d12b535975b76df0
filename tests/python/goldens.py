"""The kernels of tests/emit/golden/, which has what emit changed in each example as `diff -u` prints it."""

import atexit
import re
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def patched(original: str, difference: str) -> str:
    old, new, at = original.splitlines(keepends=True), [], 0
    for line in difference.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            begin = int(re.match(r"@@ -(\d+)", line)[1]) - 1
            new += old[at:begin]
            at = begin
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:], f"{line!r} is not line {at + 1}: {old[at]!r}"
            new += [old[at]] if line.startswith(" ") else []
            at += 1
    return "".join(new + old[at:])


def folder() -> Path:
    """A folder with the emitted kernels as files, for as long as this process lasts."""
    made = Path(tempfile.mkdtemp(prefix="goldens-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for path in sorted((ROOT / "tests" / "emit" / "golden").glob("*.diff")):
        difference = path.read_text()
        original = ROOT / difference.splitlines()[0].removeprefix("--- ")
        (made / f"{path.stem}.py").write_text(patched(original.read_text(), difference))
    return made
