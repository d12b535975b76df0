"""Does what a page of docs/ tells its reader to do, and compares what comes with what the page shows.

    python tests/pages.py [--installed] PAGE …      in a new folder each, with the commands that PATH leads to

A block of code that begins with a comment of a file's name (`# fused.py`, `// main.cpp`) becomes that file, and so does one
behind a line that ends with the name (`chain.json`:). A page that says (Set up as in [another](PAGE)) begins with the
files of that one. A block of `console` is typed: what follows `$ ` line by line into one shell for the page. All other lines of it are output: each has
to be among the lines that came, in any order, as ranks print side by side; `…` stands for anything. A command whose
output begins with `error:` or `{"ok":false` has to fail, each other one to succeed; a warning has to be shown. With --installed, commands that install are left out;
`syncopate/` is this checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?:`([\w.-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"(?:#|//) ([\w./-]+\.(?:py|cpp|cu|txt))\n")
BEFORE = re.compile(r"\(Set up as in \[[^]]*\]\(([^)]*)\)")
WARNING = re.compile(r"\bwarning: |Warning: ")
INSTALLS = re.compile(r"python3 -m venv|pip install|\. \S+/bin/activate|make -C syncopate")


@dataclass
class Step:
    """A file that is written, or a command that is typed."""

    words: str
    file: str = ""
    shown: list[str] = field(default_factory=list)


def steps_of(page: Path) -> Iterator[Step]:
    text = page.read_text()
    if before := BEFORE.search(text):
        yield from (step for step in steps_of(page.parent / before[1]) if step.file)
    for name, language, block in BLOCK.findall(text):
        if found := FILE.match(block):
            name = found[1]
        if name:
            yield Step(block, name)
        elif language == "console":
            yield from typed(block.replace("\\\n", ""))


def typed(console: str) -> Iterator[Step]:
    step = None
    for line in console.splitlines():
        if line.startswith("$ "):
            if step:
                yield step
            step = Step(line[2:])
        elif step and line.strip() != "…":
            step.shown.append(line.rstrip())
    if step:
        yield step


def missing(shown: list[str], came: str) -> list[str]:
    """The lines that are shown and did not come."""
    lines = [line.rstrip() for line in came.splitlines()]
    left = []
    for line in shown:
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        found = next((index for index, one in enumerate(lines) if pattern.fullmatch(one)), None)
        if found is None:
            left.append(line)
        else:
            del lines[found]
    return left


class PageError(Exception):
    """A page shows what does not happen."""


def follow(page: Path, folder: Path, environment: Mapping[str, str], installed: bool) -> int:
    """Follows a page in `folder`; the number of commands that it typed. Raises PageError."""
    for name, place in (("syncopate", ROOT), ("examples", ROOT / "examples")):
        (folder / name).symlink_to(place)
    log = folder / ".typed"
    shell = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, cwd=folder, env={**environment, "HOME": str(folder)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    commands = 0
    try:
        for step in steps_of(page):
            if step.file:
                (folder / step.file).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.file).write_text(step.words)
            elif not (installed and INSTALLS.search(step.words)):
                came = type_into(shell, step.words, log)
                commands += 1
                expect(page, step, *came)
    finally:
        shell.stdin.close()
        shell.wait()
    return commands


def type_into(shell: subprocess.Popen, words: str, log: Path) -> tuple[int, str]:
    """The exit code and the output of a command that leaves the shell its folder and its variables."""
    shell.stdin.write(f'{{ {words}\n}} >"{log}" 2>&1 </dev/null; echo $?\n')
    shell.stdin.flush()
    code = shell.stdout.readline()  # nothing: the command has ended the shell
    return int(code or 255), log.read_text()


def expect(page: Path, step: Step, code: int, came: str) -> None:
    fails = bool(step.shown) and step.shown[0].startswith(("error:", '{"ok":false'))
    wrong = missing(step.shown, came)
    shows = any(WARNING.search(line) for line in step.shown)
    warned = [line for line in came.splitlines() if WARNING.search(line) and not shows]
    if wrong or warned or (code != 0) != fails:
        lines = [
            f"{page.name}: $ {step.words}",
            f"exit code {code}",
            *(f"not there: {line}" for line in wrong),
            *(f"not shown: {line}" for line in warned),
        ]
        raise PageError("\n".join([*lines, "what came:", came]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--installed", action="store_true", help="leave out what installs")
    parser.add_argument("page", nargs="+", type=Path)
    options = parser.parse_args()
    for page in options.page:
        with tempfile.TemporaryDirectory(prefix="page-") as folder:
            try:
                commands = follow(page, Path(folder), os.environ, options.installed)
            except PageError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        print(f"{page.name}: {commands} commands, all as shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
