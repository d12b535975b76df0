"""What torch's checkpoint makes again in the backward is to be made as it was: here each block that is checkpointed between begin() and
end() gets another function in its place, by which it runs both times. Blocks in compiled graphs are the graph's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint

Block = Callable[..., Any]

_APPLIED = "CheckpointFunction"  # use_reentrant=True
_GENERATED = "_checkpoint_without_reentrant_generator"  # of a torch without it blocks are left: it tells what is made otherwise

_COMPOSABLE = "torch.distributed._composable.checkpoint_activation"


class Checkpoints:
    """`instead`: what runs for a block."""

    def __init__(self, instead: Callable[[Block], Block]) -> None:
        self._instead = instead
        self._before: dict[tuple[Any, str], Any] = {}

    def begin(self) -> None:
        """Also while it lasts."""
        if self._before:
            return
        instead = self._instead
        applied, generated = getattr(checkpoint, _APPLIED), getattr(checkpoint, _GENERATED, None)

        class CheckpointFunction(applied):
            @classmethod
            def apply(cls, block: Block, *args: Any) -> Any:
                return applied.apply(instead(block), *args)

        def made(block: Block, *args: Any, **kwargs: Any) -> Any:
            return generated(instead(block), *args, **kwargs)

        # torch's composable checkpoint has the names of its own.
        for module in (checkpoint, sys.modules.get(_COMPOSABLE)):
            for name, new in ((_APPLIED, CheckpointFunction), (_GENERATED, made)):
                if hasattr(module, name):
                    self._before[module, name] = getattr(module, name)
                    setattr(module, name, new)

    def end(self) -> None:
        for (module, name), old in self._before.items():
            setattr(module, name, old)
        self._before = {}
