"""How long a call takes, on either device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def stopwatch(device: Any) -> Callable[[], float]:
    """Microseconds since now, work on the device included."""
    import torch

    if str(device) == "cpu":
        begin = time.perf_counter()
        return lambda: (time.perf_counter() - begin) * 1e6
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()

    def stop() -> float:
        end_event.record()
        end_event.synchronize()
        return start_event.elapsed_time(end_event) * 1e3

    return stop
