"""Stated kernels: kernels in a language that the front end does not read (Gluon, CUDA C++), whose author says what each
tile touches, and which follow a schedule by themselves.

    matmul = sy.kernel(
        gluon_matmul,
        tiles={"m": "cdiv(M, BLOCK_M)", "n": "cdiv(N, BLOCK_N)"},
        loops={"k": "cdiv(K, BLOCK_K)"},
        reads={"a_desc": ["m*BLOCK_M : (m+1)*BLOCK_M", "k*BLOCK_K : (k+1)*BLOCK_K"],
               "b_desc": ["k*BLOCK_K : (k+1)*BLOCK_K", "n*BLOCK_N : (n+1)*BLOCK_N"]},
        writes={"c_desc": ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : (n+1)*BLOCK_N"]},
        host=plain_matmul)
    fused = sy.fuse(matmul, plan, bind={"a_desc": "A"})
    fused[grid](a, b, c, …)

Parameters that Syncopate fills, where the kernel has them; calls leave them out:

    sy_schedule, sy_control   addresses (int64) of the table and of the control block (include/syncopate/emit/layout.hpp)
    sy_own                    where this rank has its own part of what it loads: a descriptor, or a distance in elements
    FUSED                     constexpr: whether the kernel follows a schedule. An unfused call of a kernel without it
                              gets a table with every tile in order, no waits and no posts
    FETCHED, PUSHED           constexpr: what is `placed` is loaded (sy_load_row), or stored (sy_row), where the slot says
    OWN                       constexpr: tiles whose slot says so (sy_reads_own) load through sy_own
    COPIES                    constexpr: places where a tile is stored (sy_row with a third argument); 0: where it belongs
    TELLS                     constexpr: its loaders say when all is loaded (sy_loaded), and not its end (sy_finish)
    COUNTS_END                constexpr: its end tells nobody (but in the place of TELLS), and may be counted early (sy_count_end)
    SUMS                      constexpr: how many contributions the programs add up when they have made their tiles
                              (sy_await_sum, sy_add_up); 0: none. Such a call is launched beside the kernel before it in the
                              stream: all of its programs await that one's end first (sy_await_kernel_before)
    sy_sums                   the address (int64) where they put these sums
    STARTS_NEXT               constexpr: the next stage of a chain awaits the tiles that it reads, so the kernel lets it start
                              when it starts itself (sy_start_next); a kernel without it is overlapped by its last programs only
    HEAD_START                constexpr: the first programs run more tiles than the others, as they begin before these, beside
                              the stage before (sy_head_start)
    AFTER_KERNEL              constexpr: the call is launched beside the kernel before it in the stream, whose end all of its
                              programs await (sy_await_kernel_before) before they touch what is not `early`

The kernel's duties: program p of P runs slots p, p + P, … below word 0 of the table; it awaits a slot (of a stated loop:
each of its phases) before the first load, posts a tile when its stores are visible, and ends with sy_finish. Of programs
that share a tile (`split`) one does so for all. `syncopate.gluon` has these calls for Gluon.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _syncopate
from ..device.cuda_source import CudaSource
from .arguments import (
    LAUNCH_OPTIONS,
    base_of,
    bind_launch,
    describe,
    function_of,
    is_descriptor,
    is_tensor,
    name_in_file,
    scalar,
)
from .tuples import flat

#: What is filled, and not a part of a call.
ADDRESSES = ("sy_schedule", "sy_control")
FLAGS = (
    "FUSED",
    "FETCHED",
    "PUSHED",
    "OWN",
    "TELLS",
    "COUNTS_END",
    "COPIES",
    "SUMS",
    "STARTS_NEXT",
    "HEAD_START",
)
COUNTS = ("COPIES", "SUMS")  # of the flags
FILLED = (*ADDRESSES, "sy_own", "sy_sums", *FLAGS)

Ranges = Sequence[str] | Sequence[Sequence[str]]


class StatedKernel:
    """A kernel that sy.fuse takes like a @triton.jit one, from `fn` (of @gluon.jit, or sy.cuda_kernel) and what it states of
    itself. `kernel[grid](…)` runs it alone: on a GPU itself, on host tensors `host`.

    `tiles`: the axes of its tile space, each with its count; tiles are numbered row-major in this order, the last axis
    fastest. `loops`: loops inside a tile whose iterations the kernel awaits in phases, each with its count, which may
    differ from tile to tile. `any_order`: those of them whose ranges may run in any order. `early`: a
    parameter that is read before the kernel waits, and the constexpr that says so: a chain refuses it where an earlier stage
    may write that. `reads`,
    `writes`: parameter → a range for each axis of its tensor ("begin : end", ":" for all of it, one expression for one
    element), or a list of such lists. Expressions: whole numbers, the kernel's scalars and constexprs, tile coordinates
    and, in ranges, loop iterations; + - * // %, cdiv, min, max, `table[4*m]` of known elements. `placed`: parameters
    that are loaded, or stored, where the slot says. `split`: programs that share a tile. `order`: what tiles are sorted
    by where nothing else decides. With `operations`, of tiles whose results are sent, it alone decides among those whose inputs
    have come, and its first half runs before its second. `sums`: the constexpr that says how many contributions the programs
    add up, if they can. `head_start`: likewise the one with which the first programs run more tiles than the others.
    `operations`: how many a tile does, about, where it is no product of what it reads: by that is weighed what has come when a
    tile begins and, without an `order`, what is sent first.

    `host`: the Triton kernel that runs on host tensors, with the same names for what is bound; it gets the arguments that it
    has parameters for, and what `host_arguments(arguments, grid)` returns. Where it is given, its footprints, which the
    front end finds, are held against the statement for each new set of arguments.
    """

    def __init__(
        self,
        fn: Any,
        tiles: Mapping[str, str],
        reads: Mapping[str, Ranges],
        writes: Mapping[str, Ranges],
        loops: Mapping[str, str] | None = None,
        *,
        placed: Sequence[str] = (),
        split: str = "1",
        order: Sequence[str] = (),
        any_order: Sequence[str] = (),
        sums: str = "",
        head_start: str = "",
        operations: str = "",
        early: Mapping[str, str] | None = None,
        host: Any = None,
        host_arguments: Callable[[Mapping[str, Any], tuple[int, ...]], Mapping[str, Any]] | None = None,
    ) -> None:
        self.fn, self.host, self.host_arguments = fn, host, host_arguments
        function = function_of(fn)
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.file = getattr(function, "file", None) or inspect.getsourcefile(function) or "<unknown>"
        self.parameters = list(inspect.signature(function).parameters)
        self.split = split
        self._early = dict(early or {})
        self._tiles = dict(tiles)
        self._said = {
            "tiles": self._tiles,
            "loops": dict(loops or {}),
            "reads": dict(reads),
            "writes": dict(writes),
            "placed": _names("placed", placed),
            "split": split,
            "order": _names("order", order),
            "any_order": _names("any_order", any_order),
            **({"sums": sums} if sums else {}),
            **({"head_start": head_start} if head_start else {}),
            **({"operations": operations} if operations else {}),
        }
        self._identities: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}
        self._require_sense()

    def _require_sense(self) -> None:
        """Raises TypeError or ValueError where the statement is not one of this kernel; what depends on arguments is told by
        C++ (kernel/stated/)."""
        said, name = self._said, self.__name__
        if not isinstance(self.split, str):
            raise TypeError(
                f"{name}: split: expected an expression as text, such as 'SPLIT_K', got {self.split!r}"
            )
        missing = [address for address in ADDRESSES if address not in self.parameters]
        if missing:
            raise ValueError(f"{name} has no parameter {missing[0]}, by which a kernel follows a schedule")
        touched = {*said["reads"], *said["writes"]}
        for what, names in (("reads, writes", touched), ("placed", said["placed"]), ("early", self._early)):
            for parameter in sorted(names):
                if parameter not in self.parameters:
                    raise ValueError(f"{name}: {what}: it has no parameter {parameter!r}")
                if what == "placed" and parameter not in touched:
                    raise ValueError(f"{name}: placed: {parameter} is neither read nor written")
        for parameter, switch in self._early.items():
            if switch not in self.parameters:
                raise ValueError(f"{name}: early of {parameter}: it has no constexpr {switch!r}")
        if self.host is None or self.host_arguments is not None:
            return
        if not hasattr(self.host, "fn"):
            raise TypeError(f"{name}: host: expected a @triton.jit kernel, got {self.host!r}")
        known = inspect.signature(function_of(self.host)).parameters
        for parameter in sorted(touched):
            if parameter not in known:
                raise ValueError(
                    f"{name}: host: {function_of(self.host).__name__} has no parameter {parameter!r}; give it the kernel's "
                    "names, or say host_arguments="
                )

    @functools.cached_property
    def statement(self) -> str:
        """As JSON (include/syncopate/kernel/stated/statement.hpp), with the text of the kernel's file."""
        constants = getattr(self.fn, "constants", None)  # of CUDA C++
        if constants is None:
            constants = [p.name for p in getattr(self.fn, "params", ()) if getattr(p, "is_constexpr", False)]
        return json.dumps(
            {
                "schema": "syncopate.kernel/1",
                "kernel": self.__name__,
                "file": self.file,
                "source": Path(self.file).read_text(),
                "parameters": self.parameters,
                "constants": constants,
                **self._said,
            }
        )

    @property
    def signature(self) -> inspect.Signature:
        """Of a call: without what is filled."""
        whole = inspect.signature(function_of(self.fn))
        return whole.replace(parameters=[p for p in whole.parameters.values() if p.name not in FILLED])

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            options = {name: kwargs.pop(name) for name in LAUNCH_OPTIONS if name in kwargs}
            given = {name: value for name, value in kwargs.items() if name not in FILLED}
            arguments = dict(bind_launch(self.fn, self.signature, args, given).arguments)
            self.run(grid, arguments, options)

        return launch

    def run(self, grid: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """An unfused call, of arguments by name."""
        arguments = without_filled(arguments)
        programs = grid_of(grid, arguments)
        if not on_gpu(arguments):
            host = self.on_host(programs, arguments)
            self.host[host[0]](**host[1])
            return
        full = arguments | self.filled(programs, arguments)
        self.fn[programs](**full, **options)

    def filled(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What an unfused call is given besides its arguments."""
        flags = {name: 0 if name in COUNTS else False for name in FLAGS if name in self.parameters}
        if "FUSED" in self.parameters:
            return dict.fromkeys(ADDRESSES, 0) | flags | self.nowhere()
        table, control = self._identity(grid, arguments)
        return {"sy_schedule": table.data_ptr(), "sy_control": control.data_ptr()} | flags | self.nowhere()

    def nowhere(self) -> dict[str, Any]:
        """The places that a call has no use for: of Gluon, which compiles None in, or of CUDA C++."""
        nothing = 0 if isinstance(self.fn, CudaSource) else None
        return {name: nothing for name in ("sy_own", "sy_sums") if name in self.parameters}

    def early(self, arguments: Mapping[str, Any]) -> list[str]:
        """Parameters that are read before the kernel waits for anything, with these arguments."""
        return [name for name, switch in self._early.items() if arguments.get(switch)]

    def may_write(self, parameter: str) -> bool:
        """Whether the statement lets the kernel write the tensor of `parameter`."""
        return parameter in self._said["writes"]

    def flags(self, schedule: Any, stage: int = 0) -> dict[str, Any]:
        """The constexprs for a stage of a schedule."""
        loads, stores = schedule.loads, schedule.stores
        alone = schedule.num_stages == 1 and schedule.kernel_summands == 0
        values = {
            "FUSED": True,
            "FETCHED": loads is not None and not loads.own,
            "OWN": loads is not None and loads.own,
            "TELLS": alone and schedule.kernel_tells,
            "COUNTS_END": alone and ("TELLS" in self.parameters or not schedule.kernel_tells),
            "SUMS": schedule.kernel_summands,
            "PUSHED": stores is not None,
            "COPIES": 0 if stores is None else stores.copies,
            "STARTS_NEXT": any(schedule.overlaps[stage + 1 : stage + 2]),
            "HEAD_START": schedule.head_starts[stage] != (0, 0),
        }
        if schedule.kernel_summands:  # its call has no other kernel, and is launched beside the one before it
            values |= {"AFTER_KERNEL": True, "B_EARLY": False}  # which may write b
        return {name: value for name, value in values.items() if name in self.parameters}

    def on_host(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The grid and the arguments of `host` in the place of this kernel."""
        grid, made = self._on_host(grid, arguments)
        try:
            return grid, {name: _plain(value) for name, value in made.items()}
        except ValueError as error:
            blocks = {
                name: value.block_shape for name, value in made.items() if hasattr(value, "block_shape")
            }
            raise ValueError(
                f"{self.__name__}: on the host {function_of(self.host).__name__} stands in, which does not take blocks of "
                f"{blocks}: {error}"
            ) from None

    def _on_host(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """As on_host, with descriptors as `host_arguments` makes them: to look at, also of blocks that Triton does not take."""
        if self.host is None:
            raise ValueError(
                f"{self.__name__} has no interpreter: state `host=`, a Triton kernel of the same tiles, to run it there"
            )
        share = self.evaluate(self.split, "split", arguments)
        grid = (max(1, grid[0] // share), *grid[1:])
        chosen = dict(self.host_arguments(arguments, grid)) if self.host_arguments else {}
        known = inspect.signature(function_of(self.host)).parameters
        made = {name: value for name, value in arguments.items() if name in known and name not in chosen}
        return grid, made | chosen

    def evaluate(self, text: str, subject: str, arguments: Mapping[str, Any]) -> int:
        """An expression of the statement for these arguments."""
        numbers = {
            name: int(value) for name, value in flat(arguments).items() if isinstance(value, (bool, int))
        }
        return _syncopate.evaluate(text, f"{self.__name__}: {subject}", numbers)

    def tile_count(self, arguments: Mapping[str, Any]) -> int:
        """How many tiles the statement says that there are, of these arguments."""
        count = 1
        for axis, text in self._tiles.items():
            count *= self.evaluate(text, f"tile axis {axis}", arguments)
        return count

    def stage(
        self,
        arguments: Mapping[str, Any],
        grid: tuple[int, ...],
        whole: Mapping[str, tuple[Sequence[int], str]] | None = None,
    ) -> tuple:
        """As `_syncopate.fuse` takes a kernel; `whole`: shape and dtype of parameters that are given a part."""
        return stage_of(
            self.statement, self.file + ".kernel.json", self.__name__, arguments, grid, whole or {}
        )

    def require_host_alike(
        self,
        arguments: Mapping[str, Any],
        grid: tuple[int, ...],
        whole: Mapping[str, tuple[Sequence[int], str]] | None = None,
    ) -> None:
        """Raises InputError, naming parameter and tile, where the statement and what the front end finds in `host` are not the
        same for these arguments; `whole` as of `stage`."""
        if self.host is None:
            return
        host_grid, given = self._on_host(grid, arguments)
        function = function_of(self.host)
        file = inspect.getsourcefile(function) or "<unknown>"
        source = Path(file).read_text()
        found = stage_of(source, file, name_in_file(function), given, host_grid, whole or {})
        _syncopate.require_same_footprints(self.stage(arguments, grid, whole), found)

    def _identity(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple:
        """A table and a control block for an unfused call: of each stream its own, as calls count in them."""
        count = self.tile_count(arguments)
        share = self.evaluate(self.split, "split", arguments)
        device = next(base_of(v).device for v in flat(arguments).values() if is_tensor(v))
        stream = torch.cuda.current_stream(device).cuda_stream
        programs = grid[0] * grid[1] * grid[2] // share
        key = (device, stream, count, programs)
        if key not in self._identities:
            words = _syncopate.identity_table(count, programs)
            control = torch.zeros(_syncopate.layout.FIRST_SIGNAL, dtype=torch.int32, device=device)
            control[_syncopate.layout.EPOCH] = 1
            self._identities[key] = torch.tensor(words, dtype=torch.int32, device=device), control
        return self._identities[key]


#: As users say it: sy.kernel(fn, …).
kernel = StatedKernel


def stage_of(
    source: str,
    file: str,
    name: str,
    arguments: Mapping[str, Any],
    grid: tuple[int, ...],
    whole: Mapping[str, tuple[Sequence[int], str]],
) -> tuple:
    items = flat(arguments)
    scalars = {key: scalar(value) for key, value in items.items() if not is_tensor(value)}
    tensors = {key: describe(value) for key, value in items.items() if is_tensor(value)}
    for key, (shape, dtype) in whole.items():
        tensors[key] = (list(shape), [], dtype, tensors[key][3])
    return source, file, name, {}, scalars, tensors, grid


def without_filled(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in FILLED}


def on_gpu(arguments: Mapping[str, Any]) -> bool:
    return any(base_of(value).is_cuda for value in flat(arguments).values() if is_tensor(value))


def grid_of(grid: Any, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    if callable(grid):
        grid = grid({k: scalar(v) for k, v in flat(arguments).items() if not is_tensor(v)})
    if not isinstance(grid, Sequence) or not 1 <= len(grid) <= 3:
        raise TypeError(f"grid: expected one to three counts of programs, such as (8, 2), got {grid!r}")
    return (tuple(int(n) for n in grid) + (1, 1, 1))[:3]


def _names(what: str, given: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of names, got {given!r}: write [{given!r}]")
    return list(given)


def _plain(value: Any) -> Any:
    """A descriptor as Triton's interpreter takes it."""
    if not is_descriptor(value):
        return value
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(
        value.base, list(value.shape), list(value.strides), list(value.block_shape), value.padding
    )


def require_one_cta(kernel: Any, options: Mapping[str, Any]) -> None:
    """Of an emitted kernel each block of a cluster would say that the program's tile is done. Stated ones post by themselves."""
    if options.get("num_ctas", 1) != 1 and not isinstance(kernel, StatedKernel):
        raise ValueError(
            f"num_ctas: expected 1, got {options['num_ctas']}: a fused kernel has a block a program"
        )
