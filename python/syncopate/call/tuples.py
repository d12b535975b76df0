"""Arguments that are tuples, item by item, as the compiler names them: `{"a_ptrs": (x, y)}` is `{"a_ptrs[0]": x,
"a_ptrs[1]": y}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """By name of item, those of tuples inside tuples too. TypeError for a list, which Triton does not take."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, list):
            raise TypeError(
                f"{name} is a list, which no Triton kernel takes: give tuple({name}), and index it with constants"
            )
        if isinstance(value, tuple) and value:
            found |= flat({f"{name}[{index}]": item for index, item in enumerate(value)})
        else:
            found[name] = value
    return found


class _Places(dict):
    """Items by place, of a tuple that is being put together."""

    def whole(self) -> tuple:
        return tuple(_whole(self[place]) for place in sorted(self))


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, _Places) else value


def nested(items: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of which `items`, in any order, are the items."""
    made: dict[Any, Any] = {}
    for name, value in items.items():
        parameter, *path = name.replace("]", "").split("[")
        place, key = made, parameter
        for index in path:
            place, key = place.setdefault(key, _Places()), int(index)
        place[key] = value
    return {name: _whole(value) for name, value in made.items()}
