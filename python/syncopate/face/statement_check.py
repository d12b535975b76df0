"""Whether a stated kernel touches what it states, found by running it.

    for finding in sy.check_statement(matmul, a, b, c, None, M, N, K, …):
        print(finding)  # tile 3 (m = 1, n = 1) reads a_desc[0, 7], which is not stated

On a GPU single tiles run, by tables of one slot. Writes are found by sentinels: what changes must be what is stated. Reads
are found by poison: everything outside the stated footprint becomes NaN (of whole numbers: other bits), and the result
must stay the same. Waits are found by time: a tile is launched on poison, the data come 20 ms later, then the signal,
for the slot and for the later half of a loop; and at the end the post must have been made and the program have ended.
Nothing is read of the kernel's text, so any language will do. On host tensors the kernel that stands in runs in the
interpreter, whose every access is held against its footprint (syncopate.debug), and its footprints against the
statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from .. import _syncopate
from ..call.arguments import LAUNCH_OPTIONS, base_of, bind_launch, is_descriptor, is_tensor
from ..call.prepared import descriptor_like
from ..call.stated import ADDRESSES, COUNTS, FLAGS, StatedKernel, on_gpu
from ..call.tuples import flat, nested

DEADLINE_MS = 5000
LATE_S = 0.02
SENTINELS = (0x5A, 0xA5)
SCRATCH = ("sy_workspace",)  # written as a kernel likes, and left as it was found

Box = Sequence[tuple[int, int]]


def check_statement(kernel: StatedKernel, *args: Any, tiles: int = 32, **kwargs: Any) -> list[str]:
    """What of `kernel`'s statement does not hold for these arguments, a line each; empty: nothing was found.

    The arguments are those of a call (of small sizes), launch options among them. `tiles`: so many are looked at, spread
    evenly. Tensors keep their values. Raises InputError for a statement that is wrong in itself.
    """
    options = {name: kwargs.pop(name) for name in LAUNCH_OPTIONS if name in kwargs}
    arguments = dict(bind_launch(kernel.fn, kernel.signature, args, kwargs).arguments)
    if not on_gpu(arguments):
        return _on_host(kernel, arguments)
    run = _TileRuns(kernel, arguments, options)
    chosen = range(0, run.count, max(1, -(-run.count // tiles)))
    found: list[str] = []
    for tile in chosen:
        found += run.check(tile)
    return found


def _on_host(kernel: StatedKernel, arguments: Mapping[str, Any]) -> list[str]:
    from .. import debug

    grid = (kernel.tile_count(arguments) * kernel.evaluate(kernel.split, "split", arguments), 1, 1)
    kernel.require_host_alike(arguments, grid)
    host_grid, given = kernel.on_host(grid, arguments)
    return [str(access) for access in debug.check_footprints(kernel.host, host_grid, **given)]


class _TileRuns:
    """Runs of one tile each, on copies of the tensors."""

    def __init__(
        self, kernel: StatedKernel, arguments: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        self.kernel, self.options = kernel, dict(options)
        self.items = flat(arguments)
        self.count = kernel.tile_count(arguments)
        self.share = kernel.evaluate(kernel.split, "split", arguments)
        source, file, name, _, scalars, tensors, grid = kernel.stage(
            arguments, (self.count * self.share, 1, 1)
        )
        self.found = _syncopate.analyse(source, file, name, scalars, tensors, grid)
        self.bases = {n: base_of(v) for n, v in self.items.items() if is_tensor(v)}
        reads, writes = ({p for tile in self.found["tiles"] for p in tile[i]} for i in (1, 2))
        self.written, self.read_only = sorted(writes), sorted(reads - writes)
        self.device = next(iter(self.bases.values())).device
        # CUDA loads a kernel when it is first launched, and that may wait for those that run: nothing is launched for the
        # first time while a tile waits for it.
        self._arrive(self._fresh(SENTINELS[0]))
        torch.zeros(1, dtype=torch.int32, device=self.device)[0:1].fill_(1)
        torch.cuda.synchronize(self.device)

    def check(self, tile: int) -> list[str]:
        _, reads, writes, *_ = self.found["tiles"][tile]
        right, found = self._check_writes(tile, writes)
        for name in self.read_only:
            found += self._check_reads(tile, name, reads.get(name, []), right)
        return found + self._check_waits(tile, reads, right)

    def name_of(self, tile: int) -> str:
        coordinates, rest = [], tile
        for axis, count, _ in reversed(self.found["axes"]):
            coordinates.append(f"{axis} = {rest % count}")
            rest //= count
        return f"tile {tile} ({', '.join(reversed(coordinates))})"

    def _check_writes(self, tile: int, stated: Mapping[str, list[Box]]) -> tuple[dict, list[str]]:
        found: list[str] = []
        touched: dict[str, torch.Tensor] = {}
        for sentinel in SENTINELS:
            before = self._fresh(sentinel)
            after = {name: tensor.clone() for name, tensor in before.items()}
            found += self._run(tile, after, _Table(tile))
            for name, tensor in after.items():
                changed = _differ(tensor, before[name])
                touched[name] = touched[name] | changed if name in touched else changed
        for name, changed in touched.items():
            if name in SCRATCH:
                continue
            inside = _inside(changed, stated.get(name, []))
            for elements, problem in (
                (changed & ~inside, "writes {}, which is not stated"),
                (inside & ~changed & (name in self.written), "is stated to write {}, and does not"),
            ):
                if elements.any():
                    at = tuple(int(i) for i in elements.nonzero()[0])
                    what = f"{name}{list(at)}" + (
                        f" and {int(elements.sum()) - 1} more elements" if elements.sum() > 1 else ""
                    )
                    found.append(f"{self.name_of(tile)} {problem.format(what)}")
        return {name: after[name] for name in self.written}, found

    def _check_reads(
        self, tile: int, name: str, stated: list[Box], right: Mapping[str, torch.Tensor]
    ) -> list[str]:
        """The statement must name all that the result depends on; where it does not, an element is found by halving."""
        outside = (~_inside(self.bases[name], stated)).flatten().nonzero().flatten()
        if not len(outside) or not self._depends(tile, name, outside, right):
            return []
        while len(outside) > 1:
            half = outside[: len(outside) // 2]
            outside = half if self._depends(tile, name, half, right) else outside[len(outside) // 2 :]
        at = [int(i) for i in torch.unravel_index(outside[0], self.bases[name].shape)]
        return [f"{self.name_of(tile)} reads {name}{at}, which is not stated"]

    def _depends(
        self, tile: int, name: str, elements: torch.Tensor, right: Mapping[str, torch.Tensor]
    ) -> bool:
        tensors = self._fresh(SENTINELS[-1])
        tensors[name] = _poisoned(tensors[name], elements)
        self._run(tile, tensors, _Table(tile))
        return any(bool(_differ(tensors[n], right[n]).any()) for n in self.written)

    def _check_waits(self, tile: int, reads: Mapping[str, list[Box]], right: Mapping) -> list[str]:
        """Launched before its data are there, the tile must wait for them: all of them, or those of the loop's later half."""
        found: list[str] = []
        whole = {n: _inside(self.bases[n], reads.get(n, [])).flatten().nonzero() for n in self.read_only}
        cases: list[tuple[str, _Table, dict[str, torch.Tensor]]] = [
            ("the signal of its slot", _Table(tile, waits=True), whole)
        ]
        for variable, trips, divisible, slices in self.found["loops"][:1]:
            if not divisible or trips < 2 or not slices:
                continue
            late = {
                name: self._from_iteration(name, reads.get(name, []), axis, base + step * (trips // 2))
                for name, axis, base, step, extent in slices
                if name in self.read_only and step > 0 and extent <= step
            }
            table = _Table(tile, phases=[trips // 2, trips])
            cases.append((f"the later half of loop {variable}", table, late))
        for what, table, late in cases:
            tensors = self._fresh(SENTINELS[-1])
            for name, elements in late.items():
                tensors[name] = _poisoned(tensors[name], elements.flatten())
            ended = self._run(tile, tensors, table, lambda t=tensors: self._arrive(t))
            if ended:
                found += ended
            elif any(bool(_differ(tensors[n], right[n]).any()) for n in self.written):
                found.append(f"{self.name_of(tile)} does not wait for {what} before it loads")
        return found

    def _from_iteration(self, name: str, stated: list[Box], axis: int, begin: int) -> torch.Tensor:
        inside = _inside(self.bases[name], stated)
        inside.narrow(axis, 0, min(begin, inside.shape[axis])).fill_(False)
        return inside.flatten().nonzero()

    def _arrive(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name in self.read_only:
            tensors[name].copy_(self.bases[name])

    def _fresh(self, sentinel: int) -> dict[str, torch.Tensor]:
        """Copies of all tensors; what is only written holds the sentinel's bytes."""
        fresh = {name: base.detach().clone() for name, base in self.bases.items()}
        for name in self.written:
            if not any(name in tile[1] for tile in self.found["tiles"]):
                fresh[name].view(torch.uint8).fill_(sentinel)
        return fresh

    def _run(
        self, tile: int, tensors: Mapping[str, torch.Tensor], table: _Table, arrive: Any = None
    ) -> list[str]:
        """One launch of the tile, as the only slot; `arrive` brings its data late, and then its signals are set."""
        words = torch.tensor(table.words, dtype=torch.int32, device=self.device)
        control = torch.tensor(table.control, dtype=torch.int32, device=self.device)
        flags = {name: 0 if name in COUNTS else name == "FUSED" for name in FLAGS}
        addresses = dict(zip(ADDRESSES, (words.data_ptr(), control.data_ptr()), strict=True))
        filled = self.kernel.nowhere() | addresses
        items = dict(self.items)
        for name, tensor in tensors.items():
            given = self.items[name]
            items[name] = descriptor_like(given, tensor) if is_descriptor(given) else tensor
        known = {n: v for n, v in (flags | filled).items() if n in self.kernel.parameters}
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))  # for the copies, not for the kernel
        self.kernel.fn[(self.share, 1, 1)](**nested(items), **known, **self.options)
        if arrive is not None:
            with torch.cuda.stream(side):
                time.sleep(LATE_S)
                arrive()
                for word in table.signals:
                    control[word : word + 1].fill_(1)
        torch.cuda.synchronize(self.device)
        return [f"{self.name_of(tile)} {what}" for what in table.left_undone(control.tolist())]


class _Table:
    """A schedule of one slot, which makes one chunk: its words, and its control block. Signal 0 is awaited by the slot
    (`waits`) or by the loop's second range (`phases`: ends of ranges), signal 1 is posted."""

    def __init__(self, tile: int, waits: bool = False, phases: Sequence[int] = ()) -> None:
        layout = _syncopate.layout
        signal, posted, counter = (layout.FIRST_SIGNAL + layout.SIGNAL_STRIDE * i for i in range(3))
        self.posted, self.signals = posted, [signal] if waits or phases else []
        words = list(_syncopate.identity_table(1, 1))
        record = layout.FIRST_SLOT
        words[record + layout.SLOT_TILE] = tile
        words[record + layout.SLOT_WAITS] = len(words)
        words += [signal, 0] if waits else []
        words[record + layout.SLOT_WAITS + 1] = len(words)
        if phases:
            awaited = len(words)
            words += [signal, 0]
            words += [0] * ((-len(words) - layout.PAIR_WORDS) % 4)
            words += [0, len(phases)]
            words[record + layout.SLOT_PHASES] = len(words)
            words[layout.LOOPS] = 1
            for phase, (begin, end) in enumerate(pairwise((0, *phases))):
                words += [begin, end, awaited, awaited + layout.PAIR_WORDS * (phase == 1)]
        posts = len(words)
        words += [4 * posted, 0]
        words += [0] * (-len(words) % 4)
        words[record + layout.SLOT_MAKES] = len(words)
        made = [0] * layout.MADE_WORDS
        made[layout.MADE_COUNTER], made[layout.MADE_TILES] = counter, 1
        made[layout.MADE_POSTS : layout.MADE_POSTS + 2] = posts, posts + layout.PAIR_WORDS
        made[layout.MADE_TOLD] = 1
        words += made
        words[record + layout.SLOT_MAKES + 1] = len(words)
        self.words = words
        self.control = [0] * (counter + layout.SIGNAL_STRIDE)
        self.control[layout.EPOCH], self.control[layout.DEADLINE_MS] = 1, DEADLINE_MS

    def left_undone(self, control: Sequence[int]) -> list[str]:
        layout = _syncopate.layout
        if control[layout.FAULT] != 0:
            return [
                f"waits for signal {control[layout.FAULT] - 1}, which nobody sets: it awaits another word"
            ]
        missing = []
        if control[self.posted] != 1:
            missing.append("does not post what it has stored (sy_post)")
        if control[layout.FINISHED] != 1:
            missing.append(
                f"ends its part of the call {control[layout.FINISHED]} times (sy_finish), not once"
            )
        return missing


def _inside(tensor: torch.Tensor, boxes: Iterable[Box]) -> torch.Tensor:
    """Which elements are in one of the boxes."""
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    for box in boxes:
        mask[tuple(slice(begin, end) for begin, end in box)] = True
    return mask


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


def _differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _bits(a) != _bits(b)


def _poisoned(tensor: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """A copy in which these elements (flat) are NaN, or of whole numbers have other bits."""
    copy = tensor.clone()
    if copy.dtype.is_floating_point:
        values = torch.full((len(elements),), float("nan"), device=copy.device).to(copy.dtype)
        _bits(copy).view(-1)[elements] = _bits(values)
    else:
        copy.view(-1)[elements] ^= 0x55
    return copy
