"""What a result of tuning depends on besides its problem: with any of it changed the result is not found."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import torch

from .. import _syncopate


@functools.cache
def kernel_hash() -> str:
    """Of the sources of the library's kernels and of what they call on the device: a result holds for those that it was measured
    with."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for pattern in ("kernels/*.py", "device/*.py", "language.py", "gluon.py"):
        for file in sorted(package.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def scope(device: str) -> dict[str, str]:
    """What a result depends on besides its problem."""
    import triton

    name = torch.cuda.get_device_name() if device == "cuda" else "host"
    # torch brings the libraries of the unfused pair.
    versions = f"syncopate {_syncopate.version}, triton {triton.__version__}, torch {torch.__version__}"
    return {"kernel": kernel_hash(), "device": name, "versions": versions}
