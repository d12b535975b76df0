"""What torch.compile does not look into."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch


def unseen(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, before which a compiled graph ends: it launches, which a trace cannot follow. With fullgraph=True torch refuses it by
    name."""
    hidden = torch._disable_dynamo(run)

    @functools.wraps(run)
    def call(*args: Any, **options: Any) -> Any:
        if "torch._dynamo" in sys.modules:  # else nobody compiles, and importing it takes seconds
            return hidden(*args, **options)
        return run(*args, **options)

    return call
