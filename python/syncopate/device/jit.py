"""The one thing that needs Python on a GPU: Triton's JIT. Everything compiled here is launched from C++."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .. import _syncopate
from ..host.bounds import note_origin

DESCRIPTOR = "tensordesc"  # how the kind of a descriptor's parameter begins


def cache_folder() -> Path:
    """Where emitted kernels are kept, beside what C++ keeps there (cache_folder.hpp)."""
    folder = _syncopate.cache_folder()
    if not folder:
        raise RuntimeError("there is no folder for emitted kernels: set SYNCOPATE_CACHE_DIR")
    return Path(folder)


class _Importing(threading.local):
    """Files of users that this thread is importing for a kernel, the innermost last."""

    def __init__(self) -> None:
        self.files: list[str] = []


_importing, _loading = _Importing(), threading.RLock()


def refuse_launches_of_an_import() -> None:
    """Raises while a file is imported for its fused kernel: what the file itself launches would do so without end."""
    if _importing.files:
        raise RuntimeError(
            f"{_importing.files[-1]} is imported for its fused kernel, and launches one itself then: put what it runs under "
            '`if __name__ == "__main__":`'
        )


class CacheError(RuntimeError):
    """The cache folder cannot be written, or others may write there."""

    exit_code = 3


class AsGiven(SourceFileLoader):
    """Runs the text itself: what Python has kept of its file, compiled, may be of another one."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self._source.encode(), self.path)


def keep(path: Path, data: bytes) -> None:
    """Writes a file in one piece."""
    scratch = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
    scratch.write_bytes(data)
    scratch.replace(path)


MOST_KEPT = 1 << 28  # bytes: of a kernel, its text or compiled


def kept(path: Path) -> bytes | None:
    """What is in the file; None where there is none, or what is there is no file of ours: a pipe would be waited for, and what
    is too long not fit into memory."""
    try:
        there = os.stat(path)
        if not stat.S_ISREG(there.st_mode) or there.st_size > MOST_KEPT:
            return None
        return path.read_bytes()
    except FileNotFoundError:
        return None


def private_folder(folder: Path, what: str) -> None:
    """Makes the folder for `what`, which is executed. Raises CacheError where it cannot be made, or where others may write."""
    try:
        _syncopate.make_private_folder(str(folder))
    except _syncopate.MachineError as error:
        raise CacheError(
            f"{what} cannot be kept in {folder}: {error}; set SYNCOPATE_CACHE_DIR to a folder of your own"
        ) from None


