"""What compiled graphs are decided by: the machine files and the store of the rank that compiled first, on all ranks.

A rank compiles without the others, or takes a graph from Inductor's cache, so it can ask none of them. By files of its own
it would put in ops that the others' graphs have not. The first to compile leaves what it knows in torch's store; it holds as
long as the store does, also for a process group that is made later in it, since what is in the other ranks' caches was made by it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import warnings
import zlib
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import distributed
from torch.distributed import distributed_c10d as c10d

from .. import _syncopate

#: Of tune::Snapshot: the machine files named, measured and not read, and the results of the store.
Snapshot = tuple[str, str, str, str]

KEY = "snapshot"

_of_group: WeakKeyDictionary[distributed.ProcessGroup, Snapshot] = WeakKeyDictionary()


def snapshot() -> Snapshot:
    """By which all ranks of torch's default group decide; this rank's own where there is none. Waits for no other rank."""
    if not distributed.is_initialized() or distributed.get_backend() == "fake":
        return _own(_files())
    world = c10d._get_default_group()
    if world not in _of_group:
        own = _own(_files())
        store = distributed.PrefixStore("syncopate/compiled", c10d._get_default_store())
        agreed = _unpacked(store.compare_set(KEY, "", _packed(own)))
        if agreed != own:
            warnings.warn(
                "syncopate: the machine file or the store of this rank is not that of the rank which compiled first: compiled "
                "graphs are decided by that one's",
                stacklevel=2,
            )
        _of_group[world] = agreed
    return _of_group[world]


def digest() -> str:
    """Of the snapshot, for keys of caches."""
    return hashlib.sha256(_packed(snapshot()).encode()).hexdigest()


def _packed(snapshot: Snapshot) -> str:
    return base64.b85encode(zlib.compress(json.dumps(snapshot).encode())).decode()


def _unpacked(text: bytes) -> Snapshot:
    return tuple(json.loads(zlib.decompress(base64.b85decode(text))))


@lru_cache(1)
def _own(_: object) -> Snapshot:
    return _syncopate.tune.snapshot()


def _files() -> tuple[object, ...]:
    """Changes when the store of measured strategies, or the file of the measured machine, does."""
    made: list[object] = [_syncopate.tune.mode(), os.environ.get("SYNCOPATE_MACHINE")]
    for path in (_syncopate.tune.store_path(), _syncopate.tune.measured_machine_path()):
        try:
            status = Path(path).stat()
            made.append((path, status.st_mtime_ns, status.st_size))
        except OSError:
            made.append((path, 0, 0))
    return tuple(made)
