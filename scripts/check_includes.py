"""Compiles each file alone and without the precompiled header, which hides includes that are missing; makes nothing.

scripts/check_includes.py [-j JOBS] FILE…     sources and headers of src/, include/, tools/ and tests/; build/ is configured
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def room(path: Path) -> str:
    """src/plan for what is in src/plan/ or include/syncopate/plan/: files that are compiled with the same flags."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "include":
        parts = ("src", *parts[2:])
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def flags_of(command: dict) -> list[str]:
    """A source's command without what names files: the compiler and its flags."""
    kept: list[str] = []
    words = iter(shlex.split(command["command"]))
    for word in words:
        if word in ("-o", "-include", "-MF", "-MT", "-MQ"):
            next(words)
        elif word not in ("-c", "-MD", "-Winvalid-pch") and not word.endswith(".cpp"):
            kept.append(word)
    # The first words may be a compiler launcher's: the compiler is the last one before the flags.
    first = next(i for i, word in enumerate(kept) if word.startswith("-"))
    return kept[first - 1 :]


def compile_alone(path: Path, command: dict) -> str:
    """What the compiler says, or nothing."""
    words = [*flags_of(command), "-fsyntax-only", "-x", "c++", "-"]
    text = f'#include "{path}"\n'
    done = subprocess.run(words, input=text, cwd=command["directory"], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    commands = json.loads((ROOT / "build" / "compile_commands.json").read_text())
    by_file = {command["file"]: command for command in commands}
    by_room: dict[str, dict] = {}
    for command in commands:
        path = Path(command["file"])
        # Not another library's source, nor one that is compiled twice.
        if path.is_relative_to(ROOT) and re.search(r"\.cpp$", path.name) and "/.deps/" not in str(path):
            by_room.setdefault(room(path), command)
    chosen = []
    for name in arguments.files:
        path = (ROOT / name).resolve()
        command = by_file.get(str(path)) or by_room.get(room(path))
        if command is not None:
            chosen.append((path, command))
    with ThreadPoolExecutor(arguments.j) as pool:
        wrong = [said for said in pool.map(lambda one: compile_alone(*one), chosen) if said]
    print("".join(wrong), end="", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
