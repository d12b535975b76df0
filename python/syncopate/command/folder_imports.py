"""What the kernels of a folder import from it: the files that schedule.json was written with, and nothing that lies beside them.

Python itself would take a package, or a library, in the place of a file of the same name.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import _syncopate
from ..device.jit import AsGiven


def recorded_files(artifact: _syncopate.Artifact) -> list[str]:
    """The names in the folder of all files whose digests schedule.json holds."""
    return list(json.loads(artifact.schedule_json).get("files", {}))


def package_of(folder: Path, files: Iterable[str]) -> str:
    """The package that the folder is to its kernels. By their own names its modules are found, too, where nothing else has them."""
    place = folder.resolve()
    package = f"_sy_folder_{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
    if package not in sys.modules:
        finder = _Recorded(place, package, files)
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [finder.mark]
        sys.meta_path.append(finder)
    return package


class _Recorded(MetaPathFinder):
    def __init__(self, folder: Path, package: str, files: Iterable[str]) -> None:
        self.mark = f"<what {folder} holds>"  # no path: other finders find nothing there
        self._package, self._files = package, dict[str, Path | None]()
        for name in files:
            *above, last = name.removesuffix(".py").split("/")
            for depth in range(1, len(above) + 1):
                self._files.setdefault(".".join(above[:depth]), None)
            self._files[".".join(above if last == "__init__" else [*above, last])] = folder / name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        name = fullname.removeprefix(f"{self._package}.")
        if name not in self._files or (path is not None and self.mark not in path):
            return None
        file = self._files[name]
        if file is None:
            made = ModuleSpec(fullname, None, is_package=True)
            made.submodule_search_locations = [self.mark]
            return made
        inside = [self.mark] if file.name == "__init__.py" else None
        loader = AsGiven(fullname, file, file.read_text(encoding="utf-8"))
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inside)