def load_module(
    source: str,
    stem: str,
    package: str | None = None,
    folder: Path | None = None,
    origin: tuple[str, str] | None = None,
) -> ModuleType:
    """Imports emitted source. Triton reads kernels from files, so the text is kept in the cache folder under its hash.

    `package`: of the user's module, so that its relative imports go on working. `origin`: the user's file and its text,
    of which errors in an interpreted kernel are told. Raises CacheError where the text cannot be kept.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    folder = folder or cache_folder() / "emitted"
    path = folder / f"{stem}_{digest}.py"
    private_folder(folder, "emitted kernels")
    try:
        if kept(path) != source.encode():  # new, or cut off or changed since
            keep(path, source.encode())
    except OSError as error:
        raise CacheError(
            f"emitted kernels cannot be kept in {folder}: {path.name}: {error.strerror}; set SYNCOPATE_CACHE_DIR to a folder that can be written"
        ) from None
    if origin is not None:
        note_origin(str(path), source, *origin)
    with _loading:  # a module that another thread is importing has not all that it will have
        return _import(f"{package + '.' if package else ''}_sy_{stem}_{digest}", path, source, origin)


def kernel_in(module: ModuleType, name: str) -> Any:
    """The kernel of an emitted module. One that its file makes by a call, as in `fast = triton.jit(k)`, is a plain function
    under its own name, and is made a kernel here."""
    import triton

    found = functools.reduce(getattr, name.split("."), module)
    return triton.jit(found) if isinstance(found, FunctionType) else found


def _import(name: str, path: Path, source: str, origin: tuple[str, str] | None) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, loader=AsGiven(name, path, source))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _importing.files.append(origin[0] if origin else str(path))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _importing.files.pop()
    return module


def current_stream() -> int:
    """The stream of the current device into which torch enqueues now."""
    from triton.runtime import (
        driver,
    )  # as Triton's own launches ask: torch.cuda.current_stream makes an object, 2 us

    return driver.active.get_current_stream(driver.active.get_current_device())


def provide_scratch(device: Any) -> None:
    """Gives Triton memory for the kernels that it launches itself: one that makes descriptors keeps them there. What is
    launched from C++ has its own (runtime/cuda/driver/launch.hpp)."""
    import torch
    import triton

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)


@dataclass
class Compiled:
    """A kernel that Triton compiled, loaded by the C++ runtime; `pack` turns arguments into launch parameters."""

    kernel: _syncopate.CudaKernel
    signature: dict[str, str]
    descriptor_metadata: list[dict[str, Any] | None]
    extra: dict[str, Any] = field(default_factory=dict)
    #: By place among the parameters what is compiled in: constexprs, and numbers that were 1.
    constants: dict[tuple[int, ...], Any] = field(default_factory=dict)
    #: Places of addresses and numbers that are taken to be multiples of 16.
    multiples: frozenset[tuple[int, ...]] = frozenset()
    #: By place the dtype of what was a tensor.
    dtypes: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def misfit(self, arguments: Mapping[str, Any]) -> str:
        """The parameter for which these arguments need another compilation, as in Triton's own launches; "" where none does."""
        for place, name, kind, value in items_of(self.signature, arguments):
            if kind == "constexpr":
                if place in self.constants and not _is_same(self.constants[place], value):
                    return name
            elif kind == "i32" and not -(2**31) <= int(value) < 2**31:
                return name
            elif place in self.multiples and _number_of(value) % 16:
                return name
            elif place in self.dtypes and getattr(value, "dtype", self.dtypes[place]) != self.dtypes[place]:
                return name
        return ""

    def pack(self, arguments: dict[str, Any]) -> _syncopate.KernelArguments:
        """Launch parameters in Triton's order (3.6 to 3.9: descriptors as map, shape, strides; then the scratch pointers)."""
        packed = _syncopate.KernelArguments()
        descriptor = 0
        for _, name, kind, value in items_of(self.signature, arguments):
            if kind == "constexpr":
                continue
            if kind.startswith(DESCRIPTOR):
                metadata = self.descriptor_metadata[descriptor] if self.descriptor_metadata else None
                descriptor += 1
                pack_descriptor(packed, value, metadata)
            elif kind.startswith("*"):
                packed.add_pointer(value if isinstance(value, int) else value.data_ptr())
            else:
                pack_number(packed, name, kind, value)
        return packed


class Variants:
    """A kernel with its grid and options, compiled anew for arguments that its compilations so far do not fit: where a number
    was 1 and is not, an address was a multiple of 16 and is not, or a tensor has another dtype."""

    def __init__(self, compile_for: Callable[[dict[str, Any]], Compiled], arguments: dict[str, Any]) -> None:
        self._compile_for = compile_for
        self._made = [compile_for(arguments)]

    @property
    def first(self) -> Compiled:
        return self._made[0]

    def for_arguments(self, arguments: dict[str, Any]) -> Compiled:
        fitting = (made for made in self._made if not made.misfit(arguments))
        found = next(fitting, None)
        if found is None:
            found = self._compile_for(arguments)
            self._made.append(found)
        return found

    def pack(self, arguments: dict[str, Any]) -> tuple[_syncopate.CudaKernel, _syncopate.KernelArguments]:
        """What launches them."""
        compiled = self.for_arguments(arguments)
        return compiled.kernel, compiled.pack(arguments)


def items_of(
    signature: Mapping[str, Any], arguments: Mapping[str, Any], outer: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], str, Any, Any]]:
    """(place, name, kind, value) of every parameter, item by item where it is a tuple."""
    for index, (name, kind) in enumerate(signature.items()):
        if kind == "constexpr" and name not in arguments:  # its default
            continue
        place, value = (*outer, index), arguments[name]
        if isinstance(kind, (tuple, list)):
            names = [f"{name}[{item}]" for item in range(len(kind))]
            items = dict(zip(names, kind, strict=True)), dict(zip(names, value, strict=True))
            yield from items_of(*items, place)
        else:
            yield place, name, kind, value


