"""What torch's checkpoint makes again in the backward is to be made as it was: here each block that is checkpointed between begin() and
end() gets another function in its place, by which it runs both times. Blocks in compiled graphs are the graph's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint

Block = Callable[..., Any]

_APPLIED = "CheckpointFunction"  # use_reentrant=True
_GENERATED = "_checkpoint_without_reentrant_generator"  # of a torch without it blocks are left: it tells what is made otherwise


class Checkpoints:
    """`instead`: what runs for a block."""

    def __init__(self, instead: Callable[[Block], Block]) -> None:
        self._instead = instead
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Also while it lasts."""
        if self._before:
            return
        instead = self._instead
        before = self._before = {
            name: vars(checkpoint)[name] for name in (_APPLIED, _GENERATED) if hasattr(checkpoint, name)
        }

        class CheckpointFunction(before[_APPLIED]):
            @classmethod
            def apply(cls, block: Block, *args: Any) -> Any:
                return before[_APPLIED].apply(instead(block), *args)

        def generated(block: Block, *args: Any, **kwargs: Any) -> Any:
            return before[_GENERATED](instead(block), *args, **kwargs)

        for name, made in {_APPLIED: CheckpointFunction, _GENERATED: generated}.items():
            if name in before:
                setattr(checkpoint, name, made)

    def end(self) -> None:
        for name, made in self._before.items():
            setattr(checkpoint, name, made)
        self._before = {}
