"""How the Gluon kernels' aggregates take their members."""

from collections.abc import Mapping
from typing import Any

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.language.core import base_value


@gluon.constexpr_function
def set_members(aggregate: Any, values: Mapping[str, Any]) -> None:
    """What only a running kernel knows as it is, all else as constants."""
    for name, value in values.items():
        runtime = isinstance(value, base_value) and not isinstance(value, gl.constexpr)
        setattr(aggregate, name, value if runtime else gl.constexpr(value))