def _number_of(value: Any) -> int:
    """A number, or the address of a tensor."""
    return int(value) if isinstance(value, (int, float)) else int(value.data_ptr())


def _is_same(compiled: Any, value: Any) -> bool:
    """Whether a constant that was compiled in is this value: 1 is not True, and neither is 1.0."""
    return compiled is value or (type(compiled) is type(value) and bool(compiled == value))


def pack_number(packed: Any, name: str, kind: str, value: Any) -> None:
    """Appends a scalar argument of this kind to KernelArguments or a Form. A pointer that is a number is its address."""
    if kind in ("i1", "i8", "u1", "u8"):
        packed.add_i8(int(value))
    elif kind in ("i16", "u16"):
        packed.add_i16(int(value))
    elif kind in ("i32", "u32"):
        packed.add_i32(int(value) if int(value) < 2**31 else int(value) - 2**32)
    elif kind in ("i64", "u64") or kind.startswith("*"):
        packed.add_i64(int(value) if int(value) < 2**63 else int(value) - 2**64)
    elif kind in ("fp32", "f32"):
        packed.add_f32(float(value))
    elif kind == "fp64":
        packed.add_f64(float(value))
    else:
        raise TypeError(f"parameter {name}: a Triton argument of type {kind} cannot be launched from C++ yet")


def pack_descriptor(
    packed: Any, value: Any, metadata: dict[str, Any] | None, of: tuple[str, int, int] | None = None
) -> None:
    """Appends the map, the shape and the strides to KernelArguments, or to a Form, where the address is that of `of`."""
    if metadata is None:
        raise TypeError(
            "a descriptor parameter that Triton lowered to a pointer cannot be launched from C++ yet"
        )
    packed.add_tensor_map(
        *((value.base.data_ptr(),) if of is None else of),
        int(metadata["swizzle"]),
        int(metadata["elem_size"]),
        int(metadata["elem_type"]),
        [int(n) for n in metadata["block_size"]],
        [int(n) for n in value.shape],
        [int(n) for n in value.strides],
        bool(value.padding == "nan"),
    )
    if of is not None:
        return
    for extent in value.shape:
        packed.add_i32(int(extent))
    for stride in value.strides:
        packed.add_i64(int(stride))


def in_order(function: Any, arguments: Mapping[str, Any]) -> list[Any]:
    """The JITFunction's arguments by position, defaults filled in. TypeError says which are missing."""
    complete = {p.name: p.default for p in function.params if p.has_default} | dict(arguments)
    missing = [name for name in function.arg_names if name not in complete]
    if missing:
        raise TypeError(f"missing argument(s) {', '.join(missing)} of kernel {function.__name__}")
    return [complete[name] for name in function.arg_names]


def compile_kernel(
    function: Any,
    arguments: dict[str, Any],
    grid: tuple[int, ...],
    options: dict[str, Any],
    beside: bool = False,
) -> Compiled:
    """Compiles the JITFunction for these arguments (as a launch with them would) without launching it. `beside`: it runs
    beside kernels that take all of a multiprocessor's shared memory (runtime/cuda/driver/launch.hpp)."""
    given = in_order(function, arguments)
    binary = function.warmup(*given, grid=grid, **options)
    metadata = binary.metadata
    signature = dict(binary.src.signature)
    kernel = _syncopate.CudaKernel(
        binary.asm["cubin"],
        metadata.name,
        int(metadata.shared),
        int(metadata.num_warps),
        int(getattr(metadata, "num_ctas", 1)),
        int(metadata.global_scratch_size or 0),
        int(metadata.global_scratch_align or 1),
        beside=beside,
    )
    attributes = dict(binary.src.attrs)
    return Compiled(
        kernel=kernel,
        signature=signature,
        descriptor_metadata=list(getattr(metadata, "tensordesc_meta", None) or []),
        extra={"shared": int(metadata.shared), "num_warps": int(metadata.num_warps)},
        constants=dict(binary.src.constants),
        multiples=frozenset(place for place, found in attributes.items() if ["tt.divisibility", 16] in found),
        dtypes={
            place: value.dtype
            for place, _, _, value in items_of(signature, dict(zip(function.arg_names, given, strict=True)))
            if hasattr(value, "data_ptr")
        },
    )
