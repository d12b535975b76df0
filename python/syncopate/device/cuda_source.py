"""Kernels in CUDA C++, for sy.kernel: compiled by nvcc when first launched, launched from C++ like Triton's.

    scale = sy.cuda_kernel("scale.cu", "scale", {"x": "*fp32", "y": "*fp32", "n": "i32", "sy_schedule": "i64",
                           "sy_control": "i64", "BLOCK": "constexpr"}, threads=128)

The function is extern "C". Its constexprs are macros (-DBLOCK=64), in the text only. `#include
"syncopate/emit/schedule_device.cuh"` has the calls by which it follows a schedule.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _syncopate
from ..call.arguments import DTYPES
from . import jit

_PACKAGE = Path(__file__).resolve().parents[1]
#: Of an installed package beside this file, else the repository's.
INCLUDE = next(at for at in (_PACKAGE / "include", _PACKAGE.parents[1] / "include") if at.is_dir())
_NUMBERS = ("i1", *(f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "iu"), "fp32", "fp64")
#: Of parameters, and what pointers may point to.
TYPES = ("constexpr", *_NUMBERS)
POINTED = {*DTYPES, *_NUMBERS, "fp8e4nv", "fp8e5"}
HEADERS = (
    "syncopate/emit/schedule_device.cuh",
    "syncopate/emit/layout.hpp",
    "syncopate/fuse/model/control_block.hpp",
)


class CudaSource:
    """A function of a file in CUDA C++, with what a launch has to know of it."""

    def __init__(
        self,
        file: str | os.PathLike[str],
        name: str,
        parameters: Mapping[str, str],
        *,
        threads: int,
        shared_bytes: int = 0,
        include: Sequence[str | os.PathLike[str]] = (),
        flags: Sequence[str] = (),
    ) -> None:
        if threads < 32 or threads % 32 or threads > 1024:
            raise ValueError(f"{name}: threads must be a multiple of 32 up to 1024, got {threads}")
        for parameter, type_of in parameters.items():
            if type_of.removeprefix("*") not in (POINTED if type_of.startswith("*") else TYPES):
                raise ValueError(
                    f"{name}: {parameter}: unknown type {type_of!r}; known are {', '.join(TYPES)}, and pointers such as '*fp32'"
                )
        self.file, self.__name__, self.types = str(file), name, dict(parameters)
        self.threads, self.shared_bytes = threads, shared_bytes
        self.include, self.flags = [*map(str, include), str(INCLUDE)], list(flags)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in self.types])
        self.constants = [p for p, type_of in self.types.items() if type_of == "constexpr"]
        self._compiled: dict[tuple, jit.Compiled] = {}

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(**arguments: Any) -> None:
            compiled = self.compile_for(arguments)
            sizes = [*map(int, grid), 1, 1][:3]
            compiled.kernel.launch(sizes, jit.current_stream(), compiled.pack(arguments))

        return launch

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        raise TypeError(f"{self.__name__} needs a grid: {self.__name__}[grid](…)")

    def compile_for(
        self, arguments: Mapping[str, Any], _grid: Any = None, _options: Any = None
    ) -> jit.Compiled:
        """For these constexprs, on the current device."""
        import torch

        major, minor = torch.cuda.get_device_capability()
        chosen = tuple((p, arguments[p]) for p in self.constants)
        key = (chosen, major, minor)
        if key not in self._compiled:
            image = self.cubin(f"sm_{major}{minor}{'a' if major >= 9 else ''}", dict(chosen))
            kernel = _syncopate.CudaKernel(
                image, self.__name__, self.shared_bytes, self.threads // 32, triton=False
            )
            self._compiled[key] = jit.Compiled(kernel, self.types, [])
        return self._compiled[key]

    def cubin(self, arch: str, constants: Mapping[str, Any]) -> bytes:
        """Compiles for `arch` ("sm_90a"), with each constexpr as a macro; kept in the cache folder. MachineError without nvcc,
        InputError with the compiler's messages."""
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.environ.get("CUDA_HOME", "") + "/bin")
        if nvcc is None:
            raise _syncopate.MachineError(
                f"{self.file}: nvcc compiles it, and is not found: put it on PATH, or set CUDA_HOME"
            )
        macros = [f"-D{name}={int(value)}" for name, value in constants.items()]
        include = [f"-I{folder}" for folder in self.include]
        command = [nvcc, "-cubin", "-std=c++20", f"-arch={arch}", *include, *macros, *self.flags, self.file]
        texts = [
            Path(self.file).read_bytes(),
            *(p.read_bytes() for h in HEADERS if (p := INCLUDE / h).exists()),
        ]
        digest = hashlib.sha256(b"\0".join([*texts, *map(str.encode, command)])).hexdigest()[:16]
        path = jit.cache_folder() / "cuda" / f"{self.__name__}_{digest}.cubin"
        jit.private_folder(path.parent, "compiled kernels")
        try:
            image = _checked(jit.kept(path))
            if image is None:  # new, or cut off or changed since
                image = self._compile(command)
                jit.keep(path, hashlib.sha256(image).digest() + image)
        except OSError as error:
            raise jit.CacheError(
                f"compiled kernels cannot be kept in {path.parent}: {error.strerror}"
            ) from None
        return image

    def _compile(self, command: Sequence[str]) -> bytes:
        with tempfile.TemporaryDirectory(prefix="syncopate-") as folder:
            made = Path(folder) / "image.cubin"
            done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
            if done.returncode != 0:
                raise _syncopate.InputError(f"{self.file} does not compile:\n{done.stderr.strip()}")
            return made.read_bytes()


def _checked(kept: bytes | None) -> bytes | None:
    """The cubin that a file holds after its digest; None where it holds no such thing."""
    size = hashlib.sha256().digest_size
    image = (kept or b"")[size:]
    return image if image and kept[:size] == hashlib.sha256(image).digest() else None


def cuda_kernel(
    file: str | os.PathLike[str], name: str, parameters: Mapping[str, str], *, threads: int, **options: Any
) -> CudaSource:
    """The extern "C" function `name` of `file`, for sy.kernel. `parameters`: in order, each with its type: "*fp32" (a pointer),
    "i32", "i64", "fp32", …, or "constexpr" for a macro, which is no parameter of the function. `threads` of a block.
    `options`: shared_bytes (dynamic), include (folders), flags (of nvcc)."""
    return CudaSource(file, name, parameters, threads=threads, **options)
