"""How values of many fields print."""

from dataclasses import MISSING, fields
from typing import Any


def brief(value: Any) -> str:
    """A dataclass as the call that makes it, without the fields that are as usual."""
    said = []
    for field in fields(value):
        it = getattr(value, field.name)
        if field.default is MISSING or it != field.default:
            said.append(f"{field.name}={it!r}")
    return f"{type(value).__name__}({', '.join(said)})"
