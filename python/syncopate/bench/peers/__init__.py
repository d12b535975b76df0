"""What operators are compared with. A peer is a module with

    OPERATORS   names of ops.OPERATORS that it does; (): all
    make        Case → a function call(i) that enqueues the i-th call and returns its y; raises what it cannot do
    GRAPH       whether it is measured as a CUDA graph (default: yes)
    EAGER       whether it is also measured eagerly, as NAME_eager (default: no)
    WHOLE       whether it does all that the operator does; else it is a part, shown and not compared (default: yes)

Its name is that of its file. `syncopate bench --peer FILE.py` adds one that is elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Peer:
    name: str
    make: Callable[[Any], Callable[[int], Any]]
    operators: tuple[str, ...] = ()
    graph: bool = True
    eager: bool = False
    whole: bool = True

    def does(self, operator: str) -> bool:
        return not self.operators or operator in self.operators


def peer_of(module: ModuleType, name: str) -> Peer:
    if not callable(getattr(module, "make", None)):
        raise ValueError(f"{module.__file__}: a peer has a function make(case)")
    get = vars(module).get
    return Peer(
        name,
        module.make,
        tuple(get("OPERATORS", ())),
        get("GRAPH", True),
        get("EAGER", False),
        get("WHOLE", True),
    )


def peers(files: Sequence[str] = ()) -> list[Peer]:
    """Those of this folder, in the order of their names, then those of `files`."""
    found = [
        peer_of(importlib.import_module(f"{__name__}.{info.name}"), info.name)
        for info in pkgutil.iter_modules(__path__)
    ]
    for file in files:
        path = Path(file)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or not path.exists():
            raise ValueError(f"--peer {file}: no such Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.append(peer_of(module, path.stem))
    return found
