"""Folders that fuse has made, changed for tests."""

from pathlib import Path


def digest(text: str) -> str:
    """As digest.hpp: FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def rewrite(file: Path, text: str) -> None:
    """Gives a file of such a folder another text, as if fuse had written it."""
    schedule = file.parent / "schedule.json"
    before, written = digest(file.read_text()), schedule.read_text()
    assert written.count(before) == 1
    file.write_text(text)
    schedule.write_text(written.replace(before, digest(text)))
