"""Replaces a function of torch by whatever name modules know it: one that has imported it holds it itself, so that to replace it
where it is defined does not reach that module. What an object or a closure holds is not found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Place = tuple[dict[str, Any], str]  # names of a module, and one of them


class Names:
    """Of one `original` function, which `module` defines by that `name`; what stands in for it is of `kind`."""

    def __init__(self, module: ModuleType, name: str, original: Callable[..., Any], kind: type) -> None:
        self._definition: Place = vars(module), name
        self._original, self._kind = original, kind
        self._defined: Any = original  # what the definition had before: another may have replaced it
        self._places: list[Place] = []
        self._modules = 0  # how many there were when places were looked for

    def replace(self, by: Any) -> None:
        """By `by`, of that kind, in all modules."""
        names, name = self._definition
        if not isinstance(names[name], self._kind):
            self._defined = names[name]
        names[name] = by
        for names, name in self._others():
            names[name] = by

    def restore(self) -> None:
        """What was there before, also where a module has come to know what stood in; what others have put there meanwhile stays."""
        names, name = self._definition
        if isinstance(names[name], self._kind):
            names[name] = self._defined
        for names, name in self._others():
            names[name] = self._original

    def _others(self) -> list[Place]:
        """Where modules have the original, or what stands in for it, but for the definition."""
        if self._modules != len(sys.modules):  # some ms, for thousands of modules
            self._places, self._modules = self._look(), len(sys.modules)
        return [
            (names, name)
            for names, name in self._places
            if names is not self._definition[0]
            and (names.get(name) is self._original or isinstance(names.get(name), self._kind))
        ]

    def _look(self) -> list[Place]:
        places, original = [], type(self._original)
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            for name, value in list(names.items()) if isinstance(names, dict) else ():
                kind = type(value)
                if kind is self._kind or (kind is original and value is self._original):
                    places.append((names, name))
        return places
