"""What an interpreted kernel may touch: the memory of its tensor arguments. An access anywhere else is an error that names the
kernel's line and the program, instead of memory of this process that is read, or overwritten."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..call.arguments import base_of, is_tensor
from ..call.tuples import flat

PACKAGE = f"{Path(__file__).parents[1]}/"


class KernelError(RuntimeError):
    """What a kernel did wrong while it was interpreted, with the line that did it."""

    exit_code = 1


class Bounds:
    """Ranges of addresses, each with the name of what lies there: the arguments but those that fuse has added, and `more`."""

    def __init__(self, arguments: Mapping[str, Any], more: Iterable[tuple[str, int, int]] = ()) -> None:
        ranges = list(more)
        for name, value in flat(arguments).items():
            if is_tensor(value) and base_of(value).numel() and not name.startswith("sy_"):
                base = base_of(value)
                if base.device.type != "cpu":
                    raise KernelError(f"{name} is on {base.device}, and the kernel runs on the host")
                last = sum((n - 1) * s for n, s in zip(base.shape, base.stride(), strict=True))
                begin = base.data_ptr()
                ranges.append((name, begin, begin + (last + 1) * base.element_size()))
        ranges.sort(key=lambda one: one[1:])
        self.names = [name for name, _, _ in ranges]
        self.begins = np.array([begin for _, begin, _ in ranges], dtype=np.int64)
        # Of overlapping ranges, how far those that begin before a place reach.
        self.ends = np.maximum.accumulate(np.array([end for _, _, end in ranges], dtype=np.int64))

    def outside(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Which elements of `size` bytes do not lie in any range as a whole."""
        if not self.names:
            return np.ones(addresses.shape, dtype=bool)
        place = np.searchsorted(self.begins, addresses, side="right") - 1
        return (place < 0) | (addresses + size > self.ends[np.maximum(place, 0)])

    def nearest(self, address: int) -> str:
        """Where an address that lies in no range is, in words."""
        if not self.names:
            return "the kernel has no tensor"
        place = int(np.searchsorted(self.begins, address, side="right")) - 1
        behind = address - int(self.ends[place]) if place >= 0 else None
        before = int(self.begins[place + 1]) - address if place + 1 < len(self.names) else None
        if behind is not None and (before is None or behind <= before):
            last = next(i for i, end in enumerate(self.ends) if end == self.ends[place])
            return f"{behind} bytes behind the end of {self.names[last]}"
        return f"{before} bytes before the begin of {self.names[place + 1]}"


_held: list[Bounds] = []  # of the launches in progress, the innermost last


@contextmanager
def held(bounds: Bounds) -> Iterator[None]:
    """Every load, store and atomic is held against these."""
    with _added(_held, bounds):
        yield


#: Of a load, store or atomic: the builder, "loads", "stores to" or "updates", the pointers, the mask (None: all), and all operands.
Watch = Callable[[Any, str, Any, Any, tuple[Any, ...]], None]
_watching: list[Watch] = []


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """`watch` sees every load, store and atomic of interpreted kernels."""
    with _added(_watching, watch):
        yield


@contextmanager
def _added(those: list[Any], one: Any) -> Iterator[None]:
    _install()
    those.append(one)
    try:
        yield
    finally:
        those.pop()


def is_user_file(file: str) -> bool:
    return "/triton/" not in file and not file.startswith(PACKAGE)


def user_line(skip: int, is_user: Callable[[str], bool] = is_user_file) -> tuple[str, int]:
    """The innermost of the user's lines, `skip` frames out."""
    frame = sys._getframe(skip)
    while frame is not None:
        if is_user(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


# By the path of a module that was made from a kernel's file: its text, the user's file, and that one's text.
_origins: dict[str, tuple[str, str, str]] = {}


def note_origin(path: str, text: str, user_file: str, user_text: str) -> None:
    """Errors in `path` are told as ones of the user's file, from which it was made."""
    _origins[path] = (text, user_file, user_text)


def place_text(file: str, line: int) -> str:
    """file:line, in the user's own file."""
    if file not in _origins:
        return f"{file}:{line}"
    text, user_file, user_text = _origins[file]
    made, own = ([one.strip() for one in t.splitlines()] for t in (text, user_text))
    matcher = difflib.SequenceMatcher(None, made, own, autojunk=False)
    at = line - 1
    for first, second, size in matcher.get_matching_blocks():  # an added line counts as the one behind it
        if at < first + size:
            return f"{user_file}:{second + max(at - first, 0) + 1}"
    return f"{user_file}:{line}"


def program_text(builder: Any) -> str:
    place, extent = builder.grid_idx, builder.grid_dim
    return f"program {place[0]}" if tuple(extent[1:]) == (1, 1) else f"program {tuple(place)}"


def _check(builder: Any, verb: str, pointers: Any, mask: Any) -> None:
    addresses = np.asarray(pointers.data).astype(np.int64)
    if mask is not None:
        holds = np.asarray(mask.data, dtype=bool)
        if not holds.all():
            addresses = addresses[np.broadcast_to(holds, addresses.shape)]
    if not addresses.size:
        return
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    beyond = _held[-1].outside(addresses, size)
    if not beyond.any():
        return
    wrong = addresses[beyond]
    file, line = user_line(3)
    count = "an element" if wrong.size == 1 else f"{wrong.size} elements"
    first = ", the first one" if wrong.size > 1 else ","
    raise KernelError(
        f"{place_text(file, line)}: {program_text(builder)} {verb} {count} outside every tensor argument{first} "
        f"{_held[-1].nearest(int(wrong.flat[0]))}: mask the access, or give the grid and the tensors of the launch"
    )


@functools.cache
def _install() -> None:
    """Puts the check, and who watches, in front of the interpreter's memory operations."""
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    def seen(name: str, verb: str, pointers_at: int, mask_at: int | None) -> None:
        operation = getattr(Builder, name)

        @functools.wraps(operation)
        def run(builder: Any, *operands: Any, **named: Any) -> Any:
            pointers, mask = operands[pointers_at], None if mask_at is None else operands[mask_at]
            if _held:
                _check(builder, verb, pointers, mask)
            for watch in _watching:
                watch(builder, verb, pointers, mask, operands)
            return operation(builder, *operands, **named)

        setattr(Builder, name, run)

    seen("create_masked_load", "loads", 0, 1)
    seen("create_masked_store", "stores to", 0, 2)
    seen("create_atomic_rmw", "updates", 1, 3)
    seen("create_atomic_cas", "updates", 0, None)
